"""Errors, grouped by what the caller does next.

    RmqError
    ├── WrongUse            fix the call            (exit 2)
    │   └── NothingThere        nothing to consume: the store is empty, or no shard has the topic
    ├── BadData             fix the data or the files behind it; nothing was written   (exit 1)
    │   ├── RecordError         a record of a broker's file is refused
    │   │   ├── DamagedRecord       it fails its check
    │   │   └── UnsupportedRecord   RocketMQ's checks pass, but it cannot be imported as it is
    │   ├── OverLimit           sound, but more than a limit allows: raise the limit, or refuse the data
    │   │   └── BodyTooLarge        a body is larger than allowed when it is decompressed
    │   ├── MissingFile         a file of the store is missing, or something else is in its place
    │   ├── LogDamaged          an entry or a checkpoint of a table's log is damaged or missing
    │   ├── DerivedTableDamaged a derived table does not match the commit log: rebuild it, or restore the store
    │   ├── OffsetOutOfRange    retention removed the messages at the offset
    │   ├── ListenerError       the listener cannot be imported, or its answer is invalid
    │   │   └── ListenerNotStarted  what starts its process has ended: run the request again
    │   └── EvidenceMismatch    counts or hash sums of a window do not add up
    ├── StoreUnusable       fix the root: missing, not writable, wrong credentials, newer format   (exit 1)
    │   ├── OtherFormat         upgrade the store, or use another version: its tables have another format
    │   └── StagedFileGone      run the request again: a file that it staged was removed
    ├── ClockSkew           fix a clock; nothing was written   (exit 1)
    ├── HeldByAnother       wait, or see which request has the claim   (exit 3)
    ├── StaleAttempt        another commit was faster: plan again   (exit 3)
    └── CommitOutcomeUnknown   look before touching anything   (exit 1)

A message says what is wrong, with the facts, and what to do.
"""

from __future__ import annotations

import threading
from typing import Any, Final


def clause(error: object) -> str:
    """The text of an error without the full stop that may end it, for a sentence that goes on with it. Those of pyarrow, and of
    this project where they say what to do, end with one."""
    return str(error).rstrip().removesuffix(".")


class RmqError(Exception):
    """Root of the tree."""

    exit_code = 1
    """What the command line returns for it."""
    reports: tuple[Any, ...] = ()
    """What the call had done beside the error: of a move of offsets a ``MoveReport`` for each shard that has it, of a delivery
    a ``DeliverReport`` for each commit. The text of the error names these shards."""

    def add_done(self, sentence: str, reports: tuple[Any, ...]) -> None:
        """Have the error say what the call had done: in its ``reports``, and by a sentence at the end of its text."""
        self.reports, self.args = reports, (f"{str(self).removesuffix('.')}. {sentence}",)

    def __reduce__(self) -> tuple[Any, ...]:
        """Text and fields, for pickle: an ``__init__`` may take other arguments than the text."""
        return _without_init, (type(self), *self.args), vars(self)


def _without_init(kind: type[RmqError], *args: object) -> RmqError:
    return kind.__new__(kind, *args)


class WrongUse(RmqError):
    """The call itself is wrong: an unknown group, an invalid time, options that contradict each other."""

    exit_code = 2


class NothingThere(WrongUse):
    """The store is empty or has no such topic: the name is wrong, or the topic has not been imported yet."""


class BadData(RmqError):
    """The data is wrong; nothing was written."""


class RecordError(BadData):
    """A record of a broker's file is refused: the one at byte ``position`` of ``file``, which has the physical offset
    ``commit_log_offset`` in the broker's log."""

    text = "record {place}: {reason}"

    def __init__(self, file: str, position: int, commit_log_offset: int, reason: str) -> None:
        place = f"in {file} at byte {position} (commit log offset {commit_log_offset})"
        super().__init__(self.text.format(place=place, reason=reason))
        self.file = file
        self.position = position
        self.commit_log_offset = commit_log_offset
        self.reason = reason


class DamagedRecord(RecordError):
    """The record fails its check."""

    text = (
        "damaged record {place}: {reason}. "
        "Everything before it is good. Restore the file, or import with --salvage to skip and record what is skipped."
    )


class DamagedBehindCut(DamagedRecord):
    """It is where the broker had the end of its log that it lost, of which it may not have written over all."""

    text = (
        "damaged record {place}: {reason}. Everything before it is good. It is where the broker lost the end of its log: what "
        "it has not written over yet looks like that. Import a copy once the broker has written on; if that is refused too, "
        "restore the file."
    )


class UnsupportedRecord(RecordError):
    """The record passes RocketMQ's checks, but cannot be imported as it is. ``reason`` says what to do. A salvage does not skip
    it where nothing is damaged."""

    text = "the record {place} cannot be imported: {reason}. Nothing was changed."


class OverLimit(BadData):
    """The data is sound as far as it was read, but larger than a limit allows. The message names the option that raises the
    limit. A salvage does not skip it, since nothing is damaged."""


class BodyTooLarge(OverLimit):
    """A compressed body is larger than allowed when it is decompressed; decompression stopped at the limit."""


class MissingFile(BadData):
    """A data file that a segment names is missing: another tool removed it from the table or from the storage. Or a FIFO, a
    folder or a device is in the place of a file of the store."""


class LogDamaged(BadData):
    """An entry or a checkpoint of a table's log is damaged or missing: ``facts``."""

    def __init__(self, facts: str, advice: str = "Restore it from a backup.") -> None:
        super().__init__(f"{clause(facts)}. {advice}")
        self.facts = clause(facts)


class DerivedTableDamaged(BadData):
    """A derived table lacks rows of the commit log, cannot be read, or was made from another history of the log."""

    _REBUILD = "'rmq dispatch --rebuild' writes the table again from the commit log."

    def __init__(self, facts: str, *, rolled_back: bool = False, other_history: bool = False) -> None:
        """``rolled_back``: the commit log has not come as far as the table. ``other_history``: it has other commits than those
        that the table was made from."""
        advice = f"Nothing is lost: {self._REBUILD}"
        if rolled_back:
            advice = (
                "If the commit log is the older of the two, restore its newer state first: the store does not have "
                f"what the log lacks. Otherwise {self._REBUILD}"
            )
        if other_history:
            advice = (
                "The log has other commits than those that the table was made from, and the tables may have the only record of "
                "these: restore the store from a backup, or make a copy by another tool again in an empty target. Only to give "
                f"up what the log lacks, {self._REBUILD}"
            )
        super().__init__(f"{facts} {advice}")
        self.rolled_back = rolled_back
        self.other_history = other_history


class OffsetOutOfRange(BadData):
    """A consumer's next offset lies below the first readable one (OFFSET_TOO_SMALL, rules 7.1)."""


class ListenerError(BadData):
    """The listener cannot be imported, or its answer is invalid."""


class ListenerNotStarted(ListenerError):
    """The process that starts those of listeners has ended, also others in its place: it was killed, or the machine has no
    memory or no process left. No message has failed by it."""


class EvidenceMismatch(BadData):
    """The outcomes that the tasks report do not add up to the range of the window."""


class StoreUnusable(RmqError):
    """The store's root cannot be used as it is."""


class OtherFormat(StoreUnusable):
    """A table has not the format that this version writes."""


class StagedFileGone(StoreUnusable):
    """A file that was staged for a commit is missing or has another length: a VACUUM, or another clean-up."""


class ClockSkew(RmqError):
    """A clock is off by more than the allowed skew; nothing was written."""


class HeldByAnother(RmqError):
    """Another request has the claim, and its lease has not ended; or another export to the file runs."""

    exit_code = 3


class StaleAttempt(RmqError):
    """Another commit has changed a position that the plan was made from; nothing of this attempt was committed."""

    exit_code = 3


class CommitOutcomeUnknown(RmqError):
    """It is not known whether the commit was made. Change nothing; when the store answers again, run the same request."""


class Terminated(BaseException):
    """A signal that stops the process: SIGTERM of a scheduler, SIGHUP of a closed terminal, Ctrl-C. Claims are released before
    the exit."""


STOPPED: Final = threading.Event()
"""Set by the signal that stops this process, for long work in another thread than the main one, where nothing is raised."""


_AIRFLOW_STOPS = frozenset({"AirflowTaskTimeout", "AirflowTaskTerminated"})


_has_stops = True


def without_stops() -> None:
    """From now on ``is_stop`` is False in this process, that of a listener: who stops the run, stops the process of the window,
    which then ends this one. What the listener raises is its own failure here, whatever it is."""
    global _has_stops
    _has_stops = False


def is_stop(error: BaseException) -> bool:
    """Whether the run is stopped from outside (Ctrl-C, SIGTERM, Airflow ends the task), which is no failure of the code
    that was running. Airflow's exceptions are recognised by name: nothing here may import Airflow."""
    if not _has_stops:
        return False
    if isinstance(error, KeyboardInterrupt | Terminated):
        return True
    return any(
        kind.__name__ in _AIRFLOW_STOPS and kind.__module__.startswith("airflow") for kind in type(error).__mro__
    )


UNREADABLE: Final = "(its text cannot be read)"


def text_of(error: BaseException) -> str:
    """``str(error)``, or UNREADABLE where that raises."""
    try:
        return str(error)
    except BaseException as another:
        if is_stop(another):
            raise
        return UNREADABLE


def error_answer(kind: str, message: str, exit_code: int, request_id: str = "") -> dict[str, Any]:
    """An error as a JSON value, for every command and job. ``kind``: the name of its class; ``request_id``: the id with
    which to try the same again, "" when there is none."""
    answer = {"status": "error", "error": kind, "message": message, "exit_code": exit_code}
    return answer | ({"request_id": request_id} if request_id else {})


_NO_THREAD = "can't start new thread"


def defect(error: BaseException) -> str:
    """The message for an unexpected error: its first and last line, without the stack traces that Spark's errors have
    in their text. A lack of memory, threads or processes is not a defect; its message says what to do."""
    facts = text_of(error)[:200] or type(error).__name__
    if isinstance(error, MemoryError):
        return f"out of memory ({facts}): give the process more memory, or do less in one request"
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and _NO_THREAD in facts):
        return (
            f"the system refused a thread or a process ({facts}): raise its limits (ulimit -u, the pids of the container), or "
            "run less at once"
        )
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    summary = " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:1000]
    return f"{type(error).__name__}: {summary} - this is a defect"
