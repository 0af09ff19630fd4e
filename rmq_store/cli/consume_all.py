"""``rmq consume --all``: the groups of the settings, together in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.common import COMMITTED, new_request, open_store, part_error, settings_path
from rmq_store.cli.dry_run import plan_answer
from rmq_store.cli.engines import engines_of, listener_folders, spark_of
from rmq_store.cli.options import SparkOptions, WindowOptions, count_from
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of
from rmq_store.commit.request import Status, actor_of, overall
from rmq_store.errors import HeldByAnother, RmqError, WrongUse, error_answer
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed

if TYPE_CHECKING:
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.lake.window.group_course import GroupReport
    from rmq_store.settings.settings import GroupSettings, Settings
    from rmq_store.window.consume_request import ConsumeRequest


AllOption = Annotated[
    bool, typer.Option("--all", help="For all groups of the settings, or those that --group matches, in this process.")
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="GROUP",
        help="With --all: not for this group; also a pattern, such as 'test-*'. Repeatable.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", parser=count_from(1), help="With --all: so many groups run at once. Default: 20."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllOptions:
    """Of a command for many groups."""

    all_groups: AllOption = False
    exclude: ExcludeOption = None
    threads: ThreadsOption = None


def consume_all(
    patterns: Sequence[str],
    *,
    until_ms: int | None,
    max_messages: int | None,
    together: AllOptions,
    dry_run: bool,
    options: WindowOptions,
    spark: SparkOptions,
) -> None:
    """Consume for the groups whose names match a pattern; no patterns: all. Ends with the exit code of ``_exit_code``."""
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.lake.window.consume_all import THREADS
    from rmq_store.lake.window.consume_all import consume_all as consume_groups
    from rmq_store.settings.settings import read_settings
    from rmq_store.window.consume_request import ConsumeRequest

    groups, answers = _chosen(read_settings(settings_path(options.settings)), patterns, together.exclude or (), output)
    request = ConsumeRequest(
        request_id=new_request("consume", options.request, host),
        actor=actor_of(options.actor),
        until_ms=until_ms,
        max_messages=max_messages,
    )
    folders = listener_folders(options.listener_path or ())
    if dry_run:
        _show_plans(output, store, groups, request, answers, host, options.shard)
        return
    COMMITTED.set(lambda: _answer(request.request_id, answers))
    target = spark_of(spark, options.settings)
    listeners = [group.listener for group in groups]
    with (
        output.kept_clean(),
        engines_of("consume", options.engine, host, target, folders, listeners) as engines,
        progress_of(output, "groups") as progress,
    ):

        def finished(report: GroupReport) -> None:
            answers.append(_group_answer(request.request_id, report))
            if progress is not None:
                progress(len(answers), total)

        total = len(groups) + len(answers)
        report = consume_groups(
            store,
            groups,
            request,
            engines.for_window,
            host,
            shard=options.shard,
            threads=together.threads or THREADS,
            finished=finished,
        )
    answers.sort(key=lambda answer: str(answer["group"]))
    output.table(
        [_row(answer) for answer in answers if _is_shown(answer)], _COLUMNS, empty="there is nothing to consume"
    )
    counts = f"{len(answers):,}, {sum(map(_is_shown, answers)):,} of them listed"
    output.answer(
        _answer(request.request_id, answers, report.warnings), f"request: {request.request_id}", f"groups: {counts}"
    )
    if exit_code := _exit_code(answers):
        raise typer.Exit(exit_code)


def _show_plans(
    output: Output,
    store: LakeStore,
    groups: Sequence[GroupSettings],
    request: ConsumeRequest,
    answers: list[dict[str, Any]],
    host: Host,
    shard: str | None,
) -> None:
    """The dry run. ``answers``: those of the groups whose settings are wrong."""
    from rmq_store.lake.window.dry_run import plan_all

    with output.kept_clean():
        plans = plan_all(store, groups, request, host, shard=shard)
    for group, plan in zip(groups, plans, strict=True):
        answers.append(
            {"group": group.name} | part_error(plan, request.request_id)
            if isinstance(plan, RmqError)
            else plan_answer(plan)
        )
    answers.sort(key=lambda answer: str(answer["group"]))
    rows = [_planned_row(answer) for answer in answers if _is_shown(answer)]
    output.table(rows, _PLAN_COLUMNS, empty="there is nothing to consume")
    failed = sum("error" in answer for answer in answers)
    output.answer(
        {
            "status": Status.DRY_RUN,
            "request_id": request.request_id,
            "messages": sum(answer.get("messages", 0) for answer in answers),
            "bytes": sum(answer.get("bytes", 0) for answer in answers),
            "failed": failed,
            "groups": answers,
            "warnings": [],
        },
        f"groups: {len(answers):,}, {len(rows):,} of them listed",
    )
    if exit_code := _exit_code(answers):
        raise typer.Exit(exit_code)


def _chosen(
    settings: Settings, patterns: Sequence[str], exclude: Sequence[str], output: Output
) -> tuple[list[GroupSettings], list[dict[str, Any]]]:
    """The groups to consume for, and the answers of those whose settings are wrong. Raises WrongUse for a pattern that no
    group matches, and for settings without groups."""
    settings.need_any_group()
    names = [*(group.name for group in settings.groups), *settings.wrong]
    for pattern in (*patterns, *exclude):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise WrongUse(f"{settings.source} has no group that matches {pattern!r}; known: {listed(names)}")

    def is_chosen(name: str) -> bool:
        return (not patterns or _matches(name, patterns)) and not _matches(name, exclude)

    chosen = [group for group in settings.groups if is_chosen(group.name)]
    unnamed = [group.name for group in chosen if group.broadcasting and "@" not in group.name]
    if unnamed:
        output.note(f"left out, as these groups are broadcasting and name no client (GROUP@CLIENT): {listed(unnamed)}")
    wrong = []
    for name, problems in settings.wrong.items():
        if is_chosen(name):
            text = f"{settings.source}: group {name}: {'; '.join(problems)}"
            wrong.append({"group": name} | error_answer("WrongUse", text, WrongUse.exit_code))
    return [group for group in chosen if group.name not in unnamed], wrong


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(request_id: str, groups: Sequence[dict[str, Any]], warnings: Sequence[str] = ()) -> dict[str, Any]:
    failed = sum("error" in group for group in groups)
    return {
        "status": "error" if failed else overall(group["status"] for group in groups),
        "request_id": request_id,
        "messages": sum(group.get("messages", 0) for group in groups),
        "failed": failed,
        "groups": list(groups),
        "warnings": list(warnings),
    }


def _group_answer(request_id: str, report: GroupReport) -> dict[str, Any]:
    """The answer of ``rmq consume --group``, with the error, if there is one."""
    from rmq_store.lake.window.consumption import answer

    whole = answer(report.group, request_id, report.shards) | {"idle": report.idle or None}
    return whole if report.error is None else whole | part_error(report.error, request_id)


def _exit_code(answers: Sequence[dict[str, Any]]) -> int:
    """The greatest of the groups that failed. A group that another request uses has not: its code counts where no group
    has another one."""
    codes = {answer.get("exit_code", 0) for answer in answers}
    return max(codes - {HeldByAnother.exit_code}, default=0) or max(codes, default=0)


_PLAN_COLUMNS = ("group", "status", "windows", "messages", "bytes", "matched", "due_retries", "seconds", "error")
_COLUMNS = ("group", "status", "messages", "outcomes", "error")


def _is_shown(answer: dict[str, Any]) -> bool:
    return bool(answer["status"] != Status.EMPTY)


def _planned_row(answer: dict[str, Any]) -> dict[str, Any]:
    estimate = answer.get("estimate")
    return {
        "group": answer["group"],
        "status": answer["status"],
        "windows": len(answer.get("windows", ())),
        **{name: answer.get(name, 0) for name in ("messages", "bytes", "matched")},
        "due_retries": answer.get("retries", {}).get("due", 0),
        "seconds": None if estimate is None else round(estimate["seconds"], 1),
        "error": f"{answer['error']}: {answer['message']}" if "error" in answer else "",
    }


def _row(answer: dict[str, Any]) -> dict[str, Any]:
    outcomes: dict[str, int] = {}
    for shard in answer.get("shards", ()):
        for outcome, count in shard["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return {
        "group": answer["group"],
        "status": answer["status"],
        "messages": answer.get("messages", 0),
        "outcomes": ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items()),
        "error": f"{answer['error']}: {answer['message']}" if "error" in answer else "",
    }
