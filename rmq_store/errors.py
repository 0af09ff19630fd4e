"""Errors, grouped by what the caller does next.

    RmqError
    ├── WrongUse            fix the call            (exit 2)
    │   └── NothingThere        the store holds nothing to consume: it is empty, or a topic is nowhere
    ├── BadData             fix the data or the files behind it, nothing was written   (exit 1)
    │   ├── RecordError         a record of a broker's file is refused
    │   │   ├── DamagedRecord       it does not check
    │   │   └── UnsupportedRecord   it is sound, but cannot be imported as it is
    │   ├── BodyTooLarge        a body is larger, decompressed, than was allowed
    │   ├── MissingFile         a file of the store that holds messages is gone
    │   ├── DerivedTableDamaged a derived table is not what the commit log says: rmq dispatch --rebuild
    │   ├── OffsetOutOfRange    the wanted offset was removed by retention
    │   ├── ListenerError       the listener cannot be imported or answers nonsense
    │   └── EvidenceMismatch    counts or hash sums of a window do not add up
    ├── StoreUnusable       fix the root: missing, not writable, wrong credentials, newer format   (exit 1)
    │   └── StagedFileGone      run the request again: what this attempt staged was removed
    ├── ClockSkew           fix a clock; nothing was written   (exit 1)
    ├── HeldByAnother       wait, or look who holds it   (exit 3)
    ├── StaleAttempt        somebody moved it: plan again   (exit 3)
    └── CommitOutcomeUnknown   look before touching anything   (exit 1)

A message names the thing, the facts found and what to do about it.
"""

from __future__ import annotations

from typing import Any


class RmqError(Exception):
    """Root of the tree. ``exit_code`` is what the command line returns for it."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Its text and its fields, for pickle: an ``__init__`` may want other arguments than the text."""
        return _without_init, (type(self), *self.args), vars(self)


def _without_init(kind: type[RmqError], *args: object) -> RmqError:
    return kind.__new__(kind, *args)


class WrongUse(RmqError):
    """The call itself is wrong: unknown group, bad time, contradicting options."""

    exit_code = 2


class NothingThere(WrongUse):
    """The store is empty, or has no such topic: a mistake in the name, or it has not been imported yet."""


class BadData(RmqError):
    """The data is wrong; nothing was written."""


class RecordError(BadData):
    """A record of a broker's file is refused.

    ``file`` and ``position`` say where (bytes from the start of that file);
    ``commit_log_offset`` is the physical offset in the broker's log.
    """

    text = "record {place}: {reason}"

    def __init__(self, file: str, position: int, commit_log_offset: int, reason: str) -> None:
        place = f"in {file} at byte {position} (commit log offset {commit_log_offset})"
        super().__init__(self.text.format(place=place, reason=reason))
        self.file = file
        self.position = position
        self.commit_log_offset = commit_log_offset
        self.reason = reason


class DamagedRecord(RecordError):
    """It fails its check."""

    text = (
        "damaged record {place}: {reason}. "
        "Everything before it is good. Restore the file, or import with --salvage to skip and record what is skipped."
    )


class UnsupportedRecord(RecordError):
    """It is sound, but cannot be imported as it is. No salvage skips it: nothing is damaged. ``reason`` says what to do."""

    text = "the record {place} cannot be imported: {reason}. Nothing was changed."


class BodyTooLarge(BadData):
    """A compressed body would become larger than was allowed; it was not decompressed to its end."""


class MissingFile(BadData):
    """A file of the store that a segment names is gone: another tool took it out of the table, or it was removed."""


class DerivedTableDamaged(BadData):
    """A derived table lacks what the commit log has, cannot be read, or was made from another history of the log."""

    _REBUILD = "'rmq dispatch --rebuild' writes the table again from the commit log."

    def __init__(self, facts: str, *, other_history: bool = False) -> None:
        advice = f"Nothing is lost: {self._REBUILD}"
        if other_history:
            advice = (
                "If the commit log is the older of the two, bring its newer state back first: what it no longer has is not "
                f"in the store. Otherwise {self._REBUILD}"
            )
        super().__init__(f"{facts} {advice}")


class OffsetOutOfRange(BadData):
    """A consumer's next offset lies below the first readable one (OFFSET_TOO_SMALL, rules 7.1)."""


class ListenerError(BadData):
    """The listener cannot be imported, or its answer is none that RocketMQ knows."""


class EvidenceMismatch(BadData):
    """What the tasks did does not add up to the range they were given."""


class StoreUnusable(RmqError):
    """The store's root cannot be used as it is."""


class StagedFileGone(StoreUnusable):
    """A file that was staged for a commit is gone, or not as long as it was: a VACUUM, or somebody cleaned up."""


class ClockSkew(RmqError):
    """A clock is off by more than the allowed skew; nothing was written."""


class HeldByAnother(RmqError):
    """Another request holds the claim and its lease has not ended."""

    exit_code = 3


class StaleAttempt(RmqError):
    """What the plan was made from has been moved by somebody else; nothing of this attempt was committed."""

    exit_code = 3


class CommitOutcomeUnknown(RmqError):
    """It cannot be said whether the commit landed. Touch nothing; look at the store first."""


class Terminated(BaseException):
    """SIGTERM, with which a scheduler stops a process: claims are given back on the way out, as after Ctrl-C."""


_AIRFLOW_STOPS = frozenset({"AirflowTaskTimeout", "AirflowTaskTerminated"})


def is_stop(error: BaseException) -> bool:
    """Whether somebody stops the run from outside, which is no failure of the code that it hit: Ctrl-C, SIGTERM, or a
    task that Airflow ends. Airflow's are known by name, since nothing here may import it."""
    if isinstance(error, KeyboardInterrupt | Terminated):
        return True
    return any(
        kind.__name__ in _AIRFLOW_STOPS and kind.__module__.startswith("airflow") for kind in type(error).__mro__
    )


def text_of(error: BaseException) -> str:
    """The exception's own text, also of one that fails to give it."""
    try:
        return str(error)
    except BaseException as another:
        if is_stop(another):
            raise
        return "(its text cannot be had)"


def error_answer(kind: str, message: str, exit_code: int, request_id: str = "") -> dict[str, Any]:
    """An error as a JSON value, for every command and job. ``kind``: the name of its class; ``request_id``: with which
    the same can be tried again, "" when there is none."""
    answer = {"status": "error", "error": kind, "message": message, "exit_code": exit_code}
    return answer | ({"request_id": request_id} if request_id else {})


def defect(error: BaseException) -> str:
    """What to say of an error that is none of ours, without the stack traces that some of them (Spark's) carry in their
    text. Of a lack of memory, which is none: what to do."""
    if isinstance(error, MemoryError):
        return f"out of memory ({text_of(error)[:200] or type(error).__name__}): give the process more, or ask for less at once"
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    said = " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:1000]
    return f"{type(error).__name__}: {said} - this is a defect"
