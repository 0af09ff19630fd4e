"""The lake's side: the commands that a user would give, each a process, and what the store then says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import rmq_store
from rmq_store.utils.host import Host
from tests.roundtrip.books import Delivery
from tests.roundtrip.broker import BROKER, LEVELS

SETTINGS = Path(__file__).with_name("consumers.toml")
CHECKOUT = Path(__file__).parents[2]
GROUPS = ("g_all", "g_tags", "g_order")
_MOST_TURNS = 60

ALL = 10**9
"""More messages than there are."""

_WAITING = f"""
SELECT (SELECT count(*) FROM delayed)
     + (SELECT coalesce(sum(readable_lag), 0) FROM lag WHERE group_name IN {GROUPS} AND broker_name <> '{BROKER}' AND {{}})
       AS messages
"""
_ACKED = f"""
SELECT r.group_name, m.keys
FROM consumed_ranges r
JOIN messages m ON m.shard = r.shard AND m.topic = r.topic AND m.broker_name = r.broker_name AND m.queue_id = r.queue_id
  AND m.queue_offset >= r.begin_offset AND m.queue_offset < r.end_offset
WHERE r.action = 'consume' AND r.group_name IN {GROUPS}
  AND NOT (r.group_name = 'g_tags' AND m.tags NOT IN ('TagA', 'TagB'))
  AND NOT EXISTS (
    FROM outcomes o WHERE o.shard = r.shard AND o.group_name = r.group_name AND o.topic = m.topic
    AND o.broker_name = m.broker_name AND o.queue_id = m.queue_id
    AND o.begin_offset <= m.queue_offset AND o.end_offset > m.queue_offset)
"""
_DEAD = "SELECT group_name, keys FROM dead_letters"
_LOST = "SELECT count(*) AS messages FROM outcomes WHERE outcome IN ('lost', 'skipped', 'dropped')"


class Lake:
    """A store in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rmq("init", "--levels", LEVELS)

    def rmq(self, *arguments: object) -> dict[str, Any]:
        """One command; its JSON answer. Raises RuntimeError with the error that it gave."""
        run = subprocess.run(
            [Path(sys.executable).with_name("rmq"), *map(str, arguments), "--root", self.root, "--json"],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(
                f"rmq {' '.join(map(str, arguments))} ended with {run.returncode}: {run.stdout}{run.stderr}"
            )
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    def take_over(self, store: Path) -> dict[str, Any]:
        """Imports what the broker has stored since the last import, and cuts over. The cut-over's answer."""
        self.rmq("import-store", store, "--broker", BROKER, "--engine", "local")
        return self.rmq("cutover", "--broker", BROKER, "--reason", "round trip")

    def consume(self, most: int) -> None:
        """Each group consumes at most so many messages, and then every retry. What else is new stays for the broker, or for
        the next turn: messages whose delay has ended are in the lake's queues. ``ALL``: those too."""
        for group in GROUPS:
            self._consume(group, "--max-messages", most)
        options, which = ([], "true") if most == ALL else (["--retries-only"], "starts_with(topic, '%RETRY%')")
        for _ in range(_MOST_TURNS):
            self.rmq("deliver")
            for group in GROUPS:
                self._consume(group, *options)
            if self._one(_WAITING.format(which)) == 0:
                return
            Host().sleep(0.5)
        raise RuntimeError(f"{self._one(_WAITING.format(which))} messages still wait in {self.root}")

    def hand_back(self, offsets: Path) -> None:
        """Writes the groups' and the delay levels' offsets into the broker's own files, and ends the cut-over."""
        self.rmq("offsets", "export", "--broker", BROKER, "--merge", offsets)
        self.rmq("hand-back", "--broker", BROKER, "--reason", "round trip")

    def _consume(self, group: str, *options: object) -> None:
        self.rmq("consume", "--group", group, "--engine", "local", "--settings", SETTINGS, *options)

    def read(self) -> int:
        """How many messages its windows have read, filtered ones too."""
        return self._one("SELECT coalesce(sum(messages), 0) AS messages FROM windows")

    def finished(self) -> list[Delivery]:
        """What the lake acked, and the dead letters, also those that were made at the broker: one for each time."""
        return [Delivery(row["group_name"], row["keys"]) for row in [*self.rows(_ACKED), *self.rows(_DEAD)]]

    def check(self) -> None:
        """Raises RuntimeError when the audit has a finding, or a group skipped a message."""
        problems = self.rows("SELECT * FROM audit")
        skipped = self._one(_LOST)
        if problems or skipped:
            raise RuntimeError(f"{self.root}: {skipped} messages lost, dropped or skipped; audit: {problems[:5]}")

    def rows(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = rmq_store.open_store(str(self.root)).query(query).to_pylist()
        return rows

    def _one(self, query: str) -> int:
        (row,) = self.rows(query)
        return int(row["messages"])
