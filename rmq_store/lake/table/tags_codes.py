"""The tags codes of whole columns."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from rmq_store.message.properties import tags_code

_cached = lru_cache(maxsize=10_000)(tags_code)


def tags_codes(tags: pa.Array) -> pa.Array:
    """``tags_code`` of every tag, as int64. Each distinct one is hashed once: many messages have few tags."""
    encoded = tags.dictionary_encode()
    codes = pa.array([_cached(tag) for tag in encoded.dictionary.to_pylist()], pa.int64())
    return codes.take(encoded.indices).fill_null(0)
