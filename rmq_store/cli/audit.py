"""``rmq audit``: proves that the store holds what its commits wrote, and names each contradiction and what to do."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import check_group, open_store, optional_settings
from rmq_store.cli.engines import engines_of, spark_of
from rmq_store.cli.options import FullEngineOption, OfGroupOption, SettingsOptions, SparkOptions
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.lake.audit.full import FullReport
    from rmq_store.lake.table.store import LakeStore

PANEL = "Inspect"
_MOST_THREADS = 4
"""Each has a whole file in memory."""
_EMPTY = "no contradiction: every offset has exactly one outcome"


def add_to(app: typer.Typer) -> None:
    add_command(app, audit, ["rmq audit", "rmq audit --group orders", "rmq audit --full"], panel=PANEL)


FullOption = Annotated[
    bool, typer.Option("--full", help="Read every file too, and check each row. Minutes per 10 GB (docs/limits.md).")
]


def audit(
    *,
    group: OfGroupOption = None,
    full: FullOption = False,
    engine: FullEngineOption = None,
    options: SettingsOptions,
    spark: SparkOptions,
) -> None:
    """Check that no message is missing or counted twice.

    Compares what commits recorded with the rows, the positions, the derived tables and the ends of all data files; each row
    is a contradiction. With --group only the record of that group is compared. Exit code 1 when there is one.

    With --full every file is read as well: its SHA-256, the CRC of each body, each copy and the message that it names, and what
    windows filtered.
    """
    if full and group is not None:
        raise WrongUse("--full is for the whole store: give it without --group")
    if engine is not None and not full:
        raise WrongUse("--engine is for --full: the audit without it reads no rows of messages in tasks")
    output, store = Output(options.as_json), open_store(options.root)
    from rmq_store.lake.audit.audit import audit as audit_store
    from rmq_store.lake.audit.audit import of_view
    from rmq_store.lake.audit.finding import AUDIT, advice_for, table_of, without_repeats

    if group is None:
        with progress_of(output, "files") as progress:
            findings = audit_store(store, progress)
    else:
        findings = list(of_view(store, group))
        if not findings:
            check_group(store, group, optional_settings(options.settings))
    contents: dict[str, object] = {}
    if full:
        report = _full(store, engine, output, spark, options.settings)
        findings = without_repeats([*findings, *report.findings])
        contents = {"full": {name: value for name, value in asdict(report).items() if name != "findings"}}
    rows, advice = table_of(findings).to_pylist(), advice_for(findings)
    shown = [name for name in AUDIT.names if any(row[name] is not None for row in rows)]
    output.table(rows, shown, _EMPTY)
    for one in advice:
        output.line(f"\n{one['problem']}: {one['meaning']}\n  {one['action']}")
    if full:
        _print_contents(output, report)
    output.document({"status": "done", "audit": rows, "advice": advice, **contents})
    if findings:
        raise typer.Exit(1)


def _full(
    store: LakeStore, choice: str | None, output: Output, options: SparkOptions, settings: str | None
) -> FullReport:
    """In threads of this process, or in Spark."""
    from rmq_store.lake.audit.full import full
    from rmq_store.lake.window.engine import ThreadsEngine

    host, target = Host(), spark_of(options, settings)
    with engines_of("audit", choice or "local", host, target) as engines, progress_of(output) as progress:
        engine = engines.spark() if choice == "spark" else ThreadsEngine(min(os.cpu_count() or 1, _MOST_THREADS))
        return full(store, engine, progress)


def _print_contents(output: Output, report: FullReport) -> None:
    output.line(
        f"read {report.files:,} files ({report.size / 1e6:,.1f} MB), {report.rows:,} rows, {report.copies:,} copies, "
        f"{report.ranges:,} ranges with a filter"
    )
    for count, what in (
        (report.without_digest, "files have no digest: an earlier version wrote them"),
        (report.copies_without_message, "copies name a message that retention removed"),
        (report.ranges_not_checked, "ranges were not filtered again: some of their messages were removed"),
    ):
        if count:
            output.line(f"not covered: {count:,} {what}")
