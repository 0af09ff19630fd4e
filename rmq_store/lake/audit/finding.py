"""What an audit reports: the kinds of problems, what to do about each, and a finding with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from rmq_store.commit.positions import Outcome

OF_OUTCOME = "…"
"""Stands for an outcome at the begin of a kind: ``retried twice`` is of the kind ``… twice``."""


class Problem(StrEnum):
    """The kinds of problems, by their names in the column ``problem``."""

    # The view ``audit``: what the rows of the commits prove.
    GAP = "gap"
    OVERLAP = "overlap"
    START_NOT_RECORDED = "start not recorded"
    MOVED_FROM_ELSEWHERE = "moved from elsewhere"
    POSITION_DIFFERS = "position differs"
    WINDOW_OF_DELETED_GROUP = "window of a deleted group"
    REDRIVEN_AGAIN = "redriven again"
    COUNTS_DO_NOT_ADD_UP = "counts do not add up"
    HASH_SUMS_DO_NOT_ADD_UP = "hash sums do not add up"
    DIFFERS_FROM_ITS_ROWS = f"{OF_OUTCOME} differs from its rows"
    OUTSIDE_ITS_RANGE = f"{OF_OUTCOME} outside its range"
    TWICE = f"{OF_OUTCOME} twice"
    COPY_IN_NO_QUEUE = "copy in no queue"
    RETRY_NOT_DELIVERED = "retry not delivered"
    RETRY_DELIVERED_TWICE = "retry delivered twice"
    RETRY_DELIVERED_EARLY = "retry delivered early"
    KEYS_DIFFER = "acked keys differ from their rows"
    SEGMENT_FILE_NOT_LIVE = "segment file not live"
    FIRST_OFFSET_DIFFERS = "first offset differs"
    # ``shards.py``: what was written once, when the store, a shard or a table was made.
    SHARD_NOT_NAMED = "shard not named"
    SHARD_TWICE = "shard twice"
    SHARD_ELSEWHERE = "shard in another folder"
    DESCRIPTION_DIFFERS = "description differs"
    TABLE_PROPERTIES_DIFFER = "table properties differ"
    # ``files.py``: the files that the logs name.
    FILE_MISSING = "file missing"
    FILE_SIZE_DIFFERS = "file size differs"
    FILE_UNREADABLE = "file not readable"
    FILE_ROWS_DIFFER = "file rows differ"
    FILE_OF_ANOTHER_TABLE = "file of another table"
    FILE_OF_ANOTHER_KIND = "file of another kind"
    STATISTICS_DIFFER = "statistics differ"
    CHECKPOINT_UNREADABLE = "checkpoint not readable"
    # ``log_actions.py``: the entries of the logs.
    LOG_ENTRY_NOT_VALID = "log entry not valid"
    COVERED_ENTRY_DAMAGED = "covered log entry damaged"
    # ``segments.py``: the queues and the rows of their messages.
    FILE_IN_NO_SEGMENT = "file in no segment"
    REPLACED_FILE_LIVE = "replaced file live"
    RECORDED_FILE_NOT_LIVE = "recorded file not live"
    FILE_NOT_RECORDED = "file not recorded"
    RECORDED_FILE_DIFFERS = "recorded file differs"
    SEGMENT_ROWS_DIFFER = "segment rows differ"
    SEGMENTS_OVERLAP = "segments overlap"
    MESSAGES_MISSING = "messages missing"
    QUEUE_END_DIFFERS = "queue end differs"
    COPY_IN_ANOTHER_TOPIC = "copy in another topic"
    # ``positions.py``
    POSITION_NOT_RECORDED = "position not recorded"
    # ``histories.py``, ``derived.py`` by the cursors of the tables, and ``positions.py`` by the claims
    ANOTHER_HISTORY = "log of another history"
    # ``derived.py``: the records of commits, and the tables that are made from them.
    COMMIT_TWICE = "commit twice"
    RECORD_NOT_VALID = "commit record not valid"
    COMMIT_RECORD_DIFFERS = "commit record differs"
    COMMIT_NOT_IN_LOG = "commit not in the log"
    DERIVED_TABLE_DIFFERS = "derived table differs"
    LOG_ROLLED_BACK = "log rolled back"
    # ``second_reader.py``: what the Delta library reads, with ``--full`` only.
    LOG_READ_DIFFERENTLY = "log read differently"
    # ``full.py``: what the files hold, with ``--full`` only.
    FILE_CHANGED = "file changed"
    DIGEST_NOT_RECORDED_ONCE = "digest not recorded once"
    MESSAGE_ELSEWHERE = "message at another place"
    MESSAGE_DIFFERS_FROM_COMMIT = "message differs from its commit"
    BODY_DIFFERS = "body differs"
    PROPERTIES_DIFFER = "properties differ"
    COPY_OF_ANOTHER_MESSAGE = "copy of another message"
    COPY_BODY_DIFFERS = "copy has another body"
    COPY_PROPERTIES_DIFFER = "copy has other properties"
    FILTERED_DIFFERS = f"{OF_OUTCOME} differs from the filter"
    KEY_DIFFERS = "acked key differs from its hash"
    NOT_AUDITED = "not audited"

    @classmethod
    def of(cls, text: str) -> Problem:
        """The kind of a text in the column ``problem``. Raises ValueError for a text of no kind."""
        outcome, _, rest = text.partition(" ")
        general = f"{OF_OUTCOME} {rest}"
        return cls(general) if outcome in _OUTCOMES and general in set(cls) else cls(text)


_OUTCOMES = {*map(str, Outcome), "delivered", "redriven"}


class Advice(NamedTuple):
    """What a kind of problem means for the messages, and what to do."""

    meaning: str
    action: str


_RESTORE = (
    "Stop what writes to the store, restore the store, or the shard with its offsets, from a backup taken before "
    "('docs/backup.md', \"Restore one shard\"), and audit that."
)
_RESTORE_LOG = (
    "Another program than rmq changed the store, or storage lost data. Find out what writes to it. Restore the store from a "
    "backup, or the shard, whose groups then consume again what came after the copy unless their offsets are set first "
    "('docs/backup.md', \"Restore one shard\"), and audit that; keep the damaged copy until the cause is known."
)
_RESTORE_FILE = "Restore the file from a backup under the same name. " + _RESTORE_LOG
_REPORT = (
    "rmq commits no such window, so the store was changed from outside, or rmq has a defect: report it with the output of "
    "'rmq audit --json'. To have the messages consumed again: rmq reset, or rmq replay."
)
_REBUILD = (
    "First do what the other findings say about the commit log. Then no message is lost: 'rmq dispatch --rebuild' writes the "
    "tables again from the log."
)

ADVICE: Mapping[Problem, Advice] = {
    Problem.GAP: Advice("a group has passed these messages without an outcome", _REPORT),
    Problem.OVERLAP: Advice("a group has consumed these messages twice without a reset", _REPORT),
    Problem.START_NOT_RECORDED: Advice("a window began at an offset that no commit recorded", _REPORT),
    Problem.MOVED_FROM_ELSEWHERE: Advice(
        "a move of offsets began where the group was not",
        "Where it is the reset that ended a 'position differs' of the same two offsets, nothing more is to be done: it stays "
        "in every audit, and shows that the position had been changed. Else: " + _REPORT,
    ),
    Problem.POSITION_DIFFERS: Advice(
        "the next window of the group begins at another offset than its history ends at",
        "'rmq reset' moves the group to the offset that its history ends at, with a record, which every later audit names as "
        "'moved from elsewhere'. " + _RESTORE_LOG,
    ),
    Problem.WINDOW_OF_DELETED_GROUP: Advice("a window was committed after its group had been deleted", _REPORT),
    Problem.REDRIVEN_AGAIN: Advice("dead letters were sent twice", _REPORT),
    Problem.COUNTS_DO_NOT_ADD_UP: Advice("the record of a window does not say what became of each message", _REPORT),
    Problem.HASH_SUMS_DO_NOT_ADD_UP: Advice(
        "the record of a window counts other messages than those of its range", _REPORT
    ),
    Problem.DIFFERS_FROM_ITS_ROWS: Advice(
        "the copies or outcomes of a commit are not those that it recorded", _RESTORE_LOG
    ),
    Problem.OUTSIDE_ITS_RANGE: Advice("a commit has an outcome of a message that it did not read", _RESTORE_LOG),
    Problem.TWICE: Advice("a message has two outcomes, or two copies", _RESTORE_LOG),
    Problem.COPY_IN_NO_QUEUE: Advice("a copy was written that no group will ever read", _RESTORE_LOG),
    Problem.RETRY_NOT_DELIVERED: Advice(
        "a retry was passed over: its group will not get the message again",
        "'rmq track' shows the message; 'rmq replay' consumes it again. " + _RESTORE_LOG,
    ),
    Problem.RETRY_DELIVERED_TWICE: Advice("a group gets a retry twice", _REPORT),
    Problem.RETRY_DELIVERED_EARLY: Advice("a retry was delivered before its turn", _REPORT),
    Problem.KEYS_DIFFER: Advice("a duplicate could be acked again, or a first message be absorbed", _RESTORE_LOG),
    Problem.SEGMENT_FILE_NOT_LIVE: Advice(
        "another tool (OPTIMIZE, DELETE, RESTORE) took the file out of the table; its messages can be read until it is deleted",
        "Do not run VACUUM. " + _RESTORE,
    ),
    Problem.FIRST_OFFSET_DIFFERS: Advice(
        "no commit removed the messages before the first offset, or one removed messages after it, or the record of a removal "
        "has messages that came later, or that a group had still to read",
        "Run no 'rmq maintain': it deletes the messages before the first offset. " + _RESTORE_LOG,
    ),
    Problem.SHARD_NOT_NAMED: Advice(
        "the folder has the tables of a shard: other commands refuse the store, or leave out its messages",
        "Restore the file in shards/ from a backup, and audit again. If the folder is a copy, move it out of the store.",
    ),
    Problem.SHARD_TWICE: Advice(
        "all messages of the shard are in the store twice, and groups consume them twice",
        "Stop what writes to the store. Find out which of the two folders is the copy, and move it and its file in shards/ out "
        "of the store.",
    ),
    Problem.SHARD_ELSEWHERE: Advice(
        "the folder has the tables of another shard: it was renamed, or two folders were exchanged, and new messages go to the "
        "wrong one",
        "Stop what writes to the store. Give each folder the name of the shard that the detail names, and audit again. What is "
        "named then was stored meanwhile: restore both shards from a backup taken before.",
    ),
    Problem.DESCRIPTION_DIFFERS: Advice(
        "store.json or the entry of a shard was changed: retries may be due at other times than when they were written",
        "Stop what writes to the store. Restore store.json and the folder shards/ from a backup, and audit again.",
    ),
    Problem.TABLE_PROPERTIES_DIFFER: Advice(
        "another tool changed the protocol or the properties of a table: tools that do not know the rules of rmq may write to "
        "it, or delete files that are needed",
        "Let no other tool write to the table, and no VACUUM run. Where an earlier version of rmq wrote a property, 'rmq "
        "upgrade' corrects it. " + _RESTORE_LOG,
    ),
    Problem.FILE_MISSING: Advice(
        "a file that a table's log names is not in the store: its rows are lost here",
        "Restore the file from a backup under the same name, else the shard. Of consumequeue, offsets and commits nothing is "
        "lost: 'rmq dispatch --rebuild' writes them again.",
    ),
    Problem.FILE_SIZE_DIFFERS: Advice(
        "a file was cut or overwritten", "Restore the file from a backup under the same name. " + _RESTORE_LOG
    ),
    Problem.FILE_UNREADABLE: Advice(
        "the end of a file cannot be read, so none of its rows can",
        "Where the detail names a permission, or storage that does not answer: let this user read the file, and audit again. "
        "Otherwise restore the file from a backup under the same name.",
    ),
    Problem.FILE_ROWS_DIFFER: Advice("a file has more or fewer rows than the log says", _RESTORE_LOG),
    Problem.FILE_OF_ANOTHER_TABLE: Advice("a file has not the columns of its table", _RESTORE_LOG),
    Problem.FILE_OF_ANOTHER_KIND: Advice(
        "by the log a file is of another kind than its folder: queries read its rows as something that they are not",
        _RESTORE_LOG,
    ),
    Problem.STATISTICS_DIFFER: Advice(
        "by the log a file has not the values that its rows have: queries leave it out, and their answers lack its rows",
        _RESTORE_LOG,
    ),
    Problem.CHECKPOINT_UNREADABLE: Advice(
        "the newest checkpoint of a table's log, or the hint at it, is damaged, or the hint names none that is there: rmq "
        "reads the entries before it, other engines may not be able to read the table",
        "Where the detail says that one is not a file, remove that first, as also a checkpoint of a later version than the "
        "newest entry of the log. Run 'rmq maintain --step checkpoint': it writes both again.",
    ),
    Problem.LOG_ENTRY_NOT_VALID: Advice(
        "an entry of a table's log has a value that is not as Delta's protocol says, or that readers understand differently: "
        "other engines cannot read the table, or read other files, and no checkpoint of it can be written",
        "Of metaData.format, run 'rmq upgrade': an earlier version of rmq wrote it so. Else compare the entry with that of a "
        "backup, and restore it under the same name. " + _RESTORE_LOG,
    ),
    Problem.COVERED_ENTRY_DAMAGED: Advice(
        "an entry of a table's log is damaged, and a checkpoint has what it said: nothing is lost, and rmq reads and writes "
        "the table as before. What the log was before the checkpoint can no longer be compared, and other engines cannot read "
        "the table as of a version before it",
        "Do not delete the entry: a process that is behind may take its name for the end of the log. 'rmq maintain' deletes it "
        "once a later checkpoint is two hours old. Find out what damaged it: the disk or the program may damage other files.",
    ),
    Problem.FILE_IN_NO_SEGMENT: Advice(
        "no commit put these messages into a queue: they count twice in SQL, or no group reads them",
        _RESTORE_LOG,
    ),
    Problem.REPLACED_FILE_LIVE: Advice(
        "another tool (RESTORE) put a file back that a compaction had joined with others: its rows are in the table twice, and "
        "count twice in SQL",
        "Stop what writes to the store, and run no 'rmq maintain': it may join the rows again. " + _RESTORE_LOG,
    ),
    Problem.RECORDED_FILE_NOT_LIVE: Advice(
        "another tool (OPTIMIZE, DELETE, RESTORE) took a file out of the table that a commit wrote: its rows are missing, "
        "such as archived messages, outcomes, or messages of transactions that are in no queue",
        "Do not run VACUUM. " + _RESTORE,
    ),
    Problem.FILE_NOT_RECORDED: Advice(
        "no commit wrote this file: its rows, such as archived messages, outcomes or keys of acked messages, are in the table "
        "twice, or another tool made them",
        "Stop what writes to the store, and run no 'rmq maintain'. " + _RESTORE_LOG,
    ),
    Problem.RECORDED_FILE_DIFFERS: Advice(
        "by the record of its commit a file has another size, other rows or another digest than by the log, or the record does "
        "not list it: one of the two was changed",
        _RESTORE_LOG,
    ),
    Problem.SEGMENT_ROWS_DIFFER: Advice(
        "the segments name more or fewer rows of a file than it has: messages are missing, or there twice", _RESTORE_LOG
    ),
    Problem.SEGMENTS_OVERLAP: Advice("two messages have the same offsets of a queue", _RESTORE_LOG),
    Problem.MESSAGES_MISSING: Advice(
        "no commit has a message for these offsets of a queue, and none says why; or they were archived, and no file has them",
        _RESTORE_LOG,
    ),
    Problem.QUEUE_END_DIFFERS: Advice(
        "by its messages a queue ends at the begin offset, by its position at the end offset", _RESTORE_LOG
    ),
    Problem.COPY_IN_ANOTHER_TOPIC: Advice("a retry was delivered to another group than its own", _RESTORE_LOG),
    Problem.POSITION_NOT_RECORDED: Advice(
        "a position (an epoch, a pass, a claim, how far an import is) is not what the commits made it", _RESTORE_LOG
    ),
    Problem.ANOTHER_HISTORY: Advice(
        "the log lacks commits on which its entries were decided, or that a derived table was made from, and has others in "
        "their place: states of before and after a restore are in one store, as in a copy by another tool over an earlier one, "
        "or a process went on while the store was restored. Offsets may have passed messages that no listener got",
        "Do not run VACUUM, and do not rebuild. Of a copy by another tool make a new one, in an empty target. "
        + _RESTORE,
    ),
    Problem.COMMIT_TWICE: Advice("a commit counts twice in SQL", _RESTORE_LOG),
    Problem.RECORD_NOT_VALID: Advice(
        "the record of a commit lacks what every commit of its action has, or has what none has, such as messages that are due "
        "at another time than their queue says: it was changed, or its entry of the log is in the place of another one",
        "Compare its file with that of a backup, and restore it under the same name. " + _RESTORE_LOG,
    ),
    Problem.COMMIT_RECORD_DIFFERS: Advice(
        "the commit log and the table commits have different records of a commit: one of the two was changed",
        "If the file of the log is 'file changed', restore it. Else do not rebuild yet, as that takes over the log's record: "
        "compare the file with that of a backup, and restore it if they differ; if not, 'rmq dispatch --rebuild'. "
        + _RESTORE_LOG,
    ),
    Problem.COMMIT_NOT_IN_LOG: Advice(
        "the table commits has a commit that the commit log lacks: the log's file with its record was taken out, and with it "
        "the places of its messages",
        "Do not run VACUUM, and do not rebuild: the derived tables have the only record of the commit. " + _RESTORE_LOG,
    ),
    Problem.DERIVED_TABLE_DIFFERS: Advice("a derived table has not the rows of the commit log", _REBUILD),
    Problem.LOG_ROLLED_BACK: Advice(
        "the commit log has not come as far as a derived table: it lacks its newest commits, and is an older copy",
        "Stop what writes to the store. If the log is the older one, restore its newer state; else 'rmq dispatch --rebuild'.",
    ),
    Problem.LOG_READ_DIFFERENTLY: Advice(
        "the Delta library cannot read the log of a table, or has other files by it than rmq: other engines read other rows or "
        "none, and no checkpoint can be written",
        "Where the detail or another finding names a file of the log or a property of this table, compare it with that of a "
        "backup, and restore the file of the log under the same name. " + _RESTORE_LOG,
    ),
    Problem.FILE_CHANGED: Advice(
        "the bytes of a file are not those that its commit wrote: a disk or another program changed it",
        "Restore the file from a backup under the same name, and audit again. Its other findings say which "
        "messages are wrong; if there are none, it is a column that nothing else repeats.",
    ),
    Problem.DIGEST_NOT_RECORDED_ONCE: Advice(
        "the records of commits have no digest of a file, or several: a record was changed, and perhaps the file too",
        "Compare the file, and that with the record of its commit, with those of a backup. " + _RESTORE_LOG,
    ),
    Problem.MESSAGE_ELSEWHERE: Advice(
        "rows of a file are not at the places that their commit gave them: some are missing, doubled or exchanged",
        _RESTORE_FILE,
    ),
    Problem.MESSAGE_DIFFERS_FROM_COMMIT: Advice(
        "a message has not the values that follow from the record of its commit, such as when it was stored or is due, or of a "
        "retry the epoch of its group: a reset by time may pass over it, or it may be delivered at another time, or be dropped "
        "as one of before a delete of the group",
        _RESTORE_FILE,
    ),
    Problem.BODY_DIFFERS: Advice("a body has not the CRC that its producer or broker computed", _RESTORE_FILE),
    Problem.PROPERTIES_DIFFER: Advice(
        "the unique key, the keys, the tags or the tags code of a message are not those of its properties, or its segment "
        "does not have the tags code: subscriptions to tags may leave it out, and a search for a key may not find it",
        _RESTORE_FILE,
    ),
    Problem.COPY_OF_ANOTHER_MESSAGE: Advice(
        "a retry, a dead letter or a delivered message has not the unique key of the message that it names",
        _RESTORE_FILE,
    ),
    Problem.COPY_BODY_DIFFERS: Advice(
        "a retry, a dead letter or a delivered message has not the body of the message that it names", _RESTORE_FILE
    ),
    Problem.COPY_PROPERTIES_DIFFER: Advice(
        "a retry, a dead letter, a delivered or a redriven message has not the properties of users, the flags, the time of "
        "birth or the number of attempts that follow from the message that it names and from the edits of its redrive",
        _RESTORE_FILE,
    ),
    Problem.FILTERED_DIFFERS: Advice(
        "the record of a window counts other messages as filtered than those that do not match its subscription",
        _REPORT,
    ),
    Problem.KEY_DIFFERS: Advice(
        "the text and the hash of an acked key are not of one key, and a key counts only where both are equal: a duplicate "
        "could be acked again",
        _RESTORE_FILE,
    ),
    Problem.NOT_AUDITED: Advice(
        "a part of the audit could not be done; what it would have proved is not known",
        "Remove the cause that the detail names, and audit again.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One contradiction, with its place as far as it is known."""

    shard: str
    problem: str
    """A text of which ``Problem.of`` knows the kind."""
    group_name: str | None = None
    pass_: int | None = None
    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    begin_offset: int | None = None
    end_offset: int | None = None
    """Exclusive."""
    file: str | None = None
    """Relative to the folder of the shard."""
    detail: str | None = None
    """The facts in words."""

    def row(self) -> dict[str, Any]:
        """By the columns of ``AUDIT``."""
        return {name: getattr(self, "pass_" if name == "pass" else name) for name in AUDIT.names}


AUDIT = pa.schema(
    [
        ("shard", pa.string()),
        ("group_name", pa.string()),
        ("pass", pa.int64()),
        ("topic", pa.string()),
        ("broker_name", pa.string()),
        ("queue_id", pa.int32()),
        ("problem", pa.string()),
        ("begin_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("file", pa.string()),
        ("detail", pa.string()),
    ]
)
"""The columns of the view ``audit``, and then the file and the facts."""


def of_row(row: Mapping[str, Any]) -> Finding:
    """A row of the view ``audit``."""
    return Finding(**{"pass_" if name == "pass" else name: value for name, value in row.items()})


def table_of(findings: Iterable[Finding]) -> pa.Table:
    """Schema ``AUDIT``, in a fixed order."""
    rows = sorted(
        (finding.row() for finding in findings), key=lambda row: [(v is not None, str(v)) for v in row.values()]
    )
    return pa.Table.from_pylist(rows, schema=AUDIT)


def advice_for(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """For each kind among the findings what it means and what to do, in the order of ``Problem``."""
    kinds = {Problem.of(finding.problem) for finding in findings}
    return [{"problem": str(kind), **ADVICE[kind]._asdict()} for kind in Problem if kind in kinds]


def without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, each once, and each file once for a kind of problem that concerns all of it: two parts read the ends of
    files, and the records of commits."""
    of_files: dict[tuple[str, str | None, str], Finding] = {}
    others: list[Finding] = []
    for finding in findings:
        if finding.problem in (Problem.FILE_MISSING, Problem.FILE_UNREADABLE):
            of_files.setdefault((finding.shard, finding.file, finding.problem), finding)
        else:
            others.append(finding)
    return [*of_files.values(), *dict.fromkeys(others)]
