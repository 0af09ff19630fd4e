"""Import: a broker's files become commits of the lake (RocketMQ's files: rules 1.7, 2.2 and 3).

Incremental by physical offset: only bytes after the position ``import/<broker>`` are read, once the bytes before it are
known to be the same as before. A commit is a part of the log of 1 to 4 GiB (``import_part.py``), all or nothing: a damaged
record, a gap or a contradiction in a part stops the import before anything of it is committed, unless ``salvage`` says to
skip and record it. The broker's offsets and configs are kept as observations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rmq_store.broker_files.batch_consume_queue import BatchConsumeQueueFiles, list_batch_consume_queues
from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles, list_consume_queues
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.limits import MOST_CONFIG_BYTES, MOST_QUEUES
from rmq_store.broker_files.log_names import LogNames
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.broker_files.queue_generations import (
    AtBroker,
    Generations,
    QueueKey,
    WithoutEntries,
    observed_here,
    without_entries,
)
from rmq_store.broker_files.rocks_db import refuse_rocksdb
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Ctl, Observed, is_born_here
from rmq_store.commit.positions import Positions, import_id
from rmq_store.commit.request import Status, refuse_other_request
from rmq_store.errors import BadData, DamagedBehindCut, DamagedRecord, RmqError, WrongUse
from rmq_store.lake.broker.broker_configs import BrokerConfigs, read_configs
from rmq_store.lake.broker.broker_levels import with_levels_to_end
from rmq_store.lake.broker.common_log import begin_of_log, common_log, what_differs
from rmq_store.lake.broker.diverged_log import LogCut, log_cut, refuse_closed, refuse_old_records
from rmq_store.lake.broker.entry_reader import newest_entries
from rmq_store.lake.broker.handed_offsets import Handed, handed_offsets, not_installed, not_seen_since, queues_at_broker
from rmq_store.lake.broker.import_commit import PartOf, import_commit, new_generations, proposal_of
from rmq_store.lake.broker.import_job import ImportJob
from rmq_store.lake.broker.import_part import LogRead, OtherLog, read_part
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest, report_of
from rmq_store.lake.broker.imported_log import refuse_imported
from rmq_store.lake.broker.misplaced_records import misplaced_records
from rmq_store.lake.broker.rocksdb_source import with_rocksdb
from rmq_store.lake.broker.root_file_source import file_source
from rmq_store.lake.commit.claim import HeldClaim, claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.message_search import log_places
from rmq_store.lake.table.import_parameters import parameter_of_import
from rmq_store.lake.table.imports import (
    BEGUN_AGAIN,
    CONTINUES_OF,
    END_NOTE,
    GENERATIONS,
    OFFSETS_FILE,
    TAIL,
    WITHOUT_ENTRIES,
    first_of_continued,
    generations_of,
    handed_back_by,
    last_configs,
    last_import,
    last_records_of,
    may_have_left_out,
    names_of_log,
    queues_without_entries,
    salvages_of,
)
from rmq_store.lake.table.imports import generations as recorded_generations
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore, check_shard_name
from rmq_store.lake.window.engine import Engine
from rmq_store.message.message import MessageQueue
from rmq_store.message.sys_flag import MOST_BODY_BYTES
from rmq_store.message.validators import check_broker_name
from rmq_store.utils.host import Host


def import_store(
    store: LakeStore,
    source: Root,
    request: ImportRequest,
    host: Host,
    engine: Engine,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Import what is new in a broker's store directory, part by part. What was committed before an error stays: the same
    request again, or another one, continues after it.

    ``progress(read_bytes, all_bytes)`` is called as files have been read. Raises BadData (not a broker's store, one in
    RocksDB, files that do not fit together, a gap), DamagedRecord, OverLimit and UnsupportedRecord (both also with
    ``salvage``), WrongUse (no such folder, an invalid name or limit, the broker was cut over or is imported into another
    shard, or its log under another name), HeldByAnother, and the errors of ``commit``.
    """
    check_request(request)
    started_ms = host.now_ms()
    shard = _shard_of(store, request, file_source(source))
    shard.commitlog.refresh()

    def read_now() -> _Import:
        return _Import(store, shard, request, _BrokerStore.read(source, request), host, engine, progress)

    earlier = _parts(shard, request)
    if earlier and earlier[-1].request_complete:
        return read_now().already_committed(earlier)
    refuse_other_history(shard, shard.consumequeue)
    if request.dry_run:
        return read_now().tried()
    warnings: list[str] = []
    more = True
    while more:
        report, more = _next_part(shard, request, read_now, host, started_ms)
        if report.status is Status.COMMITTED:
            warnings += follow_up(shard, host)
            reached("7.dispatched")
        started_ms = host.now_ms()
    return replace(report, warnings=tuple(warnings))


def check_request(request: ImportRequest) -> None:
    """Raises WrongUse for an invalid name of the broker or of the shard, a limit out of its range, and options that contradict
    each other. Reads nothing."""
    check_broker_name(request.broker_name)
    check_shard_name(request.shard_name)
    if is_born_here(request.broker_name):
        raise WrongUse(
            f"{request.broker_name!r}: names that begin with lake- are those of the queues of messages that are sent here. "
            "Choose another broker name (--broker)"
        )
    for name, limit, most in (
        ("max_body_bytes", request.max_body_bytes, MOST_BODY_BYTES),
        ("max_config_bytes", request.max_config_bytes, MOST_CONFIG_BYTES),
        ("max_queues", request.max_queues, MOST_QUEUES),
    ):
        if not 1 <= limit <= most:
            raise WrongUse(f"{name} must be a whole number from 1 to {most}; it is {limit}")
    if request.continues and request.salvage:
        raise WrongUse(
            "an import that continues another log takes no --salvage: a damaged record and one that differs look the same, and "
            "what both logs have would be in the store twice. Restore the file, as from a slave or a backup of the broker, or "
            "import the broker's store into a new store (--root)"
        )


@dataclass(frozen=True, slots=True)
class _BrokerStore:
    """What a broker's store directory has at one time."""

    files: FileSource
    log: MappedFileQueue
    configs: BrokerConfigs
    queues: Mapping[QueueKey, ConsumeQueueFiles]
    batch_queues: Mapping[QueueKey, BatchConsumeQueueFiles]

    @classmethod
    def read(cls, source: Root, request: ImportRequest) -> _BrokerStore:
        files = with_rocksdb(file_source(source), request.max_config_bytes)
        log = list_commit_log(files, allow_missing=True)
        refuse_rocksdb(files)
        configs = read_configs(
            files, request.broker_name, max_config_bytes=request.max_config_bytes, max_queues=request.max_queues
        )
        queues = {(queue.topic, queue.queue_id): queue for queue in list_consume_queues(files)}
        batch_queues = {(queue.topic, queue.queue_id): queue for queue in list_batch_consume_queues(files)}
        return cls(files, log, configs, queues, batch_queues)


def _next_part(
    shard: Shard, request: ImportRequest, read_now: Callable[[], _Import], host: Host, started_ms: int
) -> tuple[ImportReport, bool]:
    """Claim, read and commit the next part. Returns a report of all parts of the request, and whether more follow.

    The broker's store is listed once the claim is held. A list from before it may be older than what another import has
    committed meanwhile: its log would be too short, and its offsets would be those of an earlier time.
    """
    reached("1.planned")
    with claimed(
        shard, Wish.of_whole(request.request_id, request.actor, "~import", _log_name(shard, request)), host
    ) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        importing, parts = read_now(), _parts(shard, request)
        if parts and parts[-1].request_complete:  # by another attempt, before this one had the claim
            claim.release()
            return importing.already_committed(parts), False
        return importing.commit_part(claim, parts, started_ms)


def _log_name(shard: Shard, request: ImportRequest) -> str:
    """The oldest name of the log: imports and cut-overs of one log have one claim, whatever their names."""
    continues, name = request.continues, request.broker_name
    return names_of_log(shard, name if continues is None else continues.broker_name).names[0]


@dataclass(frozen=True, slots=True)
class _Import:
    """An import of what a broker's store has now."""

    store: LakeStore
    shard: Shard
    request: ImportRequest
    broker: _BrokerStore
    host: Host
    engine: Engine
    progress: Callable[[int, int], None] | None

    def already_committed(self, parts: Sequence[Ctl]) -> ImportReport:
        return report_of(Status.ALREADY_COMMITTED, self.shard, self.request, parts, self.broker.configs.notes)

    def commit_part(self, claim: HeldClaim, parts: Sequence[Ctl], started_ms: int) -> tuple[ImportReport, bool]:
        """Read and commit the part after ``parts``. As ``_next_part``."""
        shard, request, log = self.shard, self.request, self.broker.log
        broker_name = request.broker_name
        refuse_closed(shard, broker_name)
        cut = self.cut()
        positions = shard.positions()
        begun = positions if cut is None else positions.advanced(positions.version, cut.advance, {})
        begin = self._begin() if cut is None else cut.common.end
        older = self._older_names(cut)
        refuse_imported(self.store, self.broker.files, log, (*older, broker_name), begin)
        generations = self._generations(cut)
        job = self._job(generations)
        progressed = partial(self._progressed, parts, begin)
        names = (*older, broker_name)
        read_placed = partial(self._read_placed, begin=begin, names=names, positions=begun, progress=progressed)
        job, read = read_placed(job)
        begun_again = new_generations(job, begun, read)
        if begun_again or read.begins:  # the rows have their offsets in the lake, so they are written again
            generations = generations.with_new(begun_again)
            job = replace(job, commit_id=self.host.new_commit_id(), bases=generations.newest, begins=read.begins)
            job, read = read_placed(job)
        refuse_old_records(self.store, shard, self.broker.files, log, older, read)
        recorded = last_configs(shard, broker_name if cut is None else cut.broker_name)
        part = self._part(len(parts) + 1, cut, generations, begun_again)
        ends = {queue: begun.max_offset(queue) for queue in begun.all_queues()}
        ends |= {segment.queue: (segment.base or 0) + segment.count for segment in read.produced}
        # The broker corrects an offset beyond the end when it starts: then a message of this part has it, and waits.
        earlier = with_levels_to_end(begun, recorded.observed) if recorded else ()
        configs = self._configs(cut, recorded, earlier, generations, ends)
        notes = configs.notes if read.note is None else (*configs.notes, read.note)
        made = import_commit(
            job,
            part,
            read,
            configs,
            recorded,
            begun,
            may_be_left_out=partial(may_have_left_out, shard, names),
            salvages=partial(salvages_of, shard, names),
        )
        if cut is not None:
            made = replace(made, advance={**cut.advance, **made.advance})
        before = last_import(shard, broker_name)
        is_needed = made.is_needed or before is None or before.parameter(END_NOTE) != read.note
        if cut is None and not is_needed and before is not None and before.request_complete:
            claim.release()
            unchanged = replace(made.ctl, produced=())
            return replace(report_of(Status.UNCHANGED, shard, request, [unchanged], notes), commit_id=None), False
        reached("3.staged")
        claim.stop_renewing()
        proposal = claim.taken.ended_by(proposal_of(made, read, broker_name, positions))
        committed = commit(shard, proposal, self.host, started_ms=started_ms)
        return report_of(Status.COMMITTED, shard, request, [*parts, committed.ctl], notes), not read.is_last

    def _read(self, job: ImportJob, begin: int, older: Sequence[str], progress: Callable[[int], None]) -> LogRead:
        """The next part of the log. As ``read_part``; ``older``: the names of the log that the broker's continues."""
        try:
            return read_part(job, self.broker.log, begin, self.engine, progress)
        except DamagedRecord as error:
            positions, offset = self.shard.positions(), error.commit_log_offset
            if any(offset < (positions.get(import_id(name)) or 0) for name in older):
                raise DamagedBehindCut(error.file, error.position, offset, error.reason) from error
            raise

    def _read_placed(
        self, job: ImportJob, begin: int, names: Sequence[str], positions: Positions, progress: Callable[[int], None]
    ) -> tuple[ImportJob, LogRead]:
        """The part without the records that say a wrong place, for which a salvage reads it again. ``names``: those of the log.
        Raises DamagedRecord for the first one when this is not a salvage."""
        *older, _ = names
        read = self._read(job, begin, older, progress)
        records = misplaced_records(job, read, positions)
        if not records:
            return job, read
        if not job.salvage:
            raise records[0].as_error(read.log.file_at(records[0].begin))
        reasons = {**job.misplaced, **{record.begin: record.reason for record in records}}
        job = replace(job, commit_id=self.host.new_commit_id(), misplaced=reasons)
        return job, self._read(job, begin, older, progress)

    def tried(self) -> ImportReport:
        """A dry run of an import that continues another log."""
        cut, positions = self.cut(), self.shard.positions()
        end = (positions.get(import_id(self.request.broker_name)) or 0) if cut is None else cut.common.end
        own_names = (*self._older_names(cut), self.request.broker_name)
        refuse_imported(self.store, self.broker.files, self.broker.log, own_names, end)
        return ImportReport(
            status=Status.DRY_RUN,
            shard=self.shard.name,
            broker_name=self.request.broker_name,
            request_id=self.request.request_id,
            begin=end,
            end=end,
            notes=self.broker.configs.notes,
            continued=None if cut is None else cut.report,
        )

    def cut(self) -> LogCut | None:
        """Where the log of the other name was cut. None where no other log is to be continued, or this name does so already."""
        continues, name = self.request.continues, self.request.broker_name
        if continues is None:
            return None
        if self.shard.positions().get(import_id(name)) is None:
            return log_cut(self.store, self.shard, self.broker.files, self.broker.log, continues, name)
        if continues.broker_name not in names_of_log(self.shard, name).names[:-1]:
            raise WrongUse(
                f"broker {name} was imported before, and does not continue {continues.broker_name}: use another name"
            )
        return None

    def _older_names(self, cut: LogCut | None) -> tuple[str, ...]:
        """The names of the log that the broker's name continues."""
        if cut is not None:
            return names_of_log(self.shard, cut.broker_name).names
        return names_of_log(self.shard, self.request.broker_name).names[:-1]

    def _begin(self) -> int:
        """The physical offset to read from. Raises BadData when this is not the log that was imported."""
        name, files, log = self.request.broker_name, self.broker.files, self.broker.log
        try:
            return begin_of_log(self.store, self.shard, files, log, name, salvage=self.request.salvage)
        except OtherLog as error:
            imported = self.shard.positions().get(import_id(name)) or 0
            common = common_log(self.store, self.shard, files, log, name, imported, first_other=error.first_other)
            raise BadData(f"{error}: {what_differs(common, name)}. Nothing was changed.") from error

    def _part(
        self, number: int, cut: LogCut | None, generations: Generations, begun_again: Mapping[QueueKey, int]
    ) -> PartOf:
        request, shard = self.request, self.shard
        facts: dict[str, Any] = dict(handed_back_by(shard, request.broker_name))
        if begun_again or (cut is not None and generations.bases):
            bases = [[*key, base] for key, base in sorted(begun_again.items())]
            facts |= {GENERATIONS: generations.rows(), BEGUN_AGAIN: bases}
        else:
            facts |= generations_of(shard, request.broker_name)
        if cut is not None and request.continues is not None:
            facts |= cut.parameters
            reason = request.continues.reason
            return PartOf(request.request_id, request.actor, number, facts=facts, reason=reason, moved=cut.moved)
        first = first_of_continued(shard, request.broker_name)
        facts |= {CONTINUES_OF: first.commit_id} if first else {}
        before = last_import(shard, request.broker_name)
        return PartOf(
            request.request_id,
            request.actor,
            number,
            facts=facts,
            records_before=last_records_of(before) if before else None,
            tail_before=before.parameter(TAIL) if before else None,
        )

    def _generations(self, cut: LogCut | None) -> Generations:
        """Those that were imported before this part. A name that continues another one's log has those of its queues there."""
        if cut is None:
            return recorded_generations(self.shard, self.request.broker_name)
        return recorded_generations(self.shard, cut.broker_name).before(cut.by_queue)

    def _configs(
        self,
        cut: LogCut | None,
        recorded: Ctl | None,
        earlier: Collection[Observed],
        generations: Generations,
        ends: Mapping[MessageQueue, int],
    ) -> BrokerConfigs:
        """Those of the files, with the offsets of the groups in the queues of all names of the log. ``earlier``: what
        ``recorded`` has of them."""
        name, configs = self.request.broker_name, self.broker.configs
        imported = name if cut is None else cut.broker_name
        names = names_of_log(self.shard, imported)
        handed = not_seen_since(handed_offsets(self.shard, imported), earlier)
        if cut is not None:
            names = names.continued_by(cut.name, cut.by_queue)
        has_messages = {q: end for q, end in ends.items() if q.broker_name == name and end > generations.base(q)}
        vanished, lower = _vanished(earlier, handed, configs), _lower(earlier, generations, configs)
        empty = without_entries(
            partial(self._has_entries, generations, ends, vanished, lower),
            configs.topics,
            self.broker.log.files[0].start_offset,
            has_messages,
            partial(_places, self.shard, names),
            _without_entries_before(names, recorded),
        )
        at_broker = AtBroker(
            configs.observed, configs.topics, empty, bool(self.broker.queues), configs.has_groups, configs.has_levels
        )
        observed = observed_here(names, generations, at_broker, ends, earlier, handed)
        parameters = configs.parameters
        if not configs.has_groups and recorded and (offsets_file := recorded.parameter(OFFSETS_FILE)):
            parameters = parameters | {OFFSETS_FILE: offsets_file}
        if empty:
            parameters = parameters | {WITHOUT_ENTRIES: list(map(list, empty))}
        left_out = {one.key for one in empty}  # by an export, too; and of a deleted topic the broker has none
        exported = {
            (group, q): at
            for (group, q), at in handed.items()
            if (q.topic, q.queue_id) not in left_out and not 0 < generations.base(q) >= at
        }
        notes = (*configs.notes, *not_installed(exported, configs.observed, observed if len(names.names) == 1 else ()))
        return replace(configs, observed=observed, parameters=parameters, notes=notes)

    def _has_entries(
        self,
        generations: Generations,
        ends: Mapping[MessageQueue, int],
        vanished: Collection[QueueKey],
        lower: Collection[QueueKey],
        queue: MessageQueue,
    ) -> bool | None:
        """As ``without_entries`` takes it: by the consume queues, which a copy of the broker's store may lack. Then a queue
        whose offset has ``vanished`` counts as one without entries: an export would give the broker that offset again.

        Entries may be ahead of the log. They are compared with it where they are not as many as the messages here, and in
        ``lower``, where the old offset of a group would be dropped: elsewhere it would cost a read for each queue.
        """
        key = (queue.topic, queue.queue_id)
        if not self.broker.queues:
            return False if key in vanished else None
        files = self.broker.queues.get(key)
        if files is None:
            return key in self.broker.batch_queues
        written, log = files.written(), self.broker.log.files[0]
        may_be_ahead = key in lower or written.stop + generations.base(queue) != ends[queue]
        # Not those of messages that retention has removed.
        if written and may_be_ahead and files.entry(written[-1]).commit_log_offset >= log.start_offset:
            written = newest_entries(self.broker.files, files, log.size_bytes).written
        return bool(written)

    def _job(self, generations: Generations) -> ImportJob:
        return ImportJob(
            source=self.broker.files,
            root=self.shard.root,
            table=self.shard.commitlog.path,
            commit_id=self.host.new_commit_id(),
            broker_name=self.request.broker_name,
            levels=self.store.levels,
            queues=self.broker.queues,
            batch_queues=self.broker.batch_queues,
            file_bytes=self.broker.log.files[0].size_bytes,
            salvage=self.request.salvage,
            max_body_bytes=self.request.max_body_bytes,
            bases=generations.newest,
        )

    def _progressed(self, parts: Sequence[Ctl], begin: int, read_bytes: int) -> None:
        if self.progress:
            first = parameter_of_import(parts[0], "range")[0] if parts else begin
            self.progress(begin - first + read_bytes, self.broker.log.files[-1].end_offset - first)


def _shard_of(store: LakeStore, request: ImportRequest, source: FileSource) -> Shard:
    """The shard of the request, which is made when it is missing. Raises BadData when the source is no broker's store, and
    WrongUse when its messages were imported under another broker name, or another shard has the broker's queues: consumers that
    share a group's queues leave out a queue that two shards have."""
    log = list_commit_log(source, allow_missing=True)
    names, imported = store.shard_names(), import_id(request.broker_name)
    if request.shard_name in names:
        shard = store.create_shard(request.shard_name)
        shard.commitlog.refresh()
        if shard.positions().get(imported) is not None:
            return shard
    for name in names:
        if name != request.shard_name and store.shards(name)[0].positions().get(imported) is not None:
            raise WrongUse(
                f"broker {request.broker_name} is imported into shard {name}: a broker's queues are in one shard. Import it "
                f"there (--shard {name}), or another broker's store under another name (--broker)"
            )
    if request.continues is not None:  # it shows where the log of the other name ends, which is in a shard
        return store.shards(request.shard_name)[0]
    refuse_imported(store, source, log, (request.broker_name,))
    return store.create_shard(request.shard_name)


def _parts(shard: Shard, request: ImportRequest) -> list[Ctl]:
    """The parts of the request that are committed. Raises WrongUse when the request id has imported another broker."""
    ctls = shard.ctls_of_request(request.request_id, None, Action.IMPORT, Action.SALVAGE)
    for ctl in ctls[:1]:
        recorded = {"broker_name": ctl.parameter("broker_name")}
        refuse_other_request(request.request_id, recorded, {"broker_name": request.broker_name})
    return ctls


def _lower(earlier: Iterable[Observed], generations: Generations, configs: BrokerConfigs) -> set[QueueKey]:
    """The queues in which the broker's file has a lower offset of a group than before, or none any more: after a reset or a
    delete of the group's offsets, or since the topic was deleted and made again. An offset of an older generation does not
    count where it is gone: it is kept."""
    if not configs.has_groups:
        return set()
    at_broker = {(one.group, one.queue.topic, one.queue.queue_id): one.offset for one in configs.observed}

    def is_lower(one: Observed) -> bool:
        base, now = generations.base(one.queue), at_broker.get((one.group, one.queue.topic, one.queue.queue_id))
        return not 0 < base >= one.offset if now is None else base + now < one.offset

    return {(one.queue.topic, one.queue.queue_id) for one in earlier if one.group != SCHEDULE_GROUP and is_lower(one)}


def _vanished(earlier: Iterable[Observed], handed: Handed, configs: BrokerConfigs) -> set[QueueKey]:
    """The queues in which the broker's file had an offset of a group and has none any more, as after a delete of the topic.
    It may never have had those that were handed back."""
    if not configs.has_groups:
        return set()
    had = queues_at_broker((one.group, one.queue) for one in earlier if one.group != SCHEDULE_GROUP)
    had -= queues_at_broker((one.group, one.queue) for one in configs.observed) | queues_at_broker(handed)
    return {(topic, queue_id) for _, topic, queue_id in had}


def _without_entries_before(names: LogNames, recorded: Ctl | None) -> list[WithoutEntries]:
    """Those of the import before. Where the log was cut since then, without those whose last message the broker has lost."""
    newest, empty = names.names[-1], queues_without_entries(recorded)
    if recorded is None or recorded.parameter("broker_name") == newest:
        return list(empty)
    return [one for one in empty if names.queue_at(*one.key, one.end - 1).broker_name != newest]


def _places(shard: Shard, names: LogNames, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, int]:
    """As ``log_places``, of the broker's messages, which the queue of an older name of the log may have. None where the tables
    that have the segments cannot be read, which an import does not need."""
    kept_in = {queue: names.queue_at(queue.topic, queue.queue_id, offset) for queue, offset in offsets.items()}
    try:
        places = log_places(shard, {kept_in[queue]: offset for queue, offset in offsets.items()})
    except RmqError:
        return {}
    return {queue: places[kept] for queue, kept in kept_in.items() if kept in places}
