"""The commit log has one history: each entry was decided on a commit that the log has before it.

Where the entries of two histories are in one log, such as in a copy by another tool over one of before a restore, all else may
fit: an entry has no more than the numbers of its queues, and these may be the same in both. No clock is used, since those of
hosts may be wrong by any time.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.lake.commit.cursor import HALF, holds
from rmq_store.lake.table.delta_entry import entry_name
from rmq_store.lake.table.delta_log import LOG_FOLDER
from rmq_store.lake.table.shard import Shard


def entries_of_another(shard: Shard) -> Iterator[tuple[str, str]]:
    """The entries of the commit log's handle, behind its checkpoint, that were decided in another history: the file, relative
    to the folder of the shard, and the facts in words. An entry of an earlier version does not say on which commit it was
    decided, nor does one behind a version without commits."""
    view = shard.commitlog.log.view
    version_of = {commit_id: version for version, ids in view.commit_ids.items() for commit_id in ids}
    for version, commit_id in view.read_commits.items():
        # One that no entry has may be in the checkpoint.
        decided_on = version_of.get(commit_id)
        is_before = holds(shard, commit_id[:HALF]) if decided_on is None else decided_on < version
        if not is_before:
            file = f"commitlog/{LOG_FOLDER}/{entry_name(version)}"
            yield file, f"it was decided on commit {commit_id}, which the log does not have before it"
