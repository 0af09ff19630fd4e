"""The guards that ``tests/faults/mutants.py`` leaves out, one at a time, and the tests that must notice.

What a proposal expects is not among them: the search of ``test_proposal_explorer.py`` leaves that out."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.guard import Guard
from tests.faults.guards_of_commits import COMMITS
from tests.faults.guards_of_files import FILES
from tests.faults.guards_of_requests import REQUESTS

GUARDS = (*COMMITS, *FILES, *REQUESTS)

CONTROL = Guard("commit.claim:take", ("tests/unit/test_commit_decide.py",))
"""Tests that never call the function: if one fails with a mutant of it, something else is wrong."""

BUILDERS = ("held_by_another", "overtaken", "_unknown", "_given_up")
"""Functions that make an error: who calls one has the guard."""

EXEMPT: Mapping[str, str] = {
    "lake.broker.export_folder:_write_back": "only with a server: tests/contract/test_export_folder.py exports twice at once",
    "lake.broker.export_folder:merge_export": "it gives up after tries of _write_back, each of which refuses",
    "lake.table.s3:create": "only with a server: tests/contract/test_object_store.py loses its answers",
}
"""Functions with refusals of the protocol that have no mutant, and why."""

EQUIVALENT: Mapping[str, str] = {
    "lake.table.delta_table:LakeTable._validate: if file.store_day is None or "
    "date.fromisoformat(file.store_day).isoformat() != file.store_day, without file.store_day is None": (
        "date.fromisoformat refuses it too"
    ),
    'lake.maintain.vacuum:named_files: kept = set(table.files().column("path").to_pylist()) -> kept = set()': (
        "every live file is also in an entry or a checkpoint of the log, which are read too"
    ),
    "lake.broker.import_part:begin_of: if at >= first and digest and gap, without at >= first": (
        "a gap lies behind the first file"
    ),
    "lake.broker.import_part:begin_of: if at >= first and digest and gap, without digest": (
        "an import that read nothing has no digest, and a broker's files before it do not come back"
    ),
    "lake.broker.import_part:begin_of: if imported > end or not is_same, without imported > end": (
        "no file has bytes before such a position, so the fingerprints differ"
    ),
    "lake.broker.import_store:_shard_of: if name != request.shard_name and "
    "store.shards(name)[0].positions().get(imported) is not None, without name != request.shard_name": (
        "that shard was looked at before"
    ),
}
"""Mutants that no test can notice, by name, and why."""
