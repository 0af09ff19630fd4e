"""A shard: one broker's tables under ``<root>/<shard>/``, and lookups in them that need no scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Action, Ctl, lane, local_broker, shard_of
from rmq_store.commit.decide import MAX_SKEW_MS, first_day
from rmq_store.commit.positions import Positions, del_id, grp_id
from rmq_store.errors import BadData, RmqError, clause
from rmq_store.lake.table import tables
from rmq_store.lake.table.ctl_index import IS_CTL, CtlIndex
from rmq_store.lake.table.delta_log import DeltaLog, NoTable
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.derived_table import DerivedTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import both, in_parallel
from rmq_store.lake.table.shard_entry import entry_path, name_in_entry, read_entry, refuse_another
from rmq_store.utils.host import uuid7_floor, uuid7_ms

ABOUT_CLAIMS = (Action.CLAIM, Action.RENEW, Action.RELEASE)
_NEWEST_FILES = 4


class UnknownRecord(BadData):
    """The record of a commit is not understood. ``shard``, ``path``: the shard, and the file in its commit log."""

    def __init__(self, text: str, shard: str, path: str) -> None:
        super().__init__(text)
        self.shard = shard
        self.path = path


class Shard:
    """The tables of a shard, each opened when it is first used."""

    def __init__(self, root: Root, name: str, store_id: str | None = None) -> None:
        """``store_id``: that of the store, for which the commit log is compared with the shard's entry when it is opened; None:
        it is not, for what looks for damage, and for a second handle."""
        self.root = root
        self.name = name
        self._store_id = store_id
        self._read_before: dict[str, tuple[Ctl, ...]] = {}
        self._index: CtlIndex | None = None

    @cached_property
    def commitlog(self) -> LakeTable:
        """Raises NoTable when it is gone, ShardOfAnother when it is that of another shard, and as ``LakeTable.open``."""
        if self._store_id is None:
            return self._open_commitlog()
        log, entry = both(self.root, self._open_commitlog, partial(read_entry, self.root, self.name))
        refuse_another(entry, self.name, self._store_id, log.id)
        return log

    def _open_commitlog(self) -> LakeTable:
        try:
            return LakeTable.open(self.root, f"{self.name}/commitlog", tables.COMMITLOG_LAYOUT)
        except NoTable as error:
            if (other := name_in_entry(self.root, self.name)) == self.name:
                raise
            raise NoTable(
                f"{clause(error)}. Or delete {entry_path(self.name)}, if it is a copy: it says that it is the entry of {other}"
            ) from error

    @cached_property
    def consumequeue(self) -> LakeTable:
        return DerivedTable.open(self.root, f"{self.name}/consumequeue", tables.CONSUMEQUEUE_LAYOUT)

    @cached_property
    def offsets(self) -> LakeTable:
        return DerivedTable.open(self.root, f"{self.name}/offsets", tables.OFFSETS_LAYOUT)

    @cached_property
    def commits(self) -> LakeTable:
        return DerivedTable.open(self.root, f"{self.name}/commits", tables.COMMITS_LAYOUT)

    @classmethod
    def create(cls, root: Root, name: str) -> Shard:
        """Create the missing tables. All are open then, so that none is read twice."""
        shard = cls(root, name)
        shard.commitlog = LakeTable.create(root, f"{name}/commitlog", tables.COMMITLOG_LAYOUT)
        shard.consumequeue = DerivedTable.create(root, f"{name}/consumequeue", tables.CONSUMEQUEUE_LAYOUT)
        shard.offsets = DerivedTable.create(root, f"{name}/offsets", tables.OFFSETS_LAYOUT)
        shard.commits = DerivedTable.create(root, f"{name}/commits", tables.COMMITS_LAYOUT)
        return shard

    def refresh(self, *names: str) -> None:
        """Bring some tables up to their newest versions: those that are not open yet by opening them. In S3 all at once."""

        def up(name: str) -> None:
            is_open = name in self.__dict__
            table: LakeTable = getattr(self, name)
            if is_open:
                table.refresh()

        list(in_parallel(self.root, up, names))

    def is_as_read(self) -> bool:
        """Whether the log of each table that is open is the one that was read (``DeltaLog.is_as_read``). If not, the shard was
        probably restored from a copy: open it again. A request for each table, in S3 all at once."""
        logs = [table.log for table in vars(self).values() if isinstance(table, LakeTable)]
        return all(in_parallel(self.root, DeltaLog.is_as_read, logs))

    @property
    def local_broker(self) -> str:
        """The broker name of queues born in the lake."""
        return local_broker(self.name)

    def lane(self, group: str) -> str:
        """The broker name of a group's own schedule queues."""
        return lane(self.local_broker, group)

    def positions(self) -> Positions:
        """All positions as of the commit log's handle."""
        return self.commitlog.positions

    def named_by_queues(self) -> list[str]:
        """The shards in whose names the queues here were born, as of the commit log's handle, sorted. Only its own, unless the
        folder has the tables of another shard."""
        brokers = {queue.broker_name for queue in self.positions().all_queues()}
        return sorted({name for broker in brokers if (name := shard_of(broker)) is not None})

    # --- ctl rows ---

    @property
    def ctl_index(self) -> CtlIndex:
        """The ctl files of the handle's version."""
        files = self.commitlog.log.view.files
        if self._index is not None and not self._index.is_of(files):
            self._index = None
            self._read_before.clear()  # else a process that runs for days keeps them all
        self._index = self._index or CtlIndex(files)
        self._index.catch_up()
        return self._index

    def ctl_of(self, commit_id: str) -> Ctl | None:
        """The commit, if it is in the handle's snapshot."""
        ctls = self._ctls_with("commit_id", commit_id, self.ctl_index.with_commit(commit_id, commit_id))
        return next(iter(ctls), None)

    def ctl_file_of(self, commit_id: str) -> str | None:
        """The ctl file of the commit, if it is in the handle's snapshot."""
        paths = self.ctl_index.with_commit(commit_id, commit_id)
        return next((path for path in paths if self._ctls_with("commit_id", commit_id, [path])), None)

    def ctls_of_request(self, request_id: str, group: str | None, *actions: Action) -> list[Ctl]:
        """The commits of a request, in order. None is older than the ``first_day`` of its id."""
        ctls = [
            ctl
            for ctl in self._ctls_with(
                "request_id", request_id, self.ctl_index.with_request(request_id, first_day(request_id))
            )
            if ctl.group == group and ctl.action in actions
        ]
        return sorted(ctls, key=lambda ctl: (ctl.read_version, ctl.request_part))

    def ctls_since(self, ms: int, *, group: str | None = None, action: str | None = None) -> list[Ctl]:
        """The commits whose ids were made at ``ms`` or later, oldest first."""
        paths = self.ctl_index.since(ms, group_name=group, action=action)
        floor = uuid7_floor(ms)
        return [
            ctl
            for ctl in self.ctls_in(paths)
            if ctl.commit_id >= floor and group in (None, ctl.group) and action in (None, str(ctl.action))
        ]

    def ctls_stored_after(self, ms: int, actions: Sequence[Action]) -> list[Ctl]:
        """The commits of these actions, of any group, whose store timestamps are later than ``ms``, in commit order. By the
        statistics of the files, so that commits which a wrong clock has dated do not hide others."""
        later = pc.field("max.store_timestamp") > ms
        several = [self.commitlog.files(IS_CTL & later & _may_have("action", str(action))) for action in actions]
        paths = dict.fromkeys(path for files in several for path in files.column("path").to_pylist())
        return [ctl for ctl in self.ctls_in([*paths]) if ctl.action in actions and ctl.store_timestamp > ms]

    def has_commit(self, commit_id: str) -> bool:
        """Whether the log has the commit: mostly one of the newest entries that were read, else by ``ctl_of``."""
        newest_first = reversed(self.commitlog.log.view.commit_ids.values())
        return any(commit_id in commit_ids for commit_ids in newest_first) or self.ctl_of(commit_id) is not None

    def has_ctl(
        self, group: str, action: Action, epoch: int = 0, matches: Callable[[Ctl], bool] = lambda ctl: True
    ) -> bool:
        """Whether the group has such a commit of that action in this epoch or a later one. Usually that reads one file for yes
        and none for no: epochs grow, so no commit has a later one than the newest, or than those that a wrong clock may have
        put before it. A file that a compaction made has commits of any time up to its newest.

        In a folder a clock may be wrong by any time: where the group did something after its delete, all of its commits of
        that action may have to be read."""
        files = self._ctl_files_with(group, action)
        is_in_order = self._has_clock or self._is_deleted(group)
        floor = ""
        for path, newest in zip(*(files.column(name).to_pylist() for name in ("path", "max.commit_id")), strict=True):
            if newest < floor and is_in_order:
                return False
            for ctl in self.ctls_in([path]):
                if (ctl.group, ctl.action) == (group, action):
                    if (ctl.epoch or 0) < epoch:
                        floor = max(floor, uuid7_floor(uuid7_ms(ctl.commit_id) - 2 * MAX_SKEW_MS))
                    elif matches(ctl):
                        return True
        return False

    def first_ctl(self, group: str, action: Action, epoch: int) -> Ctl | None:
        """The group's first commit of that action in this epoch or a later one; None: there is none. Reads the files that may
        have it, the oldest first, until no other can have an earlier one. By the store timestamps, which are in commit order:
        a window has its id before its listener is called, and others may commit meanwhile. In a folder, where a clock may be
        wrong by any time, it reads all."""
        files = self._ctl_files_with(group, action).sort_by("min.store_timestamp")
        first: Ctl | None = None
        columns = (files.column(name).to_pylist() for name in ("path", "min.store_timestamp"))
        for path, oldest_ms in zip(*columns, strict=True):
            if first is not None and self._has_clock and oldest_ms > first.store_timestamp + 2 * MAX_SKEW_MS:
                break
            for ctl in self.ctls_in([path]):
                is_one = (ctl.group, ctl.action) == (group, action) and (ctl.epoch or 0) >= epoch
                if is_one and (first is None or ctl.read_version < first.read_version):
                    first = ctl
        return first

    def newest_ctl(self, group: str, action: Action) -> Ctl | None:
        """The group's newest commit of that action, if it is in one of the ``_NEWEST_FILES`` newest files that may have one:
        commits of many groups share files, and this is not worth reading them all."""
        for path in self._ctl_files_with(group, action).column("path").slice(0, _NEWEST_FILES).to_pylist():
            ctls = [ctl for ctl in self.ctls_in([path]) if (ctl.group, ctl.action) == (group, action)]
            if ctls:
                return ctls[-1]
        return None

    def last_ctl(self, group: str, action: Action) -> Ctl | None:
        """The group's last commit of that action in the log; None: there is none. Reads the files that may have it, the newest
        first, until no other can have a later one, whatever the clocks of the hosts said."""
        files = self._ctl_files_with(group, action)
        last: Ctl | None = None
        floor = ""
        for path, newest in zip(*(files.column(name).to_pylist() for name in ("path", "max.commit_id")), strict=True):
            if newest < floor:
                break
            for ctl in self.ctls_in([path]):
                if (ctl.group, ctl.action) == (group, action) and (
                    last is None or (ctl.read_version, ctl.commit_id) > (last.read_version, last.commit_id)
                ):
                    last = ctl
                    floor = max(floor, uuid7_floor(uuid7_ms(ctl.commit_id) - 2 * MAX_SKEW_MS))
        return last

    def newest_ctls(self, group: str, action: Action, most: int) -> list[Ctl]:
        """The group's newest commits of that action, at most ``most``, oldest first, from the ``most`` newest files that may
        have one."""
        paths = self._ctl_files_with(group, action).column("path").slice(0, most).to_pylist()
        return [ctl for ctl in self.ctls_in(paths) if (ctl.group, ctl.action) == (group, action)][-most:]

    @property
    def _has_clock(self) -> bool:
        """Whether each commit compares the clock of its host with that of the store, so that none is far away."""
        return not self.root.is_local

    def _is_deleted(self, group: str) -> bool:
        """Whether the delete of the group was the last commit that wrote its epoch, which each of its windows writes."""
        positions = self.positions()
        deleted_ms = positions.updated_ms(del_id(group))
        return deleted_ms > 0 and positions.updated_ms(grp_id(group)) == deleted_ms

    def _ctl_files_with(self, group: str, action: Action) -> pa.Table:
        """The files that may have commits of the group with that action, newest first."""
        where = IS_CTL & _may_have("group_name", group) & _may_have("action", str(action))
        return self.commitlog.files(where).sort_by([("max.commit_id", "descending")])

    def ctls_in(self, paths: Sequence[str]) -> list[Ctl]:
        """The rows of some ctl files, in commit order."""
        missing = [path for path in paths if path not in self._read_before]
        for path, rows in zip(missing, self.commitlog.read_each(missing, tables.CTL.names), strict=True):
            self.remember(path, self._ctls_of(path, rows))
        ctls = [ctl for path in paths for ctl in self._read_before[path]]
        return sorted(ctls, key=lambda ctl: (ctl.read_version, ctl.commit_id))

    def _ctls_with(self, column: str, value: str, paths: Sequence[str]) -> list[Ctl]:
        """The rows with this value. A file that a compaction made has hundreds: only these become commits, and are not kept."""
        ctls: list[Ctl] = []
        unread = [path for path in paths if path not in self._read_before]
        for path, rows in zip(unread, self.commitlog.read_each(unread, tables.CTL.names), strict=True):
            if rows.num_rows == 1:
                self.remember(path, self._ctls_of(path, rows))
            else:
                ctls += self._ctls_of(path, rows.filter(pc.equal(rows.column(column), value)))
        kept = [ctl for path in paths for ctl in self._read_before.get(path, ())]
        return [*ctls, *(ctl for ctl in kept if getattr(ctl, column) == value)]

    def _ctls_of(self, path: str, rows: pa.Table) -> tuple[Ctl, ...]:
        """The commits of a file. Raises UnknownRecord."""
        ctls, reasons = _understood(rows)
        if reasons:
            raise UnknownRecord(
                f"{self.root.uri_of(self.commitlog.path)}/{path} has a record that this version of rmq does not know "
                f"({reasons[0]}). If a newer version wrote it, use that one; otherwise restore the file from a backup",
                self.name,
                path,
            )
        return ctls

    def pass_over_unknown(self, path: str) -> None:
        """Keep only those commits of a file that are understood, for what looks for damage."""
        (rows,) = self.commitlog.read_each([path], tables.CTL.names)
        ctls, _ = _understood(rows)
        self.remember(path, ctls)

    def remember(self, path: str, ctls: tuple[Ctl, ...]) -> None:
        """Keep the content of a ctl file. It never changes, so it is read at most once."""
        self._read_before[path] = ctls


def _understood(rows: pa.Table) -> tuple[tuple[Ctl, ...], list[str]]:
    """The commits of some rows, and what is wrong with the others."""
    ctls: list[Ctl] = []
    reasons: list[str] = []
    for row in rows.to_pylist():
        try:
            ctls.append(tables.ctl_from_row(row))
        except (RmqError, ValueError, TypeError, LookupError, AttributeError) as error:
            reasons.append(f"commit {row['commit_id']}: {error}")
    return tuple(ctls), reasons


def _may_have(column: str, value: str) -> pc.Expression:
    """Files whose statistics allow ``column == value`` (text statistics are cut to 32 characters)."""
    return (pc.field(f"min.{column}") <= value) & (pc.field(f"max.{column}") >= value)
