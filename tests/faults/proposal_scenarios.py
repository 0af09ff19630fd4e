"""Requests of every kind, and the shards in which they meet, for the search of ``proposal_explorer.py``."""

from __future__ import annotations

from dataclasses import replace

from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.consumer.replay_name import replay_group
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, retry_topic
from rmq_store.window.consume_request import Scope
from tests.contract.world import group
from tests.faults.proposal_brokers import Cutover, HandBack, Import
from tests.faults.proposal_explorer import Dispatch, Scenario, Vacuum
from tests.faults.proposal_operations import DAY, Consume, Deliver, Operation, Redrive, Send
from tests.faults.proposal_upkeep import Attempt, Compact, Retain, Undo, clone, delete, reset

MINUTE, HOUR = 60_000, 3_600_000
LEASE_OVER, RUN_OVER = 3 * MINUTE, 60 * HOUR

Q0, Q1 = (MessageQueue("Orders", "b", n) for n in range(2))
NEW0, NEW1 = (MessageQueue("Orders", "b2", n) for n in range(2))
LEVEL = MessageQueue(SCHEDULE_TOPIC, "b", 2)
RETRIES = MessageQueue(retry_topic("g"), "b", 0)

G, H = group("g"), group("h")
ORDERLY = group("g", mode="orderly")
NEWER = group("g", {"Orders": "TagA"}, subscription_version=2)
ABSORBING = group("a", absorb_duplicates=AbsorbRule("KEYS", 7 * 24 * HOUR), max_messages=2)
REPLAY = replay_group("g", f"{DAY}-replay")

LOG = (Q0, Q0, Q1, Q1)
IMPORT = Import(name="import", broker="b", log=LOG, observed=(Observed("o", Q0, 1),))
IMPORTED = (IMPORT,)
FAILED = Consume(name="failed", group=G, failing=frozenset({(Q0, 0)}), dead=frozenset({(Q0, 1), (Q1, 0)}), most=3)
WITHOUT_GROUPS = (replace(IMPORT, observed=()),)
CONSUMED = (IMPORT, FAILED)
"""One message of Q1 is not consumed, one retry waits, two messages are dead letters."""
CONSUMED_BY_ALL = (IMPORT, Consume(name="all", group=G))
REPLAY_FACTS = (("replay_of", "g"), ("from_ms", 0), ("topic", "Orders"))
REPLAYED = (IMPORT, Consume(name="replay", group=group(REPLAY), scope=Scope(from_ms=0), facts=REPLAY_FACTS))
BROKER = Import(
    name="import",
    broker="b",
    log=(*LOG, LEVEL, RETRIES),
    observed=(Observed("o", Q0, 1), Observed(SCHEDULE_GROUP, LEVEL, 0)),
)
CUT_OVER = (BROKER, Cutover(name="cut", broker="b"))
OWNED = (*CUT_OVER, Consume(name="first", group=group("o"), most=1))

WINDOW = Consume(name="window", group=G, failing=frozenset({(Q1, 1), (Q0, 0)}))
OTHER_WINDOW = Consume(name="window-2", group=G)
AGAIN = Consume(name="window*", group=G)
"""Another attempt of the request ``window``."""
DELIVER, DELIVER_2 = Deliver(name="deliver"), Deliver(name="deliver-2")
REDRIVE, REDRIVE_2 = Redrive(name="redrive", group="g"), Redrive(name="redrive-2", group="g")
SEND = Send(name="send", topic="New", queue_ids=(0,), tries=2)
SEND_AGAIN = Send(name="send*", topic="New", queue_ids=(0,), tries=2)
SEND_2 = Send(name="send-2", topic="New", queue_ids=(0, 1), skew_ms=-50_000, tries=2)
MORE, MORE_2 = (
    Import(name=name, broker="b", log=(*LOG, Q0, Q1), observed=(Observed("o", Q0, 2),)) for name in ("more", "more-2")
)
MORE_BACK = Import(name="more", broker="b", log=(*BROKER.log, Q0), observed=(Observed("o", Q0, 2),))
CUTOVER, HAND_BACK = Cutover(name="cutover", broker="b"), HandBack(name="hand-back", broker="b")
CUTOVER_2 = Cutover(name="cutover-2", broker="b")
RESET, DELETE, CLONE = reset("reset", "g", "Orders"), delete("delete", "g"), clone("clone", "h", "g")
RETAIN = Retain(name="retain", removable=((Q0, 2), (Q1, 2)), tries=2)
LOSE = Retain(name="lose", removable=((Q0, 2), (Q1, 2)), unconsumed=True, archive=True, tries=2)
COMPACT, COMPACT_2 = Compact(name="compact"), Compact(name="compact-2")

# In a group that absorbs duplicates: the first message of each queue has the same key.
SAME_KEY = (((Q0, 0), "k"), ((Q1, 0), "k"))
ABSORB = tuple(
    Consume(name=f"absorb-{n}", group=ABSORBING, keys=SAME_KEY, client=f"c{n}", scope=Scope()) for n in (1, 2)
)
SUSPENDED = Consume(name="window", group=ORDERLY, waits=((Q0, 1),))
SUSPENDED_AGAIN = Consume(name="window*", group=ORDERLY, waits=((Q0, 1),))
BEGUN = Consume(name="begun", group=ORDERLY, most=1)
BLOCKED = Consume(name="window", group=ORDERLY, waits=((Q0, 1), (Q1, 0)))
TO_END = reset("reset", "g", "Orders", None)
AT_ONE = (IMPORT, Consume(name="all", group=G), reset("to-1", "g", "Orders", 1))
FIRST_AT_END = (IMPORT, reset("to-end", "g", "Orders", None, (Q0,)))
SKIPPED = (*CONSUMED, reset("to-end", "g", "Orders", None))
OWNED_AT_0 = (*OWNED, reset("to-0", "o", "Orders"))
UNDO, UNDO_2 = Undo(name="undo", group="g"), Undo(name="undo-2", group="g")
OLD_VERSION = Consume(name="window", group=G, client="c1")
NEW_VERSION = Consume(name="newer", group=NEWER, client="c2")
CLIENT_1, CLIENT_2 = Consume(name="window", group=G, client="c1"), Consume(name="window-2", group=G, client="c2")
IN_PARTS = Consume(name="window", group=group("g", max_messages=1), parts=2)
RENEWING = Consume(name="window", group=G, renews=True)
ATTEMPT, ATTEMPT_2 = Attempt(name="attempt", group=REPLAY), Attempt(name="attempt-2", group=REPLAY)
TRIMMED, TRIMMED_2 = (Import(name=name, broker="b", log=LOG, trimmed=5) for name in ("first", "first-2"))
NEW_NAME = Import(name="new-name", broker="b2", log=(NEW0, NEW0, NEW1, NEW0), continues=("b", 3))
NEW_NAME_2 = Import(name="new-name-2", broker="b2", log=(NEW0, NEW0, NEW1, NEW0), continues=("b", 3))
TO_TOPIC = Redrive(name="redrive", group="g", to_topic="Orders")
SEND_HERE = Send(name="send", topic="Orders", queue_ids=(1,))
VACUUM, VACUUM_2 = Vacuum(name="vacuum"), Vacuum(name="vacuum-2")
DISPATCH, DISPATCH_2 = Dispatch(name="dispatch"), Dispatch(name="dispatch-2")
SLOW = Consume(name="slow", group=H, most=2)

DUE = 20_000

SCENARIOS: dict[str, Scenario] = {
    "two windows": Scenario((WINDOW, OTHER_WINDOW), IMPORTED, ticks=(LEASE_OVER,)),
    "two attempts": Scenario((WINDOW, AGAIN), IMPORTED),
    "a window and a reset": Scenario((WINDOW, RESET), CONSUMED),
    "a window and a delete": Scenario((WINDOW, DELETE), CONSUMED),
    "a window and a clone": Scenario((Consume(name="window", group=H), CLONE), CONSUMED),
    "a window and its source": Scenario((WINDOW, CLONE), CONSUMED),
    "a window and a delivery": Scenario((WINDOW, DELIVER), CONSUMED, DUE),
    "a window and a redrive": Scenario((WINDOW, REDRIVE), CONSUMED),
    "a window and an import": Scenario((WINDOW, MORE), CONSUMED),
    "a window and a send": Scenario((WINDOW, SEND_HERE), CONSUMED),
    "a window and a cut-over": Scenario((Consume(name="window", group=group("o")), CUTOVER), IMPORTED),
    "a window and a hand-back": Scenario((WINDOW, HAND_BACK), CUT_OVER),
    "an owned window and a hand-back": Scenario((Consume(name="window", group=group("o")), HAND_BACK), OWNED),
    "a client and a hand-back": Scenario((Consume(name="window", group=group("o"), client="c2"), HAND_BACK), CUT_OVER),
    "a window and retention": Scenario((SLOW, RETAIN), CONSUMED_BY_ALL),
    "a window and loss": Scenario((WINDOW, LOSE), CONSUMED),
    "a window and a compaction": Scenario((WINDOW, COMPACT), CONSUMED),
    "a window and a vacuum": Scenario((WINDOW, VACUUM), IMPORTED, ticks=(RUN_OVER,)),
    "two clients": Scenario((CLIENT_1, CLIENT_2), IMPORTED),
    "two subscriptions": Scenario((OLD_VERSION, NEW_VERSION), IMPORTED),
    "a suspended queue": Scenario((SUSPENDED, SUSPENDED_AGAIN), IMPORTED),
    "absorbed keys": Scenario(ABSORB, IMPORTED, ticks=(LEASE_OVER,)),
    "parts and a reset": Scenario((IN_PARTS, RESET), IMPORTED),
    "parts, twice": Scenario((IN_PARTS, replace(IN_PARTS, name="window*")), IMPORTED),
    "a renewal": Scenario((RENEWING, OTHER_WINDOW), IMPORTED, ticks=(LEASE_OVER,)),
    "two deliveries": Scenario((DELIVER, DELIVER_2), CONSUMED, DUE, ticks=(LEASE_OVER,)),
    "a delivery and a hand-back": Scenario((DELIVER, HAND_BACK), CUT_OVER),
    "a delivery and a cut-over": Scenario((DELIVER, CUTOVER), (BROKER, FAILED), DUE),
    "a delivery and a delete": Scenario((DELIVER, DELETE), CONSUMED, DUE),
    "a delivery and retention": Scenario((DELIVER, RETAIN), CONSUMED, DUE),
    "two redrives": Scenario((REDRIVE, REDRIVE_2), CONSUMED, ticks=(LEASE_OVER,)),
    "a redrive in parts": Scenario(
        (Redrive(name="redrive", group="g", at_once=1, parts=2), Redrive(name="redrive*", group="g")), CONSUMED
    ),
    "a redrive and a delete": Scenario((REDRIVE, DELETE), CONSUMED),
    "a redrive and a reset": Scenario((REDRIVE, RESET), CONSUMED),
    "a redrive and a send": Scenario((TO_TOPIC, SEND_HERE), CONSUMED),
    "two sends": Scenario((SEND, SEND_2)),
    "a send, twice": Scenario((SEND, SEND_AGAIN)),
    "two imports": Scenario((MORE, MORE_2), IMPORTED, ticks=(LEASE_OVER,)),
    "two first imports": Scenario((TRIMMED, TRIMMED_2), ticks=(LEASE_OVER,)),
    "an import and a cut-over": Scenario((MORE, CUTOVER), IMPORTED, ticks=(LEASE_OVER,)),
    "an import and a hand-back": Scenario((MORE_BACK, HAND_BACK), CUT_OVER, ticks=(LEASE_OVER,)),
    "two cut-overs": Scenario((CUTOVER, CUTOVER_2), IMPORTED, ticks=(LEASE_OVER,)),
    "two cut-overs without groups": Scenario((CUTOVER, CUTOVER_2), WITHOUT_GROUPS, ticks=(LEASE_OVER,)),
    "two hand-backs without groups": Scenario(
        (HAND_BACK, replace(HAND_BACK, name="hand-back-2")), (*WITHOUT_GROUPS, CUTOVER_2), ticks=(LEASE_OVER,)
    ),
    "a new name without groups, twice": Scenario((NEW_NAME, NEW_NAME_2), WITHOUT_GROUPS, ticks=(LEASE_OVER,)),
    "a cut-over and a hand-back": Scenario((CUTOVER, HAND_BACK), CUT_OVER, ticks=(LEASE_OVER,)),
    "two hand-backs": Scenario((HAND_BACK, replace(HAND_BACK, name="hand-back-2")), OWNED, ticks=(LEASE_OVER,)),
    "a cut-over and retention": Scenario((CUTOVER, RETAIN), IMPORTED),
    "a cut-over and a delete": Scenario((CUTOVER, delete("delete", "o")), IMPORTED),
    "a hand-back and a delete": Scenario((HAND_BACK, delete("delete", "o")), OWNED),
    "a hand-back and a reset": Scenario((HAND_BACK, reset("reset", "o", "Orders")), OWNED),
    "a new name, twice": Scenario((NEW_NAME, NEW_NAME_2), CONSUMED, ticks=(LEASE_OVER,)),
    "a new name and the old one": Scenario((NEW_NAME, MORE), CONSUMED, ticks=(LEASE_OVER,)),
    "a new name and a cut-over": Scenario((NEW_NAME, CUTOVER), CONSUMED, ticks=(LEASE_OVER,)),
    "a new name and a reset": Scenario((NEW_NAME, RESET), CONSUMED),
    "a new name and a delete": Scenario((NEW_NAME, DELETE), CONSUMED),
    "a new name and a window": Scenario((NEW_NAME, WINDOW), CONSUMED),
    "two resets": Scenario((RESET, reset("reset-2", "g", "Orders", None)), CONSUMED),
    "a reset and a clone": Scenario((reset("reset", "h", "Orders"), CLONE), CONSUMED),
    "a reset and a delete": Scenario((RESET, DELETE), CONSUMED),
    "a reset and retention": Scenario((RESET, RETAIN), CONSUMED_BY_ALL),
    "two deletes": Scenario((DELETE, delete("delete-2", "g")), CONSUMED),
    "a client and a delete": Scenario((CLIENT_2, DELETE), (IMPORT, CLIENT_1)),
    "a suspended queue and a delete": Scenario((BLOCKED, DELETE), (IMPORT, BEGUN)),
    "a reset to the same offset and a delete": Scenario((TO_END, DELETE), CONSUMED_BY_ALL),
    "a reset to the same offset and a window": Scenario((WINDOW, reset("reset", "g", "Orders", 1)), AT_ONE),
    "a reset to the same offset and a hand-back": Scenario((reset("reset", "o", "Orders"), HAND_BACK), OWNED_AT_0),
    "a window and an undo": Scenario((WINDOW, UNDO), AT_ONE),
    "a reset to the same offset and an undo": Scenario((UNDO, reset("reset", "g", "Orders", 1)), AT_ONE),
    "an undo and retention": Scenario((UNDO, RETAIN), SKIPPED),
    "a first window and an undo": Scenario((WINDOW, UNDO), FIRST_AT_END),
    "an undo and a delete": Scenario((UNDO, DELETE), AT_ONE),
    "two undos": Scenario((UNDO, UNDO_2), AT_ONE),
    "two attempts of a replay": Scenario((ATTEMPT, ATTEMPT_2), REPLAYED),
    "two retentions": Scenario((RETAIN, LOSE), CONSUMED),
    "two compactions": Scenario((COMPACT, COMPACT_2), CONSUMED),
    "two vacuums": Scenario((SEND, VACUUM, VACUUM_2), ticks=(RUN_OVER,)),
    "two dispatches": Scenario((SEND, DISPATCH, DISPATCH_2)),
    "two clocks": Scenario((SEND, replace(SEND_2, skew_ms=-50_000), replace(SEND, name="send-3", skew_ms=-20_000))),
    "three windows": Scenario((WINDOW, AGAIN, OTHER_WINDOW), IMPORTED),
    "two attempts and a reset": Scenario((WINDOW, AGAIN, RESET), CONSUMED),
    "three sends": Scenario((SEND, SEND_AGAIN, SEND_2)),
}

SHARDS: dict[str, tuple[tuple[Operation, ...], int]] = {
    "imported": (IMPORTED, 0),
    "consumed": (CONSUMED, DUE),
    "cut over": (CUT_OVER, 0),
    "owned": (OWNED, 0),
}
"""What was before, and how many ms ago."""

EVERYTHING: tuple[Operation, ...] = (
    WINDOW, OTHER_WINDOW, AGAIN, CLIENT_2, NEW_VERSION, SLOW, *ABSORB, DELIVER, DELIVER_2, REDRIVE, REDRIVE_2, SEND, SEND_2,
    MORE_BACK, NEW_NAME, CUTOVER, HAND_BACK, RESET, TO_END, DELETE, CLONE, UNDO, RETAIN, LOSE, COMPACT, VACUUM, DISPATCH,
)  # fmt: skip
