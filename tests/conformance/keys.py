"""``expected/NAME.keys``: which messages have a key, asked in SQL (rules 13.5): the newest 64, in log order.

A broker's index knows hashes only, and has one entry for each time that a message names a key: what it finds may be of
another key, and the same message twice. A client keeps what has the key, once. A line may hold the one or the other.

The index of a killed broker is a remnant: it lacks the files that were not flushed whole, up to where recovery begins, and
has twice what recovery made again.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rmq_store.message.properties import tags_code
from rmq_store.message.sys_flag import MessageSysFlag
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, same

MOST = 64
ALL_KEYS = f"""
WITH indexed AS (
    SELECT * FROM msg
    WHERE sys_flag & {MessageSysFlag.TRANSACTION_ROLLBACK_TYPE} != {MessageSysFlag.TRANSACTION_ROLLBACK_TYPE}
),
named AS (
    SELECT topic, unnest(string_split(keys, ' ')) AS key, commit_log_offset FROM indexed WHERE keys IS NOT NULL
    UNION ALL
    SELECT topic, unique_key, commit_log_offset FROM indexed WHERE unique_key IS NOT NULL
)
SELECT topic, key, list(commit_log_offset ORDER BY commit_log_offset) AS entries FROM named GROUP BY topic, key
"""

INDEX_HEADER = struct.Struct(">qqqq")
"""Of an index file: store times of its first and last message, their offsets in the log."""

CHECKPOINT = struct.Struct(">qqq")
"""Store times of the last message flushed into the log, the queues, the index."""

Entries = Mapping[tuple[str, str], list[int]]


def check(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    entries = {(row["topic"], row["key"]): row["entries"] for row in store.imported.rows(ALL_KEYS) if row["key"]}
    yield from (_killed if store.was_killed else _whole)(lines, entries, store)


def _whole(lines: Sequence[Line], entries: Entries, store: BrokerStore) -> Outcomes:
    alike = defaultdict(list)
    for name in entries:
        alike[index_hash(*name)].append(name)
    for line in lines:
        name, told = (line["topic"], line["key"]), line["commitLogOffsets"]
        of_hash = sorted(offset for other in alike[index_hash(*name)] for offset in entries[other])[-MOST:]
        of_key = sorted(set(entries.get(name, [])))[-MOST:]
        yield same(f"messages of {name}", of_hash if told == of_hash else of_key, told)


def _killed(lines: Sequence[Line], entries: Entries, store: BrokerStore) -> Outcomes:
    """What is missing is one stretch of the log, in files of the index that were not whole."""
    found = [sorted(set(entries.get((line["topic"], line["key"]), []))) for line in lines]
    unsafe = list(_not_whole(store))
    missing = {
        offset
        for line, offsets in zip(lines, found, strict=True)
        if len(line["commitLogOffsets"]) < MOST
        for offset in set(offsets) - set(line["commitLogOffsets"])
        if any(offset in stretch for stretch in unsafe)
    }
    lost = range(min(missing), max(missing) + 1) if missing else range(0)
    for line, offsets in zip(lines, found, strict=True):
        told = line["commitLogOffsets"]
        kept = [offset for offset in offsets if offset not in lost][-MOST:]
        once = sorted(set(told))
        yield same(f"messages of {line['topic'], line['key']}", kept[-len(once) :] if len(told) == MOST else kept, once)


def _not_whole(store: BrokerStore) -> Iterator[range]:
    """Stretches of the log whose index files recovery throws away (``IndexService#load``)."""
    checkpoint = store.folder / "checkpoint"
    *_, flushed_ms = CHECKPOINT.unpack_from(checkpoint.read_bytes()) if checkpoint.exists() else (0,)
    for path in (store.folder / "index").glob("*"):
        _, last_ms, first, last = INDEX_HEADER.unpack_from(path.read_bytes())
        if last_ms > flushed_ms:
            yield range(first, last + 1)


def index_hash(topic: str, key: str) -> int:
    """What an index entry keeps of a key (``IndexFile#indexKeyHashMethod``)."""
    code = abs(tags_code(f"{topic}#{key}"))
    return code if code < 1 << 31 else 0
