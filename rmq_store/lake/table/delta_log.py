"""The Delta log of one table, read as files: many positions at once, and what came since a version.

delta-rs answers one position per call (1 to 3 ms each); a plan needs dozens, a list of all groups thousands. The Delta
protocol:
``_delta_log/<20 digits>.json`` holds the actions of a version, one JSON object a line; ``….checkpoint.parquet`` the
state up to its version, with a column ``txn``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq

from rmq_store.commit.positions import Positions
from rmq_store.lake.table.object_store import Root

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet$")
_PARALLEL_READS = 16


class LogCleaned(Exception):
    """A requested version is no longer in the log: it was cleaned away."""


class DeltaLog:
    """``_delta_log`` of the table at ``<root>/<path>``."""

    def __init__(self, root: Root, path: str) -> None:
        self._root = root
        self._folder = f"{path}/_delta_log"
        self._known: Positions | None = None
        self._newest: tuple[int, list[dict[str, Any]]] = (-1, [])  # read several times after a commit

    def positions(self, version: int) -> Positions:
        """All positions as of ``version``. They are read from the last answer on if the versions between are still there.

        Nothing is read across a checkpoint: a version before it may have been cleaned away, and a late PUT may have
        written its name again, which belongs to no snapshot.
        """
        known = self._known
        if known is not None and known.version == version:
            return known
        if known is None or not self._last_checkpoint() <= known.version < version:
            known = self._from_checkpoint(version)
        try:
            self._known = self._advanced(known, version)
        except LogCleaned:
            self._known = self._advanced(self._from_checkpoint(version), version)
        return self._known

    def actions(self, after: int, upto: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The actions of the versions ``(after, upto]``, oldest first. Raises LogCleaned when one was cleaned away."""
        versions = range(after + 1, upto + 1)
        if len(versions) <= 1:
            yield from ((version, self._version(version)) for version in versions)
            return
        with ThreadPoolExecutor(min(_PARALLEL_READS, len(versions))) as pool:
            yield from zip(versions, pool.map(self._version, versions), strict=True)

    def commit_info(self, version: int) -> dict[str, Any]:
        """The ``commitInfo`` of a version, with the commit's custom metadata. Raises LogCleaned when the version was cleaned
        away, or is not there yet."""
        return next((action["commitInfo"] for action in self._version(version) if "commitInfo" in action), {})

    def _version(self, version: int) -> list[dict[str, Any]]:
        number, actions = self._newest
        if number != version:
            actions = self._read(version)
            self._newest = max(self._newest, (version, actions), key=lambda read: read[0])
        return actions

    def _read(self, version: int) -> list[dict[str, Any]]:
        try:
            text = self._root.read(f"{self._folder}/{version:020d}.json")
        except FileNotFoundError as error:
            raise LogCleaned(f"version {version} of {self._folder}") from error
        return [json.loads(line) for line in text.splitlines() if line]

    def _advanced(self, known: Positions, version: int) -> Positions:
        if known.version == version:
            return known
        values: dict[str, int] = {}
        updated_ms: dict[str, int] = {}
        for _, actions in self.actions(known.version, version):
            for txn in (action["txn"] for action in actions if "txn" in action):
                values[txn["appId"]] = txn["version"]
                updated_ms[txn["appId"]] = txn.get("lastUpdated") or 0
        return known.advanced(version, values, updated_ms)

    def _last_checkpoint(self) -> int:
        """The version of the newest checkpoint, -1 when there is none. ``_last_checkpoint`` is only a hint: if its text is
        damaged the folder is listed."""
        try:
            return int(json.loads(self._root.read(f"{self._folder}/_last_checkpoint"))["version"])
        except FileNotFoundError:
            return -1
        except (ValueError, TypeError, KeyError):
            return max(self._checkpoints(), default=-1)

    def lost_checkpoint(self) -> int | None:
        """The version that ``_last_checkpoint`` names, if that checkpoint is missing; else None."""
        hint = self._last_checkpoint()
        return None if hint < 0 or hint in self._checkpoints() else hint

    def _checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, by a listing."""
        names = (name.rsplit("/", 1)[-1] for name, _ in self._root.list(self._folder))
        return [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]

    def _from_checkpoint(self, version: int) -> Positions:
        newest = max((number for number in self._checkpoints() if number <= version), default=None)
        if newest is None:
            return Positions(-1, {})
        content = self._root.read(f"{self._folder}/{newest:020d}.checkpoint.parquet")
        txns = pq.read_table(BytesIO(content), columns=["txn"]).column("txn").drop_null().to_pylist()
        values = {txn["appId"]: txn["version"] for txn in txns}
        return Positions(newest, values, {txn["appId"]: txn["lastUpdated"] or 0 for txn in txns})
