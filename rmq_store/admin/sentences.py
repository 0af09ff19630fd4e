"""What a task or command did, as a sentence in plain words. It is made from the answer that the task or command returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from rmq_store.commit.request import Status, overall
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.message.message_const import retry_topic
from rmq_store.utils.suggestions import listed
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.commit.claim import Held
    from rmq_store.commit.positions import QueueRange
    from rmq_store.window.consume import WindowReport
    from rmq_store.window.dry_run import ConsumePlan
    from rmq_store.window.due import WaitingRetries

Answer = Mapping[str, Any]

_COMMITTED_BEFORE = "the request was committed before"
_NOTHING_NEW = f"{_COMMITTED_BEFORE}, nothing was done now: "


def window_sentence(answer: Answer) -> str:
    """The windows of a consumption or replay in a shard, from ``Consumption.summary``."""
    parts = [_counts(answer["messages"], answer["outcomes"], answer["retry_levels"])]
    parts += _offsets([tuple(ends) for ends in answer["ranges"].values()])
    if answer["next_retry_ms"] is not None:
        parts.append(f"next retry due at {format_time(answer['next_retry_ms'])}")
    if not answer["complete"]:
        parts.append("more to come")
    return _before(answer) + "; ".join(parts) + _blocked_part(answer) + _warnings([answer])


def late_sentence(messages: int) -> str:
    """That the interval of a backfill has so many messages that its replay has not, and what to do about it."""
    return (
        f"the interval has {_messages(messages)} more than were replayed, stored here since: backfill it again with a new "
        "reason in 'reprocess', which replays all of it once more"
    )


def blocked_warnings(group: str, unread: Sequence[QueueRange]) -> list[str]:
    """That queues of an orderly group are blocked, and what reads on: of a replay another attempt, as its windows are over, and
    of other queues the next window. ``unread``: what was left in each of them, by offset."""
    retries = retry_topic(group)
    replayed = [one for one in unread if replayed_group(group) is not None and one.queue.topic != retries]
    others = [one for one in unread if one not in replayed]
    warnings = []
    if replayed:
        warnings.append(
            f"{_waiting_queues(len(replayed))}, so that the replay has not consumed {_messages(sum(map(len, replayed)))}: "
            "once the listener handles it, begin another attempt, with a reason in 'reprocess' of the form in Airflow, or by "
            f"rmq replay --group {quote(group)} --reprocess REASON"
        )
    if others:
        warnings.append(
            f"{_waiting_queues(len(others))}: the next window of {group} tries again (see the view blocked)"
        )
    return warnings


def finish_sentence(answer: Answer) -> str:
    """The rounds of retries that end a replay."""
    rest = f"{_blocked_part(answer)}{_warnings([answer])}"
    if not answer["rounds"]:
        return f"no message of the replay is left to retry{rest}"
    counts = _counts(answer["messages"], answer["outcomes"], {})
    return f"{_before(answer)}{_number(answer['rounds'], 'round')} of retries, {counts}; none is left{rest}"


def deliver_sentence(
    answers: Sequence[Answer], started: Sequence[str] = (), failed: Mapping[str, str] | None = None
) -> str:
    """A delivery, from an answer per shard. ``started``: the groups whose retry windows it starts. ``failed``: the kinds of the
    errors by shard; what waits there is not known."""
    delivered = sum(answer["delivered"] for answer in answers)
    next_ms = min((answer["next_due_ms"] for answer in answers if answer["next_due_ms"] is not None), default=None)
    then = "nothing else waits" if next_ms is None else f"the next message is due at {format_time(next_ms)}"
    if failed:
        then = f"failed in shard {', '.join(f'{shard} ({kind})' for shard, kind in failed.items())}"
    windows = f"; starts a retry window of {listed(started)}" if started else ""
    return f"{_before(*answers)}{_messages(delivered)} delivered{windows}; {then}{_warnings(answers)}"


def redrive_sentence(answers: Sequence[Answer]) -> str:
    """A redrive or its dry run, from an answer per shard that has dead letters."""
    dead, failed = (sum(answer[name] for answer in answers) for name in ("letters", "failed"))
    topics = ", ".join(sorted({answer["topic"] for answer in answers}))
    verb = "would be sent" if _is_dry_run(answers) else "sent"
    text = f"{_number(dead, 'dead letter')} {verb}{f' to {topics}' if topics else ''}"
    return _before(*answers) + text + (f"; {failed:,} cannot be edited" if failed else "") + _warnings(answers)


def replay_preview_sentence(answer: Answer) -> str:
    """What a replay would read, from its preview, and what would be done to finish it."""
    finish = _to_finish(answer.get("to_finish", 0))
    if answer["status"] == "already_committed":
        parts = [_COMMITTED_BEFORE, *finish] if finish else [f"{_COMMITTED_BEFORE}, there is nothing left to do"]
        return "; ".join([*parts, *answer["notes"]])
    if finish and not answer["queues"]:
        return "; ".join([*finish, *answer["notes"]])
    size = f"{_messages(answer['messages'])} ({_number(answer['bytes'], 'byte')}) of {_number(len(answer['queues']), 'queue')}"
    others = [f"{answer[name]:,} of them {name}" for name in ("filtered", "dropped") if answer[name]]
    others += [f"{answer['lost']:,} lost"] if answer["lost"] else []
    if answer["last_attempts"]:
        others.append(f"{answer['last_attempts']:,} become dead letters if they fail")
    return "; ".join(["would read " + ", ".join([size, *others]), *finish, answer["time"], *answer["notes"]])


def _to_finish(retries: int) -> list[str]:
    """What the retries of a replay are that wait now, if there are any."""
    if not retries:
        return []
    return [f"{_number(retries, 'retry')} would be consumed as {'it becomes' if retries == 1 else 'they become'} due"]


def nothing_to_read(plan: ConsumePlan) -> str:
    """Why a replay, or the follow-up of one, has nothing to do."""
    retries = plan.retries
    waiting = [f"{_number(retries.due, 'retry')} due, for rmq_deliver_delayed"] if retries.due else []
    if retries.waiting and retries.next_due_ms is not None:
        waiting.append(
            f"{_number(retries.waiting, 'retry')} waiting, the first is due at {format_time(retries.next_due_ms)}"
        )
    return "; ".join([*plan.notes, *waiting]) or "there is nothing to replay"


def moves_sentence(answers: Sequence[Answer]) -> str:
    """A reset, an undo or a dry run of them, from an answer per shard with its ``moves``: queue, from, to. That of a dry run
    also has ``again`` and ``skipped``: messages and bytes."""
    moves = [(move[1], move[2]) for answer in answers for move in answer["moves"]]
    changed = [move for move in moves if move[0] != move[1]]
    if not changed:
        return f"no offset changes: {_number(len(moves), 'queue')} looked at{_warnings(answers)}"
    verb = "would move: " if _is_dry_run(answers) else "moved: "
    return _before(*answers) + verb + _offsets(changed)[0] + _sizes(answers) + _warnings(answers)


def import_sentence(answer: Answer) -> str:
    """An import, from its report."""
    if answer["status"] == "unchanged":
        return f"broker {answer['broker_name']} has no new messages{_warnings([answer])}"
    skipped = f"; {_number(answer['salvaged'], 'damaged part')} skipped" if answer["salvaged"] else ""
    text = (
        f"{_messages(answer['messages'])} of {_number(answer['queues'], 'queue')} imported from {answer['broker_name']}"
    )
    return f"{_before(answer)}{text}; its log is read up to {answer['end']:,}{skipped}{_warnings([answer])}"


def _sizes(answers: Sequence[Answer]) -> str:
    """What dry runs of moves would read again and skip."""
    parts = ""
    for name, verb in (("again", "read again"), ("skipped", "skipped")):
        messages, bytes_ = (sum(answer.get(name, (0, 0))[at] for answer in answers) for at in (0, 1))
        if messages:
            parts += f"; {_messages(messages)} ({_number(bytes_, 'byte')}) would be {verb}"
    return parts


_MAINTAINED = {
    "messages_removed": ("message", "removed"),
    "messages_lost": ("message", "lost to groups"),
    "joined": ("file", "joined"),
    "checkpoint": ("checkpoint", "written"),
    "log_files_deleted": ("log file", "deleted"),
    "files_deleted": ("data file", "deleted"),
}


_BY_COMMITS = {name: _MAINTAINED[name] for name in ("messages_removed", "messages_lost", "joined")}
"""What the commits of an earlier try say."""


def maintain_sentence(answers: Sequence[Answer], *, is_partly_recorded: bool = False) -> str:
    """A step of the maintenance, from an answer per shard and table.

    ``is_partly_recorded``: there was an earlier try, and no commit says all that it has done.
    """
    now, before = _maintained(_MAINTAINED, answers), _maintained(_BY_COMMITS, [answer["before"] for answer in answers])
    if files := sum(answer["before"].get("files_to_delete", 0) for answer in answers):
        before.append(f"up to {_number(files, 'data file', 'deleted')}")
    if before:
        text = (
            f"{_COMMITTED_BEFORE}: {', '.join(before)}; now {', '.join(now)}"
            if now
            else _NOTHING_NEW + ", ".join(before)
        )
    else:
        text = ", ".join(now) or f"there was nothing {'left ' if is_partly_recorded else ''}to do"
    more = "; an earlier try may have done more than was recorded" if is_partly_recorded else ""
    return text + more + _warnings(answers)


def _maintained(nouns: Mapping[str, tuple[str, str]], answers: Sequence[Answer]) -> list[str]:
    counts = {name: sum(int(answer.get(name, 0)) for answer in answers) for name in nouns}
    return [_number(count, *nouns[name]) for name, count in counts.items() if count]


def dispatch_sentence(answer: Answer) -> str:
    """A dispatch: how many commits of each shard, the sum over its derived tables."""
    commits = sum(answer.values())
    if not commits:
        return "no commit was left to dispatch"
    return f"{_number(commits, 'commit')} dispatched, the sum over the derived tables"


def export_sentence(answers: Sequence[Answer]) -> str:
    """An export of offsets, from an answer per broker."""
    if not answers:
        return "no broker was imported"
    changed = [answer["broker_name"] for answer in answers if answer["changed"]]
    files = f"the files of {listed(changed)} changed" if changed else "no file changed"
    lowered = [
        f"{_number(answer['lowered'], 'offset')} of {answer['broker_name']}, which consumes again from there"
        for answer in answers
        if answer["lowered"]
    ]
    notes = sum(len(answer["notes"]) for answer in answers)
    parts = [f"offsets of {_number(len(answers), 'broker')} exported: {files}"]
    parts += [f"lowered: {listed(lowered)}"] if lowered else []
    parts += [f"{_number(notes, 'note')} in the log"] if notes else []
    return "; ".join(parts)


def planned_sentence(answer: Answer, failed: Mapping[str, str] | None = None) -> str:
    """A run for all planned groups. ``failed``: the kinds of the errors by group; what such a group committed before counts."""
    groups = f"{answer['groups_with_work']:,} of {_number(answer['planned_groups'], 'planned group')}"
    errors = f"; failed: {listed([f'{group} ({kind})' for group, kind in failed.items()])}" if failed else ""
    before = "" if failed else _before(answer)
    return f"{before}{_messages(answer['messages'])} of {groups}{errors}{_blocked_part(answer)}{_warnings([answer])}"


# --- progress ----------------------------------------------------------------------------------------------------------


def window_line(report: WindowReport) -> str:
    """A window, as soon as it is finished, for the progress of a request."""
    counts = [f"{count:,} {outcome}" for outcome, count in report.counts().items() if count]
    messages = f"{report.messages():,} messages" + (f" ({', '.join(counts)})" if counts else "")
    more = "" if report.complete else ", more to come"
    waits = f", {_blocked_text(len(report.unread), sum(map(len, report.unread)))}" if report.unread else ""
    held = "".join(f", {_held_text(one)}" for one in report.held)
    idle = f", {report.idle}" if report.idle else ""
    waiting = f", {_waiting_text(report.waiting)}" if report.waiting else ""
    return (
        f"shard {report.shard}: {report.status}, {messages}, engine {report.engine}{more}{waits}{held}{idle}{waiting}"
    )


def _blocked_part(answer: Answer) -> str:
    queues = answer["blocked_queues"]
    return f"; {_blocked_text(queues, answer['not_consumed'])}" if queues else ""


def _blocked_text(queues: int, messages: int) -> str:
    """``messages``: those of the request that blocked queues have left."""
    return f"{_waiting_queues(queues)} (see the view blocked), {_messages(messages)} not consumed"


def _waiting_queues(count: int) -> str:
    return f"{_number(count, 'queue')} {'waits' if count == 1 else 'wait'} at a failed message"


def _held_text(held: Held) -> str:
    return f"{held.queue} is held by {held.holder or 'another run'} for {held.remaining_s} s more"


def _waiting_text(waiting: WaitingRetries) -> str:
    return f"{waiting.retries:,} retries wait for rmq deliver, the first is due at {format_time(waiting.next_due_ms)}"


# --- parts -----------------------------------------------------------------------------------------------------------


def _counts(messages: int, outcomes: Mapping[str, int], levels: Mapping[str, int]) -> str:
    """``levels``: retried messages by delay level."""
    if not messages:
        return "no messages"
    return f"{_messages(messages)}: " + ", ".join(
        f"{count:,} {outcome}" + (_levels(levels) if outcome == "retried" else "")
        for outcome, count in outcomes.items()
    )


def _levels(levels: Mapping[str, int]) -> str:
    if len(levels) == 1:
        return f" at level {next(iter(levels))}"
    counts = ", ".join(
        f"{count:,} at level {level}" for level, count in sorted(levels.items(), key=lambda one: int(one[0]))
    )
    return f" ({counts})" if counts else ""


def _offsets(ranges: Sequence[tuple[int | None, int | None]]) -> list[str]:
    """The offsets of some queues, if there are any: those of all where they are the same."""
    if not ranges:
        return []
    queues = _number(len(ranges), "queue")
    if len(set(ranges)) == 1:
        return [f"offsets {_range(ranges[0])} in {queues}"]
    return [f"offsets of {queues}, from {_range(min(ranges, key=_length))} to {_range(max(ranges, key=_length))}"]


def _range(ends: tuple[int | None, int | None]) -> str:
    begin, end = ("none" if offset is None else offset for offset in ends)
    return f"{begin} -> {end}"


def _length(ends: tuple[int | None, int | None]) -> int:
    return abs((ends[1] or 0) - (ends[0] or 0))


def _messages(count: int) -> str:
    return _number(count, "message")


def _number(count: int, noun: str, rest: str = "") -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}{f' {rest}' if rest else ''}"


def _is_dry_run(answers: Iterable[Answer]) -> bool:
    return any(answer["status"] == "dry_run" for answer in answers)


def _before(*answers: Answer) -> str:
    """The beginning of a sentence about a request that was complete before; a shard in which it had nothing to do does not
    count."""
    return _NOTHING_NEW if overall(answer["status"] for answer in answers) == Status.ALREADY_COMMITTED else ""


def _warnings(answers: Iterable[Answer]) -> str:
    count = sum(len(answer.get("warnings", ())) for answer in answers)
    return f"; {_number(count, 'warning')} in the log" if count else ""
