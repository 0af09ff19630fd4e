"""``rmq audit``: proves that the store holds what its commits wrote, and names each contradiction and what to do."""

from __future__ import annotations

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import check_group, open_store, optional_settings
from rmq_store.cli.options import OfGroupOption, SettingsOptions
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of

PANEL = "Inspect"
_EMPTY = "no contradiction: every offset has exactly one outcome"


def add_to(app: typer.Typer) -> None:
    add_command(app, audit, ["rmq audit", "rmq audit --group orders"], panel=PANEL)


def audit(*, group: OfGroupOption = None, options: SettingsOptions) -> None:
    """Check that no message is missing or counted twice.

    Compares what commits recorded with the rows, the positions, the derived tables and the ends of all data files; each row
    is a contradiction. With --group only the record of that group is compared. Exit code 1 when there is one.
    """
    output, store = Output(options.as_json), open_store(options.root)
    from rmq_store.lake.audit.audit import audit as audit_store
    from rmq_store.lake.audit.audit import of_view
    from rmq_store.lake.audit.finding import AUDIT, advice_for, table_of

    if group is None:
        with progress_of(output, "files") as progress:
            findings = audit_store(store, progress)
    else:
        findings = list(of_view(store, group))
        if not findings:
            check_group(store, group, optional_settings(options.settings))
    rows, advice = table_of(findings).to_pylist(), advice_for(findings)
    shown = [name for name in AUDIT.names if any(row[name] is not None for row in rows)]
    output.table(rows, shown, _EMPTY)
    for one in advice:
        output.line(f"\n{one['problem']}: {one['meaning']}\n  {one['action']}")
    output.document({"status": "done", "audit": rows, "advice": advice})
    if findings:
        raise typer.Exit(1)
