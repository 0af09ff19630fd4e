"""``rmq offsets export``: where groups stand, for a broker."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_store.cli.common import open_store, shard_of_broker
from rmq_store.cli.options import BrokerOption, JsonOption, RootOption, ShardOption
from rmq_store.cli.output import Output
from rmq_store.errors import WrongUse

if TYPE_CHECKING:
    from rmq_store.broker_files.offsets_back import How


def export(
    broker: BrokerOption,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to. Default: standard output.")] = None,
    merge: Annotated[
        Path | None,
        typer.Option("--merge", metavar="FILE", help="The broker's own file: what is not known here stays in it."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write over a FILE that knows more than the export.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change in the file; write nothing.")
    ] = False,
    shard: ShardOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a broker's consumerOffset.json.

    It holds what was committed here on the broker's queues and, where nothing was, the broker's own offsets as the last
    import saw them. A file that knows more, a group or a later offset, is not written over. With --merge its other keys
    stay, an offset that was committed here wins, and one that was only seen never lowers the file's. The file before stays
    as .bak. Retries that wait in the lake are not in it: the broker would not see them, and how many there are is said.
    """
    output = Output(as_json)
    target, how = _export_target(file, merge, overwrite, dry_run)
    store = open_store(root)
    from rmq_store.broker_files.offsets_back import CONSUMER_OFFSETS, planned_write
    from rmq_store.lake.export import export_offsets

    exported = export_offsets(shard_of_broker(store, broker, shard), broker)
    for group, count in exported.waiting_retries.items():
        output.note(f"group {group}: {count:,} retries still wait here; a broker with these offsets would not see them")
    answer = {
        "status": "dry_run" if dry_run else "done",
        "broker_name": broker,
        "groups": exported.groups,
        "waiting_retries": exported.waiting_retries,
    }
    if target is None:
        output.line(exported.text)
        output.document(answer | {"text": exported.text})
        return
    planned = planned_write(target, CONSUMER_OFFSETS, exported.offsets, exported.version, how)
    if dry_run:
        output.table([asdict(change) for change in planned.changes], _CHANGE, empty="nothing would change")
    else:
        planned.write()
    output.answer(
        answer | {"file": str(target), "changed": planned.changed, "changes": list(map(asdict, planned.changes))},
        f"{len(planned.changes)} offsets of {broker} {'would change' if dry_run else 'changed'} in {target}",
    )


_CHANGE = ("key", "queue_id", "from_offset", "to_offset")


def _export_target(file: Path | None, merge: Path | None, overwrite: bool, dry_run: bool) -> tuple[Path | None, How]:
    """The file to write, None: standard output. Raises WrongUse for options that contradict each other."""
    from rmq_store.broker_files.offsets_back import How

    if merge is not None and (file is not None or overwrite):
        raise WrongUse(
            "--merge FILE names the file itself and keeps what it knows: give no other FILE and no --overwrite"
        )
    target = file if merge is None else merge
    if target is None:
        if dry_run or overwrite:
            raise WrongUse("--dry-run and --overwrite are about a file: give FILE or --merge FILE")
        return None, How.KEEP
    target = target.expanduser()
    if merge is not None and not target.is_file():
        raise WrongUse(f"there is no file {target} to merge into: export to it without --merge")
    if not target.parent.is_dir():
        raise WrongUse(f"{target} cannot be written: there is no folder {target.parent}")
    return target, How.MERGE if merge is not None else How.OVERWRITE if overwrite else How.KEEP
