"""A small store to break: a broker's files made by the codec, imported, and a group whose listener fails some messages."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.offset_moves import MoveReport
from rmq_store.admin.redrive import RedriveReport, RedriveRequest
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.commit.ctl import SCHEDULE_GROUP, Actor
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.admin.redrive import redrive
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Finding
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.sql.sql import queries
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consume_all import ConsumeAllReport, consume_all
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.deliver import DeliverReport
from tests.oracle.projection import Projection, projection

BROKER, SHARD, TOPIC, GROUP = "broker-a", "s1", "Orders", "billing"
QUEUES = 3
MESSAGES = 30
TESTS = Actor("tests", "tests")
OPERATOR = Actor("olga", "airflow")
REQUEST = "2026-01-01-r1"
LOG_FILE_BYTES = 64 << 10
FIRST_STORED_MS = 1_750_000_000_000
HOUR_MS = 3_600_000


# --- the broker's files ----------------------------------------------------------------------------------------------


def write_broker(folder: Path, messages: int = MESSAGES, *, port: int = 10911) -> Path:
    """A broker's store of one topic: message n stands in queue n % QUEUES. More messages are the same ones and more. A broker
    with another ``port`` is another one."""
    log = bytearray()
    for n in range(messages):
        log += encode(
            new_record(
                topic=TOPIC,
                queue_id=n % QUEUES,
                queue_offset=n // QUEUES,
                commit_log_offset=len(log),
                stored_body=b"order %d" % n,
                properties={"TAGS": "ABC"[n // QUEUES % 3], "KEYS": f"k{n}", "UNIQ_KEY": f"{n:032X}"},
                born_timestamp=FIRST_STORED_MS + n,
                store_timestamp=FIRST_STORED_MS + n,
                store_host=f"127.0.0.1|{port}",
            )
        )
    assert len(log) < LOG_FILE_BYTES
    (folder / "commitlog").mkdir(parents=True, exist_ok=True)
    (folder / "commitlog" / f"{0:020}").write_bytes(log.ljust(LOG_FILE_BYTES, b"\0"))
    return folder


# --- the group -------------------------------------------------------------------------------------------------------


def group_named(name: str = GROUP, **changes: object) -> GroupSettings:
    """Takes the tags A and B, so a third of the messages is filtered; a dead letter after two retries."""
    group = GroupSettings(
        name,
        "tests.faults.listeners:fail_some",
        (build_subscription_data(TOPIC, "A || B"),),
        max_reconsume_times=2,
        retry_queue_nums=2,
        consumers=2,
        listener_process=False,  # these runs are about commits, and many have a process of their own
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    return replace(group, **changes)  # type: ignore[arg-type]


# --- what a user would start -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lake:
    """A store at ``folder``, always opened anew, as another process would. The fields are what a run may vary."""

    folder: Path
    host: Host = field(default_factory=Host)
    shard_name: str = SHARD

    @property
    def store(self) -> LakeStore:
        return LakeStore.open(Root.parse(str(self.folder)))

    @property
    def shard(self) -> Shard:
        shard = Shard(self.store.root, self.shard_name)
        shard.commitlog.refresh()
        return shard

    def load(self, broker: Path, request: str = "2026-01-01-import", name: str = BROKER) -> ImportReport:
        store, _ = LakeStore.init(Root.parse(str(self.folder)))
        source, engine = Root.parse(str(broker)), LocalEngine(self.host)
        import_request = ImportRequest(broker_name=name, shard_name=self.shard_name, request_id=request, actor=TESTS)
        return import_store(store, source, import_request, self.host, engine)

    def consume(
        self,
        request: str = REQUEST,
        group: GroupSettings | None = None,
        *,
        actor: Actor = TESTS,
        slots: int = 1,
        max_messages: int | None = None,
    ) -> WindowReport:
        engine, store = LocalEngine(self.host, slots=slots), self.store
        wanted = ConsumeRequest(request, actor, max_messages=max_messages)
        return consume_window(
            store, Shard(store.root, self.shard_name), group or group_named(), wanted, lambda _: engine, self.host
        )

    def consume_all(self, request: str, *groups: GroupSettings) -> ConsumeAllReport:
        engine, wanted = LocalEngine(self.host), ConsumeRequest(request, TESTS)
        return consume_all(self.store, groups, wanted, lambda _: engine, self.host)

    def deliver(self, request: str = "2026-01-01-d1", *, after_ms: int = HOUR_MS) -> DeliverReport:
        """Everything that is due ``after_ms`` from now."""
        store = self.store
        now_ms = self.host.now_ms() + after_ms
        return deliver(store, Shard(store.root, self.shard_name), request, TESTS, self.host, now_ms=now_ms)

    def redrive(self, request: str = "2026-01-01-again") -> RedriveReport:
        """All dead letters of the group."""
        wanted = RedriveRequest(
            group=GROUP,
            dead_letters=DeadLetterFilter(all=True),
            request_id=request,
            actor=OPERATOR,
            reason="a test says so",
            retry_queue_nums=2,
        )
        return redrive(Shard(self.store.root, self.shard_name), wanted, self.host)

    def reset(self, request: str, offset: int, *, group: str = GROUP, actor: Actor = TESTS) -> MoveReport:
        wanted = ResetRequest(group, TOPIC, ResetTo.OFFSET, request, actor, "a test says so", offset)
        (report,) = move_in_all([(Shard(self.store.root, self.shard_name), wanted)], self.host)
        return report

    # --- what it holds ---

    def offsets(self, group: str = GROUP) -> dict[int, int]:
        """Queue id to next offset, of the topic."""
        moves = projection(self.shard, group).offsets
        return {queue.queue_id: offset for queue, offset in moves if queue.topic == TOPIC}

    def projections(self, *groups: str) -> list[Projection]:
        shard = self.shard
        return [projection(shard, group) for group in (groups or (GROUP, SCHEDULE_GROUP))]

    def rows(self, *views: str) -> dict[str, list[str]]:
        """The rows of each view, sorted, over one snapshot."""
        answers = queries(self.store, [f"SELECT * FROM {view}" for view in views])
        tables = [answer.to_pylist(maps_as_pydicts="lossy") for answer in answers]
        return {view: sorted(map(repr, table)) for view, table in zip(views, tables, strict=True)}

    def audit(self) -> list[Finding]:
        return audit(self.store)

    def commits(self, action: str, group: str | None = GROUP) -> list[str]:
        """The request ids of the commits of one kind, oldest first."""
        return [ctl.request_id for ctl in self.shard.ctls_since(0, group=group, action=action)]


def copied(lake: Lake, folder: Path) -> Lake:
    return replace(lake, folder=Path(shutil.copytree(lake.folder, folder)))
