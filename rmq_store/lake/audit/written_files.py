"""Each live file of rows is named by the record of the commit that wrote it, whose id begins the file's name.

What no record names, another tool wrote: its rows are in the table twice, or belong to no commit. The records of an earlier
version name no files; after an upgrade no version of an earlier format writes (docs/decisions/0018-digests.md). A file of
records is named only by a compaction: ``derived.py`` finds a record that is there twice.
"""

from __future__ import annotations

_FIRST = "SELECT shard, min(read_version) AS read_version FROM {records} GROUP BY shard"

FIRST_LISTED = _FIRST.format(records="ctl_files")
"""On which version the first commit of a shard was decided that lists its files: commits that were decided on an older one may
be of an earlier version of rmq, and no later ones are."""

_WITHOUT_RECORD = """
SELECT f.shard, f.file, f.kind, f.placed_rows, c.commit_id FROM live_files f
LEFT JOIN ctl c ON c.shard = f.shard AND c.commit_id = regexp_extract(f.file, '/([0-9a-f]{{32}})[^/]*$', 1)
LEFT JOIN ({first}) d ON d.shard = f.shard
ANTI JOIN {records} w ON w.shard = f.shard AND w.path = f.file
WHERE f.kind IS DISTINCT FROM 'ctl' AND (c.commit_id IS NULL OR c.read_version >= d.read_version)
"""


def without_record(records: str) -> str:
    """The statement for the files that none of ``records`` names, though their commit is not older than one of these, or is not
    known (``commit_id`` is null then). ``records``: a relation with rows of ``ctl_files``."""
    return _WITHOUT_RECORD.format(records=records, first=_FIRST.format(records=records))
