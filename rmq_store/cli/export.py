"""``rmq offsets export``: committed offsets as a broker's own files."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_store.cli.common import open_store, shard_of_broker
from rmq_store.cli.options import BrokerOption, DryRunOption, ShardOption, StoreOptions, local_file
from rmq_store.cli.output import Output
from rmq_store.errors import WrongUse
from rmq_store.utils.suggestions import listed

if TYPE_CHECKING:
    from rmq_store.broker_files.offsets_to_broker import How
    from rmq_store.lake.broker.export import OffsetsExport
    from rmq_store.lake.table.shard import Shard


def export(
    *,
    broker: BrokerOption,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", parser=local_file, help="The file to write. Default: standard output."),
    ] = None,
    merge: Annotated[
        Path | None,
        typer.Option(
            "--merge",
            metavar="FILE",
            parser=local_file,
            help="The broker's own file: merge into it and keep its other keys.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite a FILE that knows more than the export.")
    ] = False,
    dry_run: DryRunOption = False,
    shard: ShardOption = None,
    options: StoreOptions,
) -> None:
    """Write a broker's consumerOffset.json and, beside it, its delayOffset.json.

    consumerOffset.json has the offsets that were committed in this store on the broker's queues and, where there are none, the
    broker's own as the last import read them. delayOffset.json has how far its delay levels were delivered; after a cutover
    that is how far this store delivered them. For a FILE of another name, such as out.json, it is delayOffset-out.json, so that
    several brokers may be exported into one folder.

    A broker with enableLmq=true reads lmqConsumerOffset.json in place of consumerOffset.json: give that path.

    A FILE with another group or a later offset is not overwritten. With --merge the file's other keys stay; an offset
    committed in this store wins, and notes list each one that it lowers; an imported offset, or that of a delay level,
    never lowers the file's. The previous file stays as .bak. Where the file is missing, empty or damaged, its .bak is
    read, as a broker would.

    Messages that wait in the lake's own queues are in neither file: the broker would not see them, and notes count them. A
    broker reads its files when it starts and overwrites them while it runs: stop it first.

    One export to a FILE runs at a time: another one is refused (exit 3) until the first has ended. --dry-run is not.
    """
    output = Output(options.as_json)
    target, how = _export_target(file, merge, overwrite, dry_run)
    store = open_store(options.root)
    from rmq_store.broker_files.export_lock import one_export

    of_broker = shard_of_broker(store, broker, shard)
    with nullcontext() if target is None or dry_run else one_export(target):
        _export(output, of_broker, broker, target, how, dry_run=dry_run)


def _export(output: Output, shard: Shard, broker: str, target: Path | None, how: How, *, dry_run: bool) -> None:
    """``target``: the file to write; None: standard output."""
    from rmq_store.broker_files.offsets_to_broker import planned_writes, write_both
    from rmq_store.lake.broker.export import export_offsets

    exported = export_offsets(shard, broker)
    for note in _notes(exported):
        output.note(note)
    answer = {
        "status": "dry_run" if dry_run else "done",
        "broker_name": broker,
        "groups": exported.groups,
        "waiting_retries": exported.waiting_retries,
        "waiting_messages": exported.waiting_messages,
        "waiting_deleted": exported.waiting_deleted,
        "waiting_levels": exported.waiting_levels,
        "given_again": exported.given_again,
        "left_out": exported.left_out,
        "clients": exported.clients,
    }
    if target is None:
        output.file(exported.text)
        output.document(answer | {"text": exported.text, "delay_text": exported.delay_text})
        return
    planned = planned_writes(target, exported.offsets, exported.delays, exported.version, how, exported.form)
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
        f"group {group}: {count:,} retries still wait in this store; {unseen}. To consume them: 'rmq deliver', then "
        f"'rmq consume --group {quote(group)} --retries-only', again and again until none waits"
        for group, count in exported.waiting_retries.items()
    ]
    notes += [
        f"{key}: {count:,} messages still wait in this store{'' if '@' in key else ', consumed by no group'}; {unseen}"
        for key, count in exported.waiting_messages.items()
    ]
    notes += [
        f"{key}: {count:,} messages of a topic that was deleted at the broker are not consumed in this store; {unseen}"
        for key, count in exported.waiting_deleted.items()
    ]
    notes += [
        f"{key}: the broker gives the group {count:,} messages again that it has consumed here: they are behind the end that "
        "the broker's log lost, not all before it is consumed, and the broker has one offset for both. Consume the rest first"
        for key, count in exported.given_again.items()
    ]
    notes += [
        f"{key}: the offsets of queues {listed(list(map(str, ids)))} are left out: the last import found no entry of them, as "
        "their topic was deleted at the broker or made again, or as the copy was not whole. The broker's file keeps what it "
        "has of them: look at it before the broker starts. A queue that was made again begins at offset 0"
        for key, ids in exported.left_out.items()
    ]
    if exported.clients:
        notes.append(
            f"the offsets of broadcasting clients stay here, as no broker has them: {listed(exported.clients)}"
        )
    if exported.waiting_levels:
        notes.append(
            f"{exported.waiting_levels:,} messages wait in the broker's own delay levels: with this delayOffset.json it "
            "delivers them itself, so do not deliver them from this store as well"
        )
    return notes


_CHANGE = ("file", "key", "queue_id", "from_offset", "to_offset")


def _export_target(file: Path | None, merge: Path | None, overwrite: bool, dry_run: bool) -> tuple[Path | None, How]:
    """The file to write (None: standard output) and how. Raises WrongUse for options that contradict each other."""
    from rmq_store.broker_files.offsets_to_broker import How

    if merge is not None and (file is not None or overwrite):
        raise WrongUse("--merge FILE names the file and keeps its other keys: give no other FILE and no --overwrite")
    target = file if merge is None else merge
    if target is None:
        if dry_run or overwrite:
            raise WrongUse("--dry-run and --overwrite need a file: give FILE or --merge FILE")
        return None, How.KEEP
    if merge is not None and not any(map(os.path.exists, (target, target.with_name(f"{target.name}.bak")))):
        raise WrongUse(f"there is no file {target} to merge into: export to it without --merge")
    if not os.path.isdir(target.parent):
        raise WrongUse(f"{target} cannot be written: there is no folder {target.parent}")
    return target, How.MERGE if merge is not None else How.OVERWRITE if overwrite else How.KEEP
