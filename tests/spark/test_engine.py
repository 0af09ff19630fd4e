"""Windows and imports run by Spark, classic and Connect, do what they do in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_jobs.session import ConnectServer
from tests.spark.processes import ClassicDriver, in_a_client

STREET = """
from dataclasses import replace
from unittest.mock import patch
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.lake.audit.full import full
from rmq_store.lake.sql.sql import query
from rmq_store.lake.window import duplicates
from rmq_store.errors import RmqError
from rmq_store.utils.host import Host
from rmq_store.lake.window.consume_all import consume_all
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.table.object_store import Root
from tests.oracle.projection import projection
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.window import consume_window
from rmq_store.window.plan import ConsumeRequest
from rmq_store.settings.settings import load_settings
from rmq_store.commit.ctl import Actor
from spark_jobs.engine import SparkEngine

where, broker = arguments
SETTINGS = '''
[[group]]
name = "{name}"
listener = "tests.spark.street_listener:{listener}"
consume_message_batch_max_size = 16
max_reconsume_times = 1
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[[group.subscription]]
topic = "PaymentFlow"
'''
host, me = Host(), Actor("tests", "tests")

def street(folder, engine):
    store, _ = LakeStore.init(Root.parse(f"{where}/{folder}"), levels="1s 1s 1s 1s")
    request = ImportRequest(broker_name="broker-a", shard_name="s1", request_id="2026-01-01-i", actor=me)
    imported = import_store(store, Root.parse(broker), request, host, engine)
    (shard,) = store.shards()
    found = {"messages": imported.messages}
    for listener in ("each", "batch"):
        group = load_settings(SETTINGS.format(name=f"gm_{listener}", listener=listener), "test").groups[0]
        for step in ("first", "again"):
            request = ConsumeRequest(f"2026-01-01-{listener}-{step}", me)
            report = consume_window(store, shard, group, request, lambda plan: engine, host)
            found[f"{listener} {step}"] = {str(k): v for k, v in report.counts().items() if v}
            deliver(store, shard, f"2026-01-01-d-{listener}-{step}", me, host, now_ms=host.now_ms() + 60_000)
        found[f"{listener} projection"] = repr(projection(shard, group.name))
    ending = load_settings(SETTINGS.format(name="gm_exits", listener="exits"), "test").groups[0]
    request = ConsumeRequest("2026-01-01-exits", me, max_messages=40)
    ended = consume_window(store, shard, ending, request, lambda plan: engine, host)
    found["exits"] = {str(k): v for k, v in ended.counts().items() if v}
    dying = load_settings(SETTINGS.format(name="gm_dies", listener="dies"), "test").groups[0]
    report = consume_window(
        store, shard, dying, ConsumeRequest("2026-01-01-dies", me, max_messages=40), lambda plan: engine, host
    )
    found["dies"] = {str(k): v for k, v in report.counts().items() if v}
    found["dies projection"] = repr(projection(shard, dying.name))
    bad = load_settings(SETTINGS.format(name="gm_nonsense", listener="nonsense"), "test").groups[0]
    try:
        consume_window(store, shard, bad, ConsumeRequest("2026-01-01-bad", me), lambda plan: engine, host)
    except RmqError as error:
        found["nonsense"] = [type(error).__name__, str(error)]
    audited = full(store, engine)
    found["full audit"] = [audited.findings, audited.rows, audited.copies, audited.ranges]
    return found

def together(folder, engine):  # several groups, whose windows run in threads
    store = LakeStore.open(Root.parse(f"{where}/{folder}"))
    listeners = ["each", "batch", "nonsense", "each", "batch"]
    groups = [
        load_settings(SETTINGS.format(name=f"all_{number}", listener=listener), "test").groups[0]
        for number, listener in enumerate(listeners)
    ]
    report = consume_all(store, groups, ConsumeRequest("2026-01-01-all", me), lambda plan: engine, host, threads=3)
    (shard,) = store.shards()
    shard.commitlog.refresh()
    return {
        one.group: [one.status, one.messages, type(one.error).__name__, repr(projection(shard, one.group))]
        for one in report.groups
    }

def absorbing(folder, engine):  # two windows, the second with keys of the first
    store = LakeStore.open(Root.parse(f"{where}/{folder}"))
    (shard,) = store.shards()
    group = load_settings(SETTINGS.format(name="gm_once", listener="each"), "test").groups[0]
    group = replace(group, absorb_duplicates=AbsorbRule("price", 86_400_000))
    counts = []
    for step in ("first", "second"):
        request = ConsumeRequest(f"2026-01-01-once-{step}", me, max_messages=450)
        report = consume_window(store, shard, group, request, lambda plan: engine, host)
        counts.append({str(k): v for k, v in report.counts().items() if v})
    keys = query(store, "SELECT key_text, topic, queue_id, queue_offset FROM acked_keys WHERE group_name = 'gm_once'")
    return counts, sorted(map(repr, keys.to_pylist())), repr(projection(shard, group.name))

engine = SparkEngine.of(session)
in_spark = street("spark", engine)
in_process = street("local", LocalEngine(host))
counts = {key: value for key, value in in_spark.items() if "projection" not in key}
groups = together("spark", engine)
all_same = groups == together("local", LocalEngine(host))
ends = {name: values[:3] for name, values in groups.items()}
answer = {"same": in_spark == in_process, "counts": counts, "all_same": all_same, "ends": ends}

once_here = absorbing("local", LocalEngine(host))
with patch.multiple(duplicates, LEAST_MESSAGES=0, LEAST_KEYS=0):  # all work on keys in tasks
    once = absorbing("spark", replace(engine, on_cluster=True))
answer |= {"on_cluster": engine.on_cluster, "once": once[:2], "once_same": once == once_here}
"""


def check(output: dict[str, Any]) -> None:
    counts = output["counts"]
    assert output["same"]
    assert counts["messages"] == 10027
    assert counts["each first"] == counts["batch first"]
    assert counts["each first"]["acked"] + counts["each first"]["retried"] == 900
    assert counts["each again"] == {"dead": counts["each first"]["retried"]}
    assert counts["exits"] == {"retried": 40}
    assert sum(counts["dies"].values()) == 40
    assert 0 < counts["dies"]["retried"] < 40
    assert counts["nonsense"][0] == "ListenerError"
    assert "MAYBE" in counts["nonsense"][1]
    assert counts["full audit"][0] == []
    assert counts["full audit"][1] > 10027  # the copies of failed messages too
    assert not output["on_cluster"]
    assert output["once_same"]
    (first, second), keys = output["once"]
    assert sum(first.values()) == sum(second.values()) == 450
    assert all(of_window["duplicate"] > 100 for of_window in (first, second))
    assert len(keys) > 200
    assert output["all_same"]
    committed = ["committed", 900, "NoneType"]
    failed = ["empty", 0, "ListenerError"]
    assert output["ends"] == dict.fromkeys(("all_0", "all_1", "all_3", "all_4"), committed) | {"all_2": failed}


def test_spark_does_what_this_process_does(
    classic_driver: ClassicDriver, broker_store: Callable[[str], Path], tmp_path: Path
) -> None:
    check(classic_driver.run(STREET, str(tmp_path), str(broker_store("market-clean"))))


def test_a_connect_server_does_what_this_process_does(
    connect_server: ConnectServer, broker_store: Callable[[str], Path], tmp_path: Path
) -> None:
    check(in_a_client(connect_server.remote, STREET, str(tmp_path), str(broker_store("market-clean"))))
