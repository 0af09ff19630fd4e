"""All maintenance of a shard: old messages are removed, small files joined, checkpoints written, files deleted that nothing
names.

Each step is safe beside everything else, and any number of times. What was done before an error stays, and the next run does
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from rmq_store.errors import StoreUnusable, clause
from rmq_store.lake.commit.cursor import refuse_rolled_back
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.maintain.derived import join
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.lake.maintain.vacuum import VacuumRequest, vacuum
from rmq_store.lake.table.checkpoint import check_log, clean_up, entries_since_checkpoint, write_checkpoint
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.maintain.orphans import check_age
from rmq_store.maintain.request import ACTION_OF, MaintainRequest, Step, TableReport, done_before
from rmq_store.utils.host import Host
from rmq_store.utils.progress import Progress

_OF_COMMIT_LOG = frozenset({Step.RETENTION, Step.MESSAGES, Step.VACUUM})
_OF_DERIVED = frozenset({Step.DERIVED, Step.VACUUM})
"""The steps that take files out of the table, by what ``rmq`` reads in its log."""

ProgressOf = Callable[[str], AbstractContextManager[Progress | None]]
"""The progress of a step. It is called with the unit that is counted."""


def _no_progress(unit: str) -> AbstractContextManager[Progress | None]:
    return nullcontext()


def maintain(
    shard: Shard, request: MaintainRequest, host: Host, progress_of: ProgressOf = _no_progress
) -> list[TableReport]:
    """Maintain the tables of a shard: the commit log, then the derived ones. The report of the commit log also has what earlier
    tries of the same request have done, as far as their commits say it.

    Raises WrongUse for an age of files that is not allowed, BadData, MissingFile and DerivedTableDamaged when something
    cannot be read, LogDamaged also when the Delta library reads it otherwise, StoreUnusable, and the errors of ``commit``.
    """
    check_age(request.age_ms)
    commitlog, derived = shard.commitlog, {kind.name: kind for kind in KINDS}
    tables = {"commitlog": commitlog} | {kind.name: kind.table(shard) for kind in KINDS}
    for table in tables.values():
        table.refresh()
    refuse_rolled_back(shard)  # as the first commit would; a dry run has none
    for name, table in tables.items():
        if request.steps & (_OF_COMMIT_LOG if name == "commitlog" else _OF_DERIVED):
            _check_log(table)
    reports = {name: _begun(shard, name, table) for name, table in tables.items()}
    reports["commitlog"].before = committed(shard, request)
    if Step.RETENTION in request.steps and request.rules:
        retention = RetentionRequest(
            request_id=request.request_id,
            actor=request.actor,
            rules=request.rules,
            reason=request.reason,
            dry_run=request.dry_run,
        )
        retained = retain(shard, retention, host)
        reports["commitlog"].removals = tuple(retained.removals)
        reports["commitlog"].warnings += retained.warnings
    if Step.MESSAGES in request.steps:
        compaction = CompactRequest(request.request_id, request.actor, request.reason)
        with progress_of("files of the commit log") as progress:
            compacted = compact(shard, compaction, host, dry_run=request.dry_run, progress=progress)
        reports["commitlog"].joined = compacted.replaced_files
        reports["commitlog"].removed_rows = compacted.removed_rows
        reports["commitlog"].archived_rows = compacted.archived_rows
        reports["commitlog"].warnings += compacted.warnings
        if compacted.overtaken:
            warning = (
                f"another maintenance replaced {compacted.overtaken} groups of files first; the next run joins the rest"
            )
            reports["commitlog"].warnings += (f"shard {shard.name}: {warning}",)
    if Step.DERIVED in request.steps:
        for name, kind in derived.items():
            with progress_of(f"files of {name}") as progress:
                reports[name].joined = join(shard, kind, host, dry_run=request.dry_run, progress=progress).joined
    if Step.CHECKPOINT in request.steps:
        for name, table in tables.items():
            _checkpoint(table, reports[name], dry_run=request.dry_run)
    if Step.VACUUM in request.steps:
        deletion = VacuumRequest(
            request_id=request.request_id,
            actor=request.actor,
            reason=request.reason,
            age_ms=request.age_ms,
            dry_run=request.dry_run,
        )
        for name, table in tables.items():
            with progress_of(f"files without a name in {name}") as progress:
                reports[name].deleted = vacuum(shard, table, deletion, host, progress).deleted
    return _ended(reports, tables)


def committed(shard: Shard, request: MaintainRequest) -> dict[str, int]:
    """What the request has committed in the shard, as of the handle's snapshot: the counts of ``done_before``."""
    actions = [action for step, action in ACTION_OF.items() if step in request.steps]
    return done_before(shard.ctls_of_request(request.request_id, None, *actions))


def _begun(shard: Shard, name: str, table: LakeTable) -> TableReport:
    files, size = table.live_size()
    return TableReport(
        shard=shard.name, table=name, files_before=files, bytes_before=size, files_after=files, bytes_after=size
    )


def _ended(reports: Mapping[str, TableReport], tables: Mapping[str, LakeTable]) -> list[TableReport]:
    after = {name: table.live_size() for name, table in tables.items()}
    return [replace(one, files_after=after[name][0], bytes_after=after[name][1]) for name, one in reports.items()]


def _check_log(table: LakeTable) -> None:
    """Raises LogDamaged when the Delta library reads the table's log otherwise, StoreUnusable when it does not answer."""
    try:
        check_log(table)
    except LogCleaned:  # by another maintenance, of which a checkpoint has what was read
        pass
    except OSError as error:
        raise StoreUnusable(f"{clause(error)}. Nothing was done; try again") from error


def _checkpoint(table: LakeTable, report: TableReport, *, dry_run: bool) -> None:
    table.refresh()
    report.checkpoint = entries_since_checkpoint(table) > 0 or table.log.checkpoint_damage() is not None
    if dry_run:
        return
    try:
        if report.checkpoint:
            write_checkpoint(table)
        report.log_files_deleted = clean_up(table)
    except OSError as error:
        raise StoreUnusable(f"{clause(error)}. The table is as it was; try again") from error
