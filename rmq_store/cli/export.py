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
    from rmq_store.lake.broker.export import OffsetsExport


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
    """Write a broker's consumerOffset.json and, beside it, its delayOffset.json.

    They hold what was committed here on the broker's queues and, where nothing was, the broker's own offsets as the last
    import saw them; delayOffset.json how far its delay levels are delivered, here after a cut-over. A file that knows more, a
    group or a later offset, is not written over. With --merge its other keys stay, an offset that was committed here wins,
    and one that was only seen, or of a delay level, never lowers the file's; what is lowered is told. The file before stays
    as .bak; where the broker would read the .bak, since the file is missing, empty or damaged, it is what the file says. What
    waits in the lake's own queues is not in them: the broker would not see it, and how much it is is said. A broker reads its
    files when it starts and writes over them while it runs: stop it first.
    """
    output = Output(as_json)
    target, how = _export_target(file, merge, overwrite, dry_run)
    store = open_store(root)
    from rmq_store.broker_files.offsets_back import planned_writes, write_both
    from rmq_store.lake.broker.export import export_offsets

    exported = export_offsets(shard_of_broker(store, broker, shard), broker)
    for note in _notes(exported):
        output.note(note)
    answer = {
        "status": "dry_run" if dry_run else "done",
        "broker_name": broker,
        "groups": exported.groups,
        "waiting_retries": exported.waiting_retries,
        "waiting_messages": exported.waiting_messages,
        "waiting_levels": exported.waiting_levels,
    }
    if target is None:
        output.line(exported.text)
        output.document(answer | {"text": exported.text, "delay_text": exported.delay_text})
        return
    planned = planned_writes(target, exported.offsets, exported.delays, exported.version, how)
    for note in (note for one in planned for note in one.notes):
        output.note(note)
    changes = [{"file": one.path.name} | asdict(change) for one in planned for change in one.changes]
    if dry_run:
        output.table(changes, _CHANGE, empty="nothing would change")
    else:
        write_both(planned)
    lowered = sum(len(one.lowered) for one in planned)
    files = {"file": str(target), "delay_file": str(planned[1].path)}
    would = "would change" if dry_run else "changed"
    output.answer(
        answer | files | {"changed": any(one.changed for one in planned), "lowered": lowered, "changes": changes},
        *(f"{len(one.changes)} offsets of {broker} {would} in {one.path}" for one in planned),
    )


def _notes(exported: OffsetsExport) -> list[str]:
    unseen = "a broker with these offsets would not see them"
    notes = [
        f"group {group}: {count:,} retries still wait here; {unseen}"
        for group, count in exported.waiting_retries.items()
    ]
    notes += [
        f"{key}: {count:,} messages still wait here{'' if '@' in key else ', which no group has consumed'}; {unseen}"
        for key, count in exported.waiting_messages.items()
    ]
    if exported.waiting_levels:
        notes.append(
            f"{exported.waiting_levels:,} messages wait in the broker's own delay levels: it goes on with them at this "
            "delayOffset.json, so do not deliver them here as well"
        )
    return notes


_CHANGE = ("file", "key", "queue_id", "from_offset", "to_offset")


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
    if merge is not None and not (target.exists() or target.with_name(f"{target.name}.bak").exists()):
        raise WrongUse(f"there is no file {target} to merge into: export to it without --merge")
    if not target.parent.is_dir():
        raise WrongUse(f"{target} cannot be written: there is no folder {target.parent}")
    return target, How.MERGE if merge is not None else How.OVERWRITE if overwrite else How.KEEP
