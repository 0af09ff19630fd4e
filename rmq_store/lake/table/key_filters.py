"""Bloom filters of message files, by which a message is found by its unique key or by one of its KEYS.

Each row group has a filter of each of ``FILTERED``. KEYS of several keys are one text ("k1 k2"), so a file in which a row has
several also has the column ``key_words`` with the single keys of these rows. It is in no schema of the table: its filter is
all that is read of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.message.message_const import KEY_SEPARATOR

UNIQUE_KEY, KEYS, KEY_WORDS = "unique_key", "keys", "key_words.list.element"
WORDS = KEY_WORDS.partition(".")[0]
FILTERED = (UNIQUE_KEY, KEYS, KEY_WORDS)
"""The columns that have filters, by their path in a file."""

FALSE_POSITIVES = 0.02
"""At most this share of the row groups is read although the key is not in them. 7,000 keys take 8 KiB."""


def key_words(keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The single keys of each text of KEYS that has several, null for the others."""
    several = pc.fill_null(pc.match_substring(keys, KEY_SEPARATOR), False)
    return pc.split_pattern(pc.if_else(several, keys, None), KEY_SEPARATOR)


def with_key_words(rows: pa.Table) -> pa.Table:
    """Message rows and, when some of them have several keys, the column ``key_words``: a list of keys, null for the others."""
    words = key_words(rows.column(KEYS).cast(pa.string()))
    return rows if words.null_count == len(words) else rows.append_column(WORDS, words)


def filter_options(rows: pa.Table, groups: Sequence[tuple[int, int]]) -> Mapping[str, Any]:
    """What pyarrow's writer is told about the filters. ``groups``: the bounds ``[begin, end)`` of the row groups.

    A filter is made for the most values of a row group; the writer makes it smaller when there are fewer.
    """
    most = {name: max(end - begin for begin, end in groups) for name in (UNIQUE_KEY, KEYS)}
    if WORDS in rows.column_names:
        counts = pc.list_value_length(rows.column(WORDS))
        most[KEY_WORDS] = max(pc.sum(counts.slice(begin, end - begin)).as_py() or 0 for begin, end in groups)
    return {name: {"ndv": max(values, 1), "fpp": FALSE_POSITIVES} for name, values in most.items()}
