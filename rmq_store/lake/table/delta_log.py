"""The Delta log of one table: opened from a checkpoint, followed entry by entry, and appended to.

``_delta_log/<20 digits>.json`` holds the actions of a version, ``<20 digits>.checkpoint.parquet`` the state up to a version,
``_last_checkpoint`` a hint at the newest of these. Writers of this project create the name after the newest entry that they
have read, so the folder is not listed to find the end. Each process reads an entry once, and the one that wrote it not at all
(``docs/decisions/0011-own-log.md``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.commit.append import Append, NameState, PutAnswer, Request, Verdict, is_young
from rmq_store.errors import CommitOutcomeUnknown, LogDamaged, MissingFile, OtherFormat, RmqError, StoreUnusable, clause
from rmq_store.lake.table.delta_entry import (
    DELETION_VECTOR,
    END_BYTES,
    Entry,
    check_readable,
    deleted_rows,
    end_of,
    entry_name,
    parse_entry,
    plain_metadata,
    without_nulls,
)
from rmq_store.lake.table.log_view import LogFile, LogView
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import LOG_REQUESTS, in_parallel
from rmq_store.lake.table.store_errors import is_refused
from rmq_store.lake.table.stored_positions import stored_positions
from rmq_store.lake.table.table_layout import TableLayout
from rmq_store.utils.host import Host

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
ENTRY = re.compile(r"(\d{20})\.json")
UNREAD = re.compile(r"(?:\d{20}\.)?(\d{20})\.(?:checkpoint\.[0-9a-f.-]+\.(?:parquet|json)|compacted\.json)")
"""What other tools write in the place of entries up to a version, and what is not read here: a checkpoint of several parts or
of V2, and compacted entries (Delta protocol, "Checkpoints" and "Log Compaction Files")."""

_MOST_ENTRIES = 10_000
"""A process that follows the log for days opens it again after so many entries, whose files would fill its memory."""
_OPEN_TRIES = 3
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0


class LogCleaned(Exception):
    """A requested version is no longer in the log: it was cleaned away."""


class NoTable(StoreUnusable):
    """The folder has no Delta log."""


@dataclass(frozen=True, slots=True)
class Content:
    """An entry to be appended, and what must not have changed for it."""

    text: bytes
    positions: Collection[str]
    """The application ids that it sets."""
    closed: Sequence[str] = ()
    """Prefixes of application ids under which no other entry may set one."""
    removed: Collection[str] = ()
    """The files that it removes."""

    def conflicts(self, entry: Entry) -> bool:
        """Whether an entry that came first touches what this one relies on."""
        if entry.protocol is not None or entry.metadata is not None:
            return True
        if entry.is_vacuum:  # the files of this one may be gone: they have to be checked again
            return True
        if not entry.positions.keys().isdisjoint(self.positions):
            return True
        if any(app_id.startswith(prefix) for prefix in self.closed for app_id in entry.positions):
            return True
        return bool(self.removed) and not set(entry.removed).isdisjoint(self.removed)


class DeltaLog:
    """``_delta_log`` of the table at ``<root>/<path>``. ``view`` is what has been read of it."""

    def __init__(self, root: Root, path: str, layout: TableLayout) -> None:
        self._root = root
        self._folder = f"{path}/{LOG_FOLDER}"
        self._layout = layout
        self.view = self._empty_view(0)

    # --- reading ---

    def open(self) -> None:
        """Read the log from its newest checkpoint on.

        Raises NoTable, LogDamaged when an entry is damaged or missing, and StoreUnusable when the store does not answer or
        another tool has changed the table so that it cannot be read here.
        """
        for attempt in range(_OPEN_TRIES):
            view = self._opened(attempt == _OPEN_TRIES - 1)
            if view is not None:
                self.view = view
                return

    def refresh(self) -> None:
        """Read the entries that came since. Raises as ``open``."""
        if len(self.view.commit_ids) > _MOST_ENTRIES:
            return self.open()
        most = 1  # mostly there is none
        while True:
            versions = range(self.view.version + 1, self.view.version + 1 + most)
            for version, (content, at_ms) in zip(versions, self._looked_at(versions), strict=True):
                if not is_young(self.view.known_ms, at_ms) or self._is_freed():
                    return self.open()
                if content is None:  # what was read behind it does not count: both may have come in between
                    self.view.known_ms = at_ms
                    return None
                entry = self._parsed(version, content)
                if not self.view.is_followed_by(entry):
                    return self.open()
                self.view.apply(entry)
            most = LOG_REQUESTS

    def refresh_if_older(self, age_ms: int, now_ms: int) -> None:
        """``refresh``, unless the end of the log was known less than ``age_ms`` ago, and a folder still has what was read: else
        the log was replaced, as by a restore in place. ``now_ms``: the store's time."""
        if abs(now_ms - self.view.known_ms) >= age_ms or self._is_freed():
            self.refresh()

    def is_as_read(self) -> bool:
        """Whether the newest file that was read, an entry or a checkpoint, is there and has the same end. If not, open the log
        again: it was restored from a copy, or cleaned up long after it was read. One request.

        For a process that may outlive a restore in place. ``refresh`` asks that in a folder only: in S3 it goes on behind what
        was read, also in another history.
        """
        return self.view.newest is not None and self._is_there(self.view.newest)

    def _is_there(self, file: LogFile) -> bool:
        try:
            return self._root.tail(f"{self._folder}/{file.name}", END_BYTES) == file.end
        except (FileNotFoundError, MissingFile):
            return False

    def commit_ids(self) -> tuple[str, ...]:
        """The commits in the newest entry that was read; none when the view begins with its checkpoint, and it was cleaned away
        or is damaged."""
        version = self.view.version
        if version not in self.view.commit_ids:
            self.view.commit_ids[version] = self._commit_ids_of(version)
        return self.view.commit_ids[version]

    def _commit_ids_of(self, version: int) -> tuple[str, ...]:
        try:
            content, _ = self._look_at(self._name(version))
            return () if content is None or self._is_freed() else self._parsed(version, content).commit_ids
        except (LogDamaged, OtherFormat):  # the checkpoint has all that is needed of it
            return ()

    def read_again(self, first: int) -> dict[str, bytes]:
        """The entries ``[first, version]`` of the view, by name, as they were read.

        Raises LogCleaned when one is gone, or another one is there: a clean-up freed its name.
        """
        versions = range(first, self.view.version + 1)
        contents = {
            entry_name(version): content
            for version, (content, _) in zip(versions, self._looked_at(versions), strict=True)
            if content is not None and crc32(content) == self.view.checksums.get(version)
        }
        if missing := next((name for name in map(entry_name, versions) if name not in contents), None):
            raise LogCleaned(f"{self._root.uri_of(self._folder)}/{missing} was deleted meanwhile by a clean-up")
        return contents

    def has_entry(self, version: int) -> bool:
        """Whether the entry is in the log now."""
        return self._look_at(self._name(version))[0] is not None

    def last_checkpoint(self) -> int:
        """The version of the newest checkpoint, by the hint; -1 without one."""
        return _hinted(self._hint())

    def _hint(self) -> bytes | None:
        try:
            return self._look_at(f"{self._folder}/{LAST_CHECKPOINT}")[0]
        except LogDamaged:
            return b""

    def sound_checkpoint(self, version: int) -> bytes:
        """The file. Raises LogDamaged when it is damaged, FileNotFoundError when it is gone."""
        name = self._checkpoint_name(version)
        content = self._read(name)
        self._from_checkpoint(name, content, version, 0)
        return content

    def checkpoint_damage(self) -> str | None:
        """What is damaged of the newest checkpoint, of the one that the hint names, or of the hint, in words; None for nothing.
        A hint at none is damage too: the Delta library does not open a table that has it, unless there is a newer checkpoint.
        One at an older checkpoint than the newest is sound, as a writer leaves it that ends before it writes the hint."""
        try:
            hint, _ = self._look_at(f"{self._folder}/{LAST_CHECKPOINT}")
        except LogDamaged as error:
            return error.facts
        hinted = _hinted(hint)
        if hint is not None and hinted < 0:
            return f"{LAST_CHECKPOINT} is damaged"
        names, _ = self._root.names_in(self._folder, f"{max(hinted, 0):020d}.checkpoint.")
        newest = max(numbers_of(CHECKPOINT, names), default=-1)
        for version in sorted({hinted, newest} - {-1}):
            try:
                self.sound_checkpoint(version)
            except LogDamaged as error:
                return error.facts
            except FileNotFoundError:  # a clean-up came in between, or it is one that is not read here (``UNREAD``)
                begin = f"{version:020d}.checkpoint."
                if version == hinted and not any(name.startswith(begin) for name in names) and self._hint() == hint:
                    return f"{LAST_CHECKPOINT} names a checkpoint of version {version}, and there is none"
        return None

    def _checkpoint_name(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.checkpoint.parquet"

    def _name(self, version: int) -> str:
        return f"{self._folder}/{entry_name(version)}"

    def _parsed(self, version: int, content: bytes) -> Entry:
        return parse_entry(content, version, self._root.uri_of(self._name(version)))

    def _look_at(self, name: str) -> tuple[bytes | None, int]:
        with self._reading(name):
            return self._root.look_at(name)

    def _read(self, name: str) -> bytes:
        with self._reading(name):
            return self._root.read(name)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except MissingFile as error:
            raise LogDamaged(f"{self._root.uri_of(name)} is not a file") from error

    def _is_freed(self) -> bool:
        """Whether a clean-up may have deleted the entry behind the newest file that was read: this file is not what was read,
        and the oldest go first.

        Only a folder is asked. There a host whose clock is ahead may delete entries behind a checkpoint of seconds, and a view
        looks young that is not. S3 has one clock for all. Another entry may be there instead, of a writer who took the freed
        name for the end.
        """
        view = self.view
        if not self._root.is_local or view.newest is None:
            return False
        if view.version == view.checkpoint:
            return self._has_checkpoint_after(view.checkpoint)
        return not self._is_there(view.newest)

    def _has_checkpoint_after(self, version: int) -> bool:
        """By a listing. A clean-up leaves the checkpoint behind which it deletes, so no entry from the newest one on was ever
        deleted. That a checkpoint is still there proves nothing: a process that slept may write it."""
        names, _ = self._root.names_in(self._folder, f"{max(version, 0):020d}")
        return max(numbers_of(CHECKPOINT, names), default=-1) > version

    def _looked_at(self, versions: Sequence[int]) -> Iterator[tuple[bytes | None, int]]:
        return in_parallel(self._root, self._look_at, [self._name(version) for version in versions], LOG_REQUESTS)

    # --- opening ---

    def _opened(self, last_try: bool) -> LogView | None:
        """A new view; None when a clean-up came in between, or a listing that ran beside writers has a hole."""
        hint, damage = self.last_checkpoint(), None
        for after in (f"{hint:020d}", "") if hint >= 0 else ("",):
            names, at_ms = self._root.names_in(self._folder, after)
            view = self._empty_view(at_ms)
            for checkpoint in reversed(numbers_of(CHECKPOINT, names)):
                name = self._checkpoint_name(checkpoint)
                try:
                    view = self._from_checkpoint(name, self._read(name), checkpoint, at_ms)
                    break
                except FileNotFoundError:  # a clean-up, which leaves newer ones
                    return None if not last_try else self._refuse_hole(name)
                except LogDamaged as error:
                    damage = damage or error
            if view.checkpoint >= 0:
                break
        entries = [version for version in numbers_of(ENTRY, names) if version > view.version]
        if not entries and view.version < 0:
            if damage:
                raise _without_entries(damage)
            if unread := _unread(names, 0):
                raise self._replaced(0, *unread)
            raise NoTable(f"no table at {self._root.uri_of(self._folder.removesuffix('/' + LOG_FOLDER))}")
        if entries != list(range(view.version + 1, view.version + 1 + len(entries))):
            if last_try:
                raise _without_entries(damage) if damage else self._hole(view.version + 1, entries, names)
            return None
        for version, (content, answered_ms) in zip(entries, self._looked_at(entries), strict=True):
            if content is None or not is_young(at_ms, answered_ms):
                return None if not last_try else self._refuse_hole(self._name(version))
            view.apply(self._parsed(version, content))
        newest = max(numbers_of(CHECKPOINT, names), default=-1)
        if self._root.is_local and self._has_checkpoint_after(newest):  # what was read may have been freed by then
            return None if not last_try else self._refuse_hole(self._name(view.version))
        return view

    def _hole(self, first: int, entries: Sequence[int], names: Sequence[str]) -> LogDamaged:
        missing = next(version for version, entry in enumerate(entries, first) if version != entry)
        if unread := _unread(names, missing):
            return self._replaced(missing, *unread)
        return LogDamaged(f"{self._root.uri_of(self._name(missing))} is missing, and later entries are there")

    def _replaced(self, missing: int, version: int, unread: str) -> LogDamaged:
        return LogDamaged(
            f"{self._root.uri_of(self._folder)}: entry {entry_name(missing)} is gone, and another tool wrote {unread} in its "
            "place, which rmq does not read",
            f"Let that tool write {version:020d}.checkpoint.parquet, a checkpoint in one file, or restore the log from a "
            "backup.",
        )

    def _refuse_hole(self, name: str) -> LogView | None:
        raise StoreUnusable(
            f"{self._root.uri_of(name)} disappeared while it was being read, {_OPEN_TRIES} times: another tool "
            "cleans this log. Stop it, then try again"
        )

    def _empty_view(self, at_ms: int) -> LogView:
        return LogView(self._layout, self._root.uri_of(self._folder), known_ms=at_ms)

    def _from_checkpoint(self, name: str, content: bytes, version: int, at_ms: int) -> LogView:
        """The state of a checkpoint. Raises LogDamaged when it is damaged, StoreUnusable when it cannot be read here."""
        where = self._root.uri_of(name)
        try:
            with pq.ParquetFile(BytesIO(content)) as file:
                names = [n for n in ("txn", "add", "metaData", "protocol") if n in file.schema_arrow.names]
                actions = file.read(columns=names)
            view = self._state(actions, version, at_ms, where)
            view.newest = LogFile(name.rpartition("/")[2], end_of(content))
            return view
        # The file is in memory, so an OSError is of its content.
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise LogDamaged(f"{where} is damaged ({reason})") from error

    def _state(self, actions: pa.Table, version: int, at_ms: int, where: str) -> LogView:
        view = self._empty_view(at_ms)
        view.version = view.checkpoint = view.known_checkpoint = version
        metadata = plain_metadata(_only(actions, "metaData"))
        protocol = without_nulls(_only(actions, "protocol"))
        check_readable(protocol, metadata, where)
        view.describe(metadata, where)
        view.protocol = protocol
        txns = actions.column("txn").drop_null().combine_chunks()
        view.positions = stored_positions(
            version, txns.field("appId"), txns.field("version"), txns.field("lastUpdated")
        )
        adds = actions.column("add").drop_null().combine_chunks()
        _refuse_deleted_rows(adds, where)
        view.files.load(adds)
        return view

    # --- appending ---

    def append(
        self,
        content: Content,
        host: Host,
        *,
        deadline_ms: int,
        holds: Callable[[], bool] = lambda: False,
        after_put: Callable[[], object] = lambda: None,
    ) -> Verdict:
        """Bring the entry into the log, or learn that it was overtaken; the view follows. ``holds``: whether a view that was
        opened again has it, behind its checkpoint. ``deadline_ms``: when to give up, by the host's clock. ``after_put`` is
        called after each PUT.

        Raises StoreUnusable when nothing was written, CommitOutcomeUnknown when that is not known, and the errors of
        ``open``.
        """
        step = Append(self.view.version + 1, self.view.known_ms)
        wait_s, error, reopened = _FIRST_WAIT_S, None, False
        while True:
            putting = step.request is Request.PUT
            outcome, trouble = self._asked(step, content, holds)
            if putting:
                after_put()
            if outcome is Verdict.REWOUND:
                raise CommitOutcomeUnknown(
                    f"{self._root.uri_of(self._folder)} ends before version {step.version - 1}, which was read from it: it was "
                    "replaced, for example by a backup. Stop what writes to this store before doing anything else"
                )
            if isinstance(outcome, Verdict):
                return outcome
            step = outcome
            # Opening again once is always needed to know the outcome; a store that asks for it again contradicts itself.
            if trouble is None and not (reopened and step.request is Request.REOPEN):
                reopened = reopened or step.request is Request.REOPEN
                continue
            if isinstance(trouble, LogDamaged):  # waiting does not repair it
                raise _given_up(step, trouble) from trouble
            error = trouble or error or OSError("the store says that a name is taken, and that it is absent")
            if host.now_ms() >= deadline_ms or (step.settled and is_refused(error)):
                raise _given_up(step, error) from error
            host.sleep(host.uniform(0, wait_s))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _asked(
        self, step: Append, content: Content, holds: Callable[[], bool]
    ) -> tuple[Append | Verdict, Exception | None]:
        """The next request of a step: what follows from its answer, and an error after which to wait."""
        if step.request is Request.PUT:
            put = self._root.put_once(self._name(step.version), content.text)
            try:
                freed = put.answer is PutAnswer.CREATED and self._is_freed()
            except (OSError, RmqError):  # the log is opened again to learn it
                freed = True
            outcome = step.put_answered(put.answer, put.at_ms, freed=freed)
            if outcome is Verdict.COMMITTED:
                self._applied(step.version, content.text, put.at_ms)
            return outcome, put.error or _silence(put.answer)
        try:
            if step.request is Request.REOPEN:
                self.open()
                return step.reopened(self.view.version, self.view.known_ms, committed=holds()), None
            text, at_ms = self._look_at(self._name(step.version))
            freed = self._is_freed()
        except (OSError, RmqError) as error:
            return step, error
        state, entry = NameState.ABSENT, None
        if text == content.text:
            state = NameState.MINE
        elif text is not None:
            entry = self._parsed(step.version, text)
            freed = freed or not self.view.is_followed_by(entry)
            state = NameState.CONFLICTING if content.conflicts(entry) else NameState.UNRELATED
        outcome = step.read_answered(state, at_ms, freed=freed)
        if outcome is Verdict.COMMITTED:
            self._applied(step.version, content.text, at_ms)
        elif entry is not None and not (isinstance(outcome, Append) and outcome.request is Request.REOPEN):
            self.view.apply(entry)
        return outcome, None

    def _applied(self, version: int, text: bytes, at_ms: int) -> None:
        self.view.apply(self._parsed(version, text))
        self.view.known_ms = at_ms


def _without_entries(damage: LogDamaged) -> LogDamaged:
    """Of a checkpoint that no entries replace."""
    return LogDamaged(f"{damage.facts}, and the entries before it are gone")


def numbers_of(pattern: re.Pattern[str], names: Sequence[str]) -> list[int]:
    """The versions of the files of one kind (``ENTRY``, ``CHECKPOINT``), ascending."""
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def _unread(names: Sequence[str], version: int) -> tuple[int, str] | None:
    """The newest file of another tool that has what the entry of this version said, and the version up to which it goes."""
    unread = [(int(match[1]), name) for name in names if (match := UNREAD.fullmatch(name))]
    return max((one for one in unread if one[0] >= version), default=None)


def _only(actions: pa.Table, kind: str) -> Any:
    """The action of a kind of which a checkpoint has one (Delta protocol, "Checkpoint Schema"). Raises ValueError for none or
    several: readers would take different ones."""
    values = actions.column(kind).drop_null()
    if len(values) != 1:
        raise ValueError(f"it has {len(values)} {kind} actions")
    return values[0].as_py()


def _refuse_deleted_rows(adds: pa.StructArray, where: str) -> None:
    """Raises OtherFormat where a file of a checkpoint has a deletion vector."""
    if adds.type.get_field_index(DELETION_VECTOR) >= 0:
        for path in adds.field("path").filter(pc.is_valid(adds.field(DELETION_VECTOR))).to_pylist():
            raise deleted_rows(path, where)


def _silence(answer: PutAnswer) -> Exception | None:
    return OSError("no answer") if answer in (PutAnswer.SILENT, PutAnswer.REFUSED) else None


def _given_up(step: Append, error: Exception) -> RmqError:
    if step.settled:
        return StoreUnusable(f"the store could not be written: {clause(error)}. Nothing was written.")
    return CommitOutcomeUnknown(
        f"the store has not confirmed the last write (last answer: {error}), so it is not known whether it was made"
    )


def _hinted(hint: bytes | None) -> int:
    """The version that the hint names; -1 for none, and for a damaged one."""
    try:
        return int(json.loads(hint)["version"]) if hint else -1
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return -1
