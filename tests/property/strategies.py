"""Which histories there are, and who takes part in them."""

from __future__ import annotations

from itertools import chain
from typing import Any

from hypothesis import strategies as st

from rmq_store.admin.reset import ResetTo
from rmq_store.consumer.allocate_rule import AllocateRule
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.duplicates import AbsorbRule
from tests.contract.world import HOUR
from tests.property.answers import Says
from tests.property.histories import GROUPS, SQL, STEPS, SUSPEND, TAGS, TOPICS, Cast
from tests.property.steps import (
    Again,
    Clone,
    Consume,
    Crash,
    Deliver,
    Fill,
    FollowUp,
    Meanwhile,
    Race,
    Redrive,
    Replay,
    Reset,
    Round,
    Send,
    Trim,
    Undo,
)

FORMS = ("success", "success", "list", "yield", "ack_index", "fails_at", "yield_fails", "later", "none", "raises")
SAYS = st.builds(
    Says,
    st.sampled_from(FORMS),
    st.integers(-1, 7),
    st.sampled_from([0, 0, 0, 1, 2, 4, 18, 99, -1]),
    st.sampled_from(["SUCCESS", "SUCCESS", "SUCCESS", SUSPEND, SUSPEND, "COMMIT", "ROLLBACK", "none", "raises"]),
    st.sampled_from([True, True, False]),
)


_OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "billing": {"retry_queue_nums": st.sampled_from([1, 3, 0]), "all_or_nothing": st.booleans()},
    "ordered": {"mode": st.just("orderly"), "suspend_tries_per_window": st.integers(1, 4)},
    "once": {"absorb_duplicates": st.just(AbsorbRule("KEYS", 300 * 24 * HOUR))},
    "prices": {"retry_queue_nums": st.sampled_from([1, 2])},
    "radio@a": {"message_model": st.just(MessageModel.BROADCASTING)},
    "radio@b": {"message_model": st.just(MessageModel.BROADCASTING)},
}
_EVERYBODY: dict[str, st.SearchStrategy[Any]] = {
    "consume_message_batch_max_size": st.integers(1, 4),
    "max_reconsume_times": st.sampled_from([1, 2, -1, 0, 3]),
    "on_offset_out_of_range": st.sampled_from(["skip", "skip", "stop"]),
    "max_messages": st.sampled_from([None, None, 4]),
    "consumers": st.integers(1, 3),
    "allocate_strategy": st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]).map(AllocateRule),
}


def _options(name: str) -> st.SearchStrategy[dict[str, Any]]:
    topics = TOPICS if name in ("billing", "ordered") else TOPICS[:1]
    expressions = SQL if name == "prices" else TAGS
    reads = st.fixed_dictionaries({topic: st.sampled_from(expressions) for topic in topics})
    return st.fixed_dictionaries({"reads": reads, **_EVERYBODY, **_OPTIONS[name]})


_names = st.sampled_from(GROUPS)
_topics = st.sampled_from(["Orders", "Orders", "Orders", "Bills"])
FILLS = st.builds(
    Fill,
    _topics,
    st.integers(0, 2),
    st.lists(st.sampled_from(["TagA", "TagB", None]), min_size=1, max_size=7).map(tuple),
    st.sampled_from([0, 0, 0, 0, 2]),
    st.sampled_from([60, 90, 5]),
)
_delays = st.sampled_from([None, None, None, 1, 3, 1500, 90_000])
SENDS = st.builds(Send, _topics, st.lists(_delays, min_size=1, max_size=6).map(tuple))
_consumes = st.builds(Consume, _names, st.integers(0, 7))
_deliveries = st.builds(Deliver, st.sampled_from([10, 30, 60, 3600, 1]), st.sampled_from([1000, 1000, 3, 1]))
_resets = st.builds(Reset, _names, _topics, st.sampled_from(ResetTo), st.integers(0, 1000), st.booleans())
_clones = st.builds(Clone, _names, _names, st.sampled_from([None, "Orders", "Bills"]))
_undos = st.builds(Undo, _names, st.booleans())
_redrives = st.builds(Redrive, st.sampled_from(["billing", "ordered", "once", "prices"]), st.sampled_from([None, 1, 2]))
_replays = st.builds(Replay, st.sampled_from([120, 70, 60, 10]))
_follow_ups = st.builds(FollowUp, st.integers(0, 2), st.booleans())
_again = st.builds(Again, st.integers(0, 20))
_jobs = st.one_of(_consumes, _consumes, _deliveries)
_crashes = st.builds(Crash, st.sampled_from([*STEPS, "5.put"]), _jobs)
_quick = st.one_of(_consumes, _consumes, _deliveries, _resets, _clones, _undos, _redrives, SENDS, _again)
_meanwhile = st.builds(
    Meanwhile,
    st.sampled_from(STEPS),
    _jobs,
    st.sampled_from([0, 0, 121, 121]),
    st.lists(_quick, min_size=1, max_size=2).map(tuple),
)
_races = st.builds(
    Race,
    _names,
    st.sampled_from([*STEPS, "3.staged"]),
    st.sampled_from([121, 0]),
    st.one_of(_consumes, _resets, _clones),
)
_steps = st.one_of(
    FILLS, SENDS, _consumes, _consumes, _consumes, _deliveries, _deliveries, _resets, _clones, _undos, _redrives, _replays,
    _follow_ups, st.builds(Trim, st.integers(0, 2), st.integers(0, 100)), _again, _crashes, _meanwhile, _races, _races,
)  # fmt: skip
# What happened is nothing until the groups look at it.
_rounds = st.one_of(st.builds(Round, st.integers(0, 7)), st.builds(Round, st.integers(0, 7)), _consumes)
HISTORIES = st.builds(
    lambda first, rest: (*first, *chain(*rest)),
    st.tuples(FILLS, SENDS),
    st.lists(st.tuples(_steps, _steps, _rounds), min_size=4, max_size=12),
)


CASTS = st.builds(
    Cast, st.fixed_dictionaries({name: _options(name) for name in GROUPS}), st.lists(SAYS, min_size=1, max_size=6)
)
