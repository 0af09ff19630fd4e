"""``expected/NAME.recovery`` and ``acknowledged``: what is kept of a killed broker's store, also of damaged copies."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.broker_files.config_files import read_consumer_offsets
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles, QueueBounds, list_consume_queues
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData
from rmq_store.log.commit_log import Blank, Damage, FileEnd, item_at
from rmq_store.log.consume_queue import UNIT_BYTES, is_indexed
from rmq_store.log.record import Record, decode
from tests.conformance.behaviour import asked_topic
from tests.conformance.broker_store import BrokerStore, QueueKey
from tests.conformance.checks import Line, Outcomes, by_kind, refused, same
from tests.conformance.offset_files import offset_table

Readable = dict[QueueKey, dict[int, Record]]
"""Per queue the records by queue offset."""


def check_acknowledged(lines: Sequence[Sequence[Any]], store: BrokerStore) -> Outcomes:
    """Nothing that was acknowledged is missing: [topic, queue, queue offset, UNIQ_KEY, offset id] of each send.

    The broker names the queue that the producer asked for; a delayed message lies in a schedule queue.
    """
    in_files = {(record.properties.get("UNIQ_KEY"), record.offset_msg_id): record for record in store.records}
    text = "SELECT unique_key, commit_log_offset FROM msg"
    in_lake = {(row["unique_key"], row["commit_log_offset"]) for row in store.imported.rows(text)}
    for topic, queue_id, queue_offset, *ids in lines:
        record = in_files.get(tuple(ids))
        if record is None:
            yield f"{ids} is not in the log"
            continue
        if record.topic == topic:
            found = record.queue_id, record.queue_offset
            yield same(f"place of {ids}", found, (queue_id, queue_offset))
        yield same(f"topic of {ids}", asked_topic(record.topic, record.properties), topic)
        yield same(f"{ids} is in the lake", (ids[0], record.commit_log_offset) in in_lake, True)


# --- damaged copies --------------------------------------------------------------------------------------------------


def _basis(line: Line, store: BrokerStore) -> Outcomes:
    yield same("end of the log", store.log_end, line["maxPhyOffset"])
    written = [file.start_offset for file in store.log.files if file.start_offset < store.log_end]
    yield same("last file", max(written), line["lastFile"])
    starts = {record.commit_log_offset for record in store.records}
    for key in ("recordUsed", "earlyRecordUsed"):
        yield same(f"a record begins at {line[key]}", line[key] in starts, True)


def recovered(line: Line, store: BrokerStore) -> Outcomes:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "store")
        shutil.copytree(store.folder, folder, ignore=shutil.ignore_patterns("timer*", "index"))
        for edit in line["recipe"]:
            _apply(folder, edit)
        source = LocalFileSource(folder)
        if "error" in line:
            yield refused(line["name"], BadData, lambda: list(_records(source)), "differ in size")
        else:
            yield from _kept(source, line, was_killed=(folder / "abort").exists())


def _records(source: LocalFileSource, kept_to: int = 0) -> Iterator[Record]:
    """The log as we walk it. Before ``kept_to`` a damaged record is taken for what it says it is: RocketMQ looks only at
    the last files, and neither at the place that a record names nor at its hosts."""
    for file in list_commit_log(source, allow_missing=True).files:
        data, position = source.read(file.name, 0, file.size_bytes), 0
        while True:
            item = item_at(data, position, file.start_offset, file.end_offset)
            at = file.start_offset + position
            if isinstance(item, Damage) and item.size and at < kept_to:
                position += item.size
                readable = decode(data, at - file.start_offset)
                if isinstance(readable, Record):
                    yield replace(readable, commit_log_offset=at)
            elif isinstance(item, Record):
                position += item.store_size
                yield item
            else:
                break
        if not isinstance(item, Blank | FileEnd):
            return


def _kept(source: LocalFileSource, line: Line, *, was_killed: bool) -> Outcomes:
    """Entries that recovery makes from the log, joined with those that are on disk. We make what is missing from all of the
    log; what RocketMQ does not make is left out, and before a queue's first file is deleted, its min is an old one."""
    name, records = line["name"], list(_records(source, line["maxPhyOffset"]))
    log_min = list_commit_log(source, allow_missing=True).files[0].start_offset
    log_max = records[-1].commit_log_offset + records[-1].store_size
    yield same(f"{name}: log", (log_min, log_max), (line["minPhyOffset"], line["maxPhyOffset"]))
    by_offset = {record.commit_log_offset: record for record in records if is_indexed(record.sys_flag)}
    readable: Readable = {}
    for record in by_offset.values():
        readable.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = record
    told = {(queue["topic"], queue["queueId"]): queue for queue in line["queues"]}
    on_disk = {(queue.topic, queue.queue_id): queue for queue in list_consume_queues(source)}
    on_files = {key: queue.bounds(log_min, log_max) for key, queue in on_disk.items()}
    yield from _made_from_one_place_on(name, readable, told, on_disk)
    if not was_killed:
        _made_behind(max((bounds.max_physical_offset for bounds in on_files.values()), default=0), readable, on_disk)
    bounds = {key: QueueBounds(0, 0, 0).with_log(_span(made)) for key, made in readable.items()}
    for key, queue in on_disk.items():
        made = readable.setdefault(key, {})
        bounds[key] = on_files[key].with_log(_span(made))
        begin, end = on_files[key].min_offset, on_files[key].max_offset
        for offset, entry in enumerate(queue.entries(begin, end), begin):
            if entry.commit_log_offset in by_offset:
                made[offset] = by_offset[entry.commit_log_offset]
    counts = sum(map(len, readable.values())), len(readable)
    yield same(f"{name}: readable, in queues", counts, (line["readable"], len(told)))
    for key, wanted in told.items():
        found = bounds[key].min_offset, bounds[key].max_offset, len(readable[key])
        first = found[0] if _is_old_min(wanted, on_disk.get(key), found[0]) else wanted["minOffset"]
        yield same(f"{name}: {key}", found, (first, wanted["maxOffset"], wanted["readable"]))
        if "lastCommitLogOffset" in wanted:
            last = readable[key][wanted["maxOffset"] - 1]
            ids = last.commit_log_offset, last.properties.get("UNIQ_KEY")
            yield same(f"{name}: last of {key}", ids, (wanted["lastCommitLogOffset"], wanted["lastUniqKey"]))


def _made_from_one_place_on(
    name: str, readable: Readable, told: dict[QueueKey, Line], on_disk: dict[QueueKey, ConsumeQueueFiles]
) -> Outcomes:
    """RocketMQ's recovery begins at one of the last log files, so a queue whose files are gone has only what lies behind.
    The rest is taken from ``readable``."""
    not_made: list[int] = []
    made: list[int] = []
    for key in readable.keys() - on_disk.keys():
        begin = told[key]["minOffset"] if key in told else max(readable[key]) + 1
        kept = {offset: record for offset, record in readable[key].items() if offset >= begin}
        made += [record.commit_log_offset for record in kept.values()]
        not_made += [record.commit_log_offset for offset, record in readable.pop(key).items() if offset < begin]
        if kept:
            readable[key] = kept
    place = min(made, default=max(not_made, default=0) + 1)
    yield same(f"{name}: not made, behind others that are", [offset for offset in not_made if offset >= place], [])


def _made_behind(end: int, readable: Readable, on_disk: dict[QueueKey, ConsumeQueueFiles]) -> None:
    """A broker that stopped well makes entries only of records that begin beyond the ``end`` of the last one with an entry
    (``CommitLog#recoverNormally``), which leaves out the very next."""
    for key in readable.keys() & on_disk.keys():
        written = on_disk[key].written()
        readable[key] = {
            offset: record
            for offset, record in readable[key].items()
            if offset in written or record.commit_log_offset > end
        }


def _is_old_min(wanted: Line, queue: ConsumeQueueFiles | None, min_offset: int) -> bool:
    """Whether a queue's min is that of a first file without any message that is left."""
    return queue is not None and wanted["minOffset"] < queue.files[0].end_offset // UNIT_BYTES <= min_offset


def _span(made: dict[int, Record]) -> range:
    return range(min(made), max(made) + 1) if made else range(0)


def _apply(folder: Path, edit: Line) -> None:
    """One edit of a recipe."""
    path = folder / (edit.get("file") or edit.get("path") or "")
    if edit["op"] == "delete":
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        return
    data = bytearray(path.read_bytes())
    match edit["op"]:
        case "zero":
            data[edit["from"] : edit["to"]] = bytes(edit["to"] - edit["from"])
        case "xor":
            data[edit["at"]] ^= edit["mask"]
        case "truncate":
            del data[edit["length"] :]
        case other:
            raise ValueError(f"unknown edit {other!r}")
    path.write_bytes(data)


# --- damaged offset files --------------------------------------------------------------------------------------------


def offset_file(line: Line, store: BrokerStore | None = None) -> Outcomes:
    """Which of ``consumerOffset.json`` and its ``.bak`` is used. Nothing is removed here: the answer says which."""
    said = f"{line['main']!r}, .bak {line['bak']!r}"
    with tempfile.TemporaryDirectory() as made:
        config = Path(made, "config")
        config.mkdir()
        for name, text in (("consumerOffset.json", line["main"]), ("consumerOffset.json.bak", line["bak"])):
            if text is not None:
                (config / name).write_text(text, encoding="utf-8")
        source = LocalFileSource(Path(made))
        before = source.list("")
        if not line["loaded"]:
            yield refused(said, BadData, lambda: read_consumer_offsets(source), "restore one of the two")
        else:
            found = read_consumer_offsets(source)
            # RocketMQ removes a main file that it could not use; we leave it and say so.
            used_main = found.used == "config/consumerOffset.json", "is readable" in found.note
            yield same(f"{said}: table", found.value.offset_table, offset_table(line["table"]))
            yield same(f"{said}: main file used", used_main, (line["mainExistsAfter"],) * 2)
        yield same(f"{said}: files", source.list(""), before)
        yield same(f"{said}: .bak stays", line["bak"] is not None, line["bakExistsAfter"])


check_recovery = by_kind({"basis": _basis, "recovery": recovered, "offsetFile": offset_file})
