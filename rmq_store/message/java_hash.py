"""The iteration order of Java's hash maps, in which RocketMQ writes some of its texts.

A map has a power of two of bins. The hash of a key says which bin, and a bin keeps its keys in the order of insertion.
Bins with so many keys that Java turns them into trees are not modelled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rmq_store.message.message import MessageQueue
from rmq_store.message.properties import tags_code

_LEAST_BINS: Final = 16
_MASK_32: Final = 0xFFFFFFFF

_Hashed = tuple[int, MessageQueue]


def in_hash_set_order(texts: Collection[str]) -> list[str]:
    """The texts in the order of a ``HashSet`` that was made of them; it has all its bins from the start."""
    bins = _LEAST_BINS
    while bins < len(texts) * 4 // 3 + 1:
        bins *= 2
    return sorted(dict.fromkeys(texts), key=lambda text: _spread(tags_code(text) & _MASK_32) % bins)


def in_hash_map_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues in the order of a ``ConcurrentHashMap`` into which they were put one after the other.

    It starts with 16 bins and doubles them whenever it is three quarters full.
    """
    bins: list[list[_Hashed]] = [[] for _ in range(_LEAST_BINS)]
    for count, queue in enumerate(queues, 1):
        spread = _spread(_hash_code(queue))
        bins[spread % len(bins)].append((spread, queue))
        if count >= len(bins) * 3 // 4:
            lower, upper = zip(*(_halves(bin_, len(bins)) for bin_ in bins), strict=True)
            bins = [*lower, *upper]
    return [queue for bin_ in bins for _, queue in bin_]


def _halves(bin_: list[_Hashed], bit: int) -> tuple[list[_Hashed], list[_Hashed]]:
    """A bin split in two (``ConcurrentHashMap#transfer``): the last keys that go to the same half keep their order,
    those before them are put to the front one by one."""
    last = max(len(bin_) - 1, 0)
    while last > 0 and not (bin_[last - 1][0] ^ bin_[-1][0]) & bit:
        last -= 1
    moved = [*reversed(bin_[:last]), *bin_[last:]]
    return [item for item in moved if not item[0] & bit], [item for item in moved if item[0] & bit]


def _hash_code(queue: MessageQueue) -> int:
    """``MessageQueue#hashCode`` as 32 bits without a sign; ``tags_code`` is Java's hash of a text."""
    code = 1
    for part in (tags_code(queue.broker_name), queue.queue_id, tags_code(queue.topic)):
        code = (31 * code + part) & _MASK_32
    return code


def _spread(code: int) -> int:
    return code ^ code >> 16
