"""The whole street on a folder and on a real S3 server: import, window, retry, delivery, dead letter, offsets, SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import Actor
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.settings.settings import GroupSettings, load_settings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest
from tests.s3 import S3Root

TESTS = Actor("tests", "tests")
SETTINGS = """
[[group]]
name = "gm_street"
listener = "tests.contract.test_street:fail_every_poisoned"
consume_message_batch_max_size = 8
max_reconsume_times = 1
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"

[[group.subscription]]
topic = "PaymentFlow"
expression = "TagA || TagB"
"""


def fail_every_poisoned(msgs: list[Any], context: Any) -> Iterator[str]:
    """Fails what the scripted consumers of the real broker failed: messages with a plan."""
    for message in msgs:
        yield "RECONSUME_LATER" if message.get_property("plan") else "CONSUME_SUCCESS"


class Street:
    def __init__(self, root: Root, broker: Root) -> None:
        self.host = Host()
        self.store, _ = LakeStore.init(root, levels="1s 1s 1s 1s 1s")
        self.group: GroupSettings = load_settings(SETTINGS, "test").groups[0]
        engine = LocalEngine(self.host)
        request = ImportRequest(broker_name="broker-a", shard_name="s1", request_id="2026-01-01-i", actor=TESTS)
        self.imported = import_store(self.store, broker, request, self.host, engine)
        (self.shard,) = self.store.shards()

    def consume(self, request: str) -> WindowReport:
        asked = ConsumeRequest(request, TESTS)
        return consume_window(self.store, self.shard, self.group, asked, lambda plan: LocalEngine(self.host), self.host)

    def deliver_all_due_in_an_hour(self, request: str) -> int:
        now_ms = self.host.now_ms() + 3_600_000
        return deliver(self.store, self.shard, request, TESTS, self.host, now_ms=now_ms).delivered

    def ask(self, text: str) -> list[dict[str, Any]]:
        table: list[dict[str, Any]] = query(self.store, text).to_pylist()
        return table


def test_messages_of_a_real_broker_are_consumed_retried_and_die_and_sql_proves_it(
    root: Root, broker_store: Callable[[str], Path]
) -> None:
    street = Street(root, Root.parse(str(broker_store("market-clean"))))
    wanted = street.ask(
        "SELECT count(*) AS n, count(*) FILTER (properties['plan'] IS NOT NULL) AS bad FROM messages "
        "WHERE topic = 'PaymentFlow' AND tags IN ('TagA', 'TagB')"
    )[0]
    assert wanted["bad"] > 10

    first = street.consume("2026-01-01-a")
    assert first.status == "committed"
    assert {str(outcome): count for outcome, count in first.counts().items() if count} == {
        "acked": wanted["n"] - wanted["bad"],
        "filtered": 900 - wanted["n"],
        "retried": wanted["bad"],
    }
    assert street.consume("2026-01-01-a").status == "already_committed"

    assert street.deliver_all_due_in_an_hour("2026-01-01-d") == wanted["bad"]
    second = street.consume("2026-01-01-b")
    assert {str(outcome): count for outcome, count in second.counts().items() if count} == {"dead": wanted["bad"]}
    assert street.consume("2026-01-01-c").status == "empty"

    assert street.ask("SELECT count(*) AS n FROM dead_letters WHERE group_name = 'gm_street'") == [{"n": wanted["bad"]}]
    assert street.ask("SELECT sum(lag) AS lag FROM lag WHERE group_name = 'gm_street'")[0]["lag"] == 0
    assert street.ask("SELECT * FROM audit") == []


@pytest.mark.slow
def test_a_brokers_files_are_imported_from_s3(
    s3_root: S3Root, tmp_path: Path, broker_store: Callable[[str], Path]
) -> None:
    folder = broker_store("market-killed")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            s3_root.root.create_exclusively(f"broker/{path.relative_to(folder).as_posix()}", path.read_bytes())
    source = Root.parse(f"{s3_root.uri}/broker", s3_root.env)
    street = Street(Root.parse(str(tmp_path / "lake")), source)
    assert street.imported.messages == 5360
