"""Pop's own records in a broker's revive log: which messages were popped and not acked (rules 12).

``PopCheckPoint`` and ``AckMsg`` of the broker, as JSON: a check point (tag ``ck``) has popped ``n`` messages of a queue from
offset ``so`` on, those in the bit map ``bm`` are acked already; an ack (``ack``) or several (``bAck``) name them by offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

from rmq_store.broker_files.broker_json import key_text, number_of, object_of, parse
from rmq_store.broker_files.pop_retry_topics import is_given_out
from rmq_store.errors import BadData

REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
UNKNOWN_GROUP: Final = "?"
"""Of a check point that cannot be read."""

_Key = tuple[str, ...]
"""Of a check point: its group and topic, and what else its acks have of it."""
_UNKNOWN: Final[_Key] = (UNKNOWN_GROUP,)


def not_acked(records: Iterable[tuple[str, bytes]], topics: Collection[str] = ()) -> dict[str, int]:
    """By group the messages that its check points have popped and no ack names. ``records``: tag and body of each; ``topics``:
    those of the broker, which gives out no message of another one (``is_given_out``)."""
    popped: Counter[_Key] = Counter()
    acked: dict[_Key, set[int]] = defaultdict(set)
    for tag, body in records:
        try:
            value = object_of(parse(body.decode("utf-8", "replace")))
            key = tuple(key_text(value.get(name)) for name in ("c", "t", "q", "so", "pt"))
            if tag == "ck":
                popped[key] += (
                    number_of(value.get("n"), 32) - (number_of(value.get("bm", 0), 32) & 0xFFFFFFFF).bit_count()
                )
            else:
                acked[key].update(_offsets_of(value))
        except BadData:
            popped[_UNKNOWN] += tag == "ck"  # an ack that cannot be read leaves its message among the waiting ones
    waiting: Counter[str] = Counter()
    for key, count in popped.items():
        if key == _UNKNOWN or is_given_out(key[1], key[0], topics):
            waiting[key[0]] += max(count - len(acked[key]), 0)
    return {group: count for group, count in sorted(waiting.items()) if count}


def _offsets_of(ack: dict[Any, Any]) -> list[int]:
    """The queue offsets that an ack, or a batch of them, names."""
    several = ack.get("aol")
    return (
        [number_of(offset, 64) for offset in several] if isinstance(several, list) else [number_of(ack.get("ao"), 64)]
    )
