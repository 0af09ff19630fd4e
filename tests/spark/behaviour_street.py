"""The scripted consumers of a store's ``behaviour/`` in Spark's windows, and the same in memory (``test_behaviour.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmq_store.commit.positions import QueueRange
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest, Scope
from tests.conformance import scripts
from tests.conformance.broker_store import BROKER, BrokerStore
from tests.conformance.checks import Line, read_lines
from tests.conformance.groups import is_broadcasting, is_in_order
from tests.conformance.rerun import Cuts, Life, Rerun, began_ms, settings_of
from tests.contract.engines import LakeWorld
from tests.contract.world import ANA, DAY, World

SPAN_MS = 24 * 3_600_000
"""Long enough for every retry of these groups."""


_CLOCKS: list[Callable[[], int]] = []


class ClockedRoot(Root):
    """The root of an ``EngineWorld``, by the world's clock. Tasks take it along, so it holds none itself."""

    __slots__ = ()

    def server_time_ms(self, host: Host) -> int:
        return _CLOCKS[-1]()


class EngineWorld(LakeWorld):
    """A lake with a broker's messages, whose windows run where ``engine`` says."""

    name = "engine"

    def __init__(self, store: BrokerStore, folder: Path, engine: Engine) -> None:
        World.__init__(self)
        self.clock.now_ms = began_ms(store)
        _CLOCKS.append(self.store_clock)
        self.root = ClockedRoot.parse(str(folder))
        self.store, _ = LakeStore.init(self.root, levels=store.levels.text)
        source, local = Root.parse(str(store.folder)), LocalEngine(self.host)
        request = ImportRequest(broker_name=BROKER, shard_name=BROKER, request_id=f"{DAY}-import", actor=ANA)
        import_store(self.store, source, request, self.host, local)
        (self._shard,) = self.store.shards()
        self._at_work, self._ctls, self._engine = 0, (("", -1), []), engine

    def cuts(self) -> Cuts:
        positions = self.positions()
        whole = [QueueRange(queue, 0, positions.max_offset(queue)) for queue in positions.all_queues()]
        return {
            queue: [(segment.base or 0, (segment.base or 0) + segment.count) for segment in segments]
            for queue, segments in segments_of(self.shard, whole).items()
        }

    def consume_window(self, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope) -> WindowReport:
        with self._working() as shard:
            return consume_window(self.store, shard, group, request, lambda plan: self._engine, host=host, scope=scope)


def run(data: Path, folder: Path, name: str, work: Path, engine: Engine) -> dict[str, Any]:
    """Every group that fails in batches, is in order or has several members: in what the engines differ, and how the
    messages that failed ended in ``engine``."""
    store = BrokerStore(name, folder, work / "reference", lambda kind: read_lines(_lines_of(data, name, kind)))
    world = EngineWorld(store, work / "lake", engine)
    report: dict[str, Any] = {}
    members = Counter(group["group"] for group in store.lines("groups"))
    for group in {group["group"]: group for group in store.lines("groups")}.values():
        several = members[group["group"]] > 1
        fails_in_batches = group["batchMax"] > 1 and group["script"] != "always"
        if is_broadcasting(group) or not (several or fails_in_batches or is_in_order(group)):
            continue
        settings = _settings(group, members[group["group"]])
        in_memory = Rerun.in_memory(settings, store, world.cuts())
        in_engine = Rerun(settings, world, store.levels, in_memory.queues)
        lives, expected = (rerun.run(_never_asked, SPAN_MS) for rerun in (in_engine, in_memory))
        report[group["group"]] = {
            "script": group["script"],
            "members": members[group["group"]],
            "differ": sorted(key for key in lives.keys() | expected.keys() if lives.get(key) != expected.get(key)),
            "same offsets": in_engine.offsets() == in_memory.offsets(),
            "reached": sum(offset or 0 for offset in in_engine.offsets().values()),
            "ends": _ends(lives),
        }
    return report


def _settings(group: Line, members: int) -> GroupSettings:
    """Under another name: the lake has the broker's retries and dead letters of the group itself."""
    function = scripts.script_named(group["script"])
    return settings_of(
        group,
        name=f"{group['group']}_again",
        listener=f"{scripts.__name__}:{function.__name__}",
        consume_message_batch_max_size=group["batchMax"],
        consumers=members,
    )


def _never_asked(msgs: Any, context: Any) -> Any:
    raise AssertionError("the listener is named in the settings")


def _ends(lives: dict[str, Life]) -> dict[str, int]:
    return dict(Counter(life.final for life in lives.values()))


def _lines_of(data: Path, name: str, kind: str) -> Path:
    return data / "behaviour" / f"{name}.{kind}.jsonl.gz"
