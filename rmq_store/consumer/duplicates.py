"""Absorbing duplicates: a message whose key was acked before, within a horizon, is not consumed again.

    absorb_duplicates = { by = "UNIQ_KEY", horizon = "7d" }

The key is the unique key, the whole text of KEYS, or a property; a message without a key is never absorbed. A unique key is
unique over all topics. Other values are keys of their topic and rule, and the text of such a key names both
(``Orders KEYS=1001``): two topics may number their messages alike, and another rule begins without keys.

Only acks count: those of committed windows and earlier ones in the same window. A failure does not, so a retry is not
absorbed by its own first delivery. For a queue only acks after the last operator's action on it count: an operator who
resets a group wants its messages again.

Of the messages of one window with the same key, the listener gets the first; the others wait for its answer
(``take_turn``). ``docs/decisions/0005-duplicates.md`` says why. Both engines apply these rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_store.commit.positions import Tally, offset_hash
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst, first_topic, retry_topic
from rmq_store.utils.suggestions import did_you_mean

UNIQ_KEY = MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX
KEYS = MessageConst.KEYS
_PROPERTY = "property:"
_SIGN = "="
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HORIZON = re.compile(r"([1-9]\d{0,8})([smhd])", re.ASCII)
_LONGEST_MS = 366 * _UNITS_MS["d"]


@dataclass(frozen=True, slots=True)
class AbsorbRule:
    """Which messages are duplicates of each other."""

    by: str
    """The name of the property with the key, without ``=``: the text of a key is read in one way only."""
    horizon_ms: int
    """How long an ack is remembered, ms."""

    def __post_init__(self) -> None:
        if not self.by or _SIGN in self.by or not 0 < self.horizon_ms <= _LONGEST_MS:
            raise ValueError(f"by is empty or has a {_SIGN!r}, or horizon_ms is not in [1, {_LONGEST_MS}]: {self}")

    def key_of(self, topic: str, properties: Mapping[str, str]) -> str | None:
        """The key of a message in a queue of this topic; None if it has none or an empty one. A retry copy has the key of the
        message that failed first. ``lake/window/window_keys.py`` has the same over columns."""
        value = properties.get(self.by)
        if not value or self.label is None:
            return value or None
        return f"{first_topic(topic, properties)} {self.label}{value}"

    @property
    def label(self) -> str | None:
        """What stands between the topic and the value in the text of a key, behind a space; None: the value is the text."""
        if self.by == UNIQ_KEY:
            return None
        return f"{self.by if self.by == KEYS else _PROPERTY + self.by}{_SIGN}"

    @property
    def reason(self) -> str:
        """The reason in the outcome of an absorbed message."""
        return f"its {self.by} was acked before"


def absorb_rule_of(table: Mapping[str, Any]) -> AbsorbRule:
    """The rule of a table without problems (``absorb_rule_problems``)."""
    match = _HORIZON.fullmatch(table["horizon"])
    assert match, "absorb_rule_problems has checked the table"
    return AbsorbRule(table["by"].removeprefix(_PROPERTY), int(match[1]) * _UNITS_MS[match[2]])


def absorb_rule_problems(table: Mapping[str, Any]) -> list[str]:
    """What is wrong with an ``absorb_duplicates`` of a settings file."""
    known = ["by", "horizon"]
    problems = [f"it has an unknown key {key!r}{did_you_mean(key, known)}" for key in table if key not in known]
    problems += [f"{key} is missing" for key in known if key not in table]
    by, horizon = table.get("by", UNIQ_KEY), table.get("horizon", "1d")
    is_property = isinstance(by, str) and by.startswith(_PROPERTY) and by != _PROPERTY
    if by not in (UNIQ_KEY, KEYS) and not is_property:
        problems.append(f"by must be {UNIQ_KEY}, {KEYS} or property:NAME, it is {by!r}")
    elif _SIGN in by:
        problems.append(f"the NAME of property:NAME has no {_SIGN!r} here, it is {by.removeprefix(_PROPERTY)!r}")
    match = _HORIZON.fullmatch(horizon) if isinstance(horizon, str) else None
    if not match or int(match[1]) * _UNITS_MS[match[2]] > _LONGEST_MS:
        problems.append(f'horizon must be a time like "90s", "12h" or "7d", at most 366 days, it is {horizon!r}')
    return problems


# --- which messages the listener gets --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keyed:
    """A message with a key that matches the subscription."""

    queue: MessageQueue
    offset: int
    key: str
    since: int
    """The epoch of the oldest ack that counts for it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn over the messages of a window, each part in the order of the candidates."""

    ask: tuple[Keyed, ...]
    """The listener gets these now."""
    wait: tuple[Keyed, ...]
    """These wait for the answer about another message with their key."""
    duplicates: tuple[Keyed, ...]
    """The key of these was acked."""


def take_turn(candidates: Iterable[Keyed], acked: Mapping[str, int]) -> Turn:
    """Sort the candidates of a turn. ``acked``: per key the newest epoch in which it was acked.

    After the turn its caller adds what was acked, with the window's epoch; the messages that wait are the candidates of
    the next turn, until none waits.
    """
    ask: dict[str, Keyed] = {}
    wait, duplicates = [], []
    for candidate in candidates:
        if acked.get(candidate.key, -1) >= candidate.since:
            duplicates.append(candidate)
        elif candidate.key in ask:
            wait.append(candidate)
        else:
            ask[candidate.key] = candidate
    return Turn(tuple(ask.values()), tuple(wait), tuple(duplicates))


def acks_count_since(group: str, queue: MessageQueue, pass_: int, epoch: int) -> int:
    """The epoch of the oldest ack that counts for a queue's messages: that of the last operator's action on it (its
    pass).

    A retry does not say from which queue and pass it comes, so for retries it is the group's last action.
    """
    return epoch if queue.topic == retry_topic(group) else pass_


# --- what is stored --------------------------------------------------------------------------------------------------


def key_hash(key: str) -> int:
    """The 64-bit hash by which keys are looked up; after equal hashes the texts are compared.

    It mixes, with ``offset_hash``, the length and then the UTF-8 bytes, eight at a time, little-endian, the last ones
    filled up with zeros. ``lake/window/key_files.py`` has the same over arrays.
    """
    data = key.encode()
    state = offset_hash(len(data))
    for begin in range(0, len(data), 8):
        state = offset_hash(state ^ int.from_bytes(data[begin : begin + 8], "little"))
    return state


def key_tally(keys: Iterable[str]) -> Tally:
    """How many keys, and the sum of their hashes modulo 2^64."""
    return sum((Tally(1, key_hash(key)) for key in keys), Tally())


def key_parameters(acked: Tally) -> dict[str, int]:
    """Evidence in the ctl row about the keys that a window acked; the view ``audit`` compares it with their rows."""
    return {"key_rows": acked.count, "key_hash_sum": acked.hash_sum}
