"""``expected/NAME.keys``: which messages have a key, asked in SQL (S13.5): the newest 64, in log order."""

from __future__ import annotations

from collections.abc import Sequence

from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, same

MOST = 64
ALL_KEYS = f"""
WITH named AS (
    SELECT topic, unnest(string_split(keys, ' ')) AS key, commit_log_offset FROM messages WHERE keys IS NOT NULL
    UNION
    SELECT topic, unique_key, commit_log_offset FROM messages WHERE unique_key IS NOT NULL
)
SELECT topic, key, list(commit_log_offset ORDER BY commit_log_offset)[-{MOST}:] AS found
FROM named GROUP BY topic, key
"""


def check(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    found = {(row["topic"], row["key"]): row["found"] for row in store.imported.rows(ALL_KEYS)}
    for line in lines:
        key = line["topic"], line["key"]
        yield same(f"messages of {key}", found.get(key, []), line["commitLogOffsets"])
