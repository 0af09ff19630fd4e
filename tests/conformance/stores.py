"""``stores/NAME``: the store itself, which needs no expectation to be checked against: its parts tell of each other."""

from __future__ import annotations

from rmq_store.broker_files.broker_json import parse, render
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.log.consume_queue import entry_of
from rmq_store.log.record_encoder import encode
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Outcomes, same


def check(store: BrokerStore) -> Outcomes:
    yield from records_encode_to_their_bytes(store)
    yield from entries_are_what_their_records_make(store)
    yield from config_files_render_again(store)
    yield from imported(store)


def records_encode_to_their_bytes(store: BrokerStore) -> Outcomes:
    data = {file.start_offset: store.source.read(file.name, 0, file.size_bytes) for file in store.log.files}
    size = store.log.files[0].size_bytes
    for record in store.records:
        at = record.commit_log_offset
        start = at - at % size
        stored = data[start][at - start : at - start + record.store_size]
        yield same(f"bytes of the record at {at}", encode(record).hex(), stored.hex())


def entries_are_what_their_records_make(store: BrokerStore) -> Outcomes:
    for (topic, queue_id), queue in store.on_disk.items():
        made = store.made.get((topic, queue_id), {})
        bounds = queue.bounds(store.log.files[0].start_offset, store.log_end)
        for offset, entry in enumerate(queue.entries(bounds.min_offset, bounds.max_offset), bounds.min_offset):
            record = made.get(offset)
            found = record and entry_of(record, store.delays_ms)
            yield same(f"entry {offset} of {topic} {queue_id}", found, entry)


def config_files_render_again(store: BrokerStore) -> Outcomes:
    for path in sorted((store.folder / "config").glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        if text:
            yield same(f"config/{path.name}", render(parse(text)), text)


def imported(store: BrokerStore) -> Outcomes:
    report = store.imported.report
    yield same("records imported", report.messages, len(store.records))
    yield same("end of what was imported", report.end, store.log_end)
    yield same("audit", store.imported.rows("SELECT * FROM audit"), [])
    # A living broker's offsets are observed, not owned.
    yield same("offsets owned", [app_id for app_id, _ in store.positions.prefixed("off/")], [])
    (ctl,) = store.imported.shard.ctls_since(0, action="import")
    topics = {seen.queue.topic for seen in ctl.observed if seen.group == SCHEDULE_GROUP}
    yield same("topics of the schedule service", topics - {SCHEDULE_TOPIC}, set())
