"""Which files in a table's folder may be deleted."""

from __future__ import annotations

import pytest

from rmq_store.commit.decide import MAX_RUN_AGE_MS
from rmq_store.errors import WrongUse
from rmq_store.maintain.orphans import (
    DEFAULT_AGE_MS,
    LEAST_AGE_MS,
    MOST_AGE_MS,
    NamedFiles,
    StoredFile,
    check_age,
    orphans,
)

NOW_MS = 1_790_000_000_000
OLD_MS = NOW_MS - DEFAULT_AGE_MS


def deleted(path: str, modified_ms: int = OLD_MS, named: NamedFiles | None = None) -> bool:
    return bool(orphans([StoredFile(path, 1, modified_ms)], named or NamedFiles(), NOW_MS, DEFAULT_AGE_MS))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.parquet", True),
        ("kind=msg/a.parquet", True),
        ("store_day=2026-01-01/part-0.parquet", True),
        (".00000000000000000007.json.0123456789abcdef0123456789abcdef.tmp", True),
        ("_delta_log/.00000000000000000007.json.0123456789abcdef0123456789abcdef.tmp", True),
        ("_delta_log/00000000000000000100.checkpoint.parquet#1", True),
        ("_delta_log/00000000000000000100.checkpoint.parquet", False),
        ("_delta_log/00000000000000000100.json", False),
        ("_delta_log/_last_checkpoint", False),
        ("_change_data/a.parquet", False),
        (".hidden/a.parquet", False),
        ("notes.txt", False),
        (".a.tmp", False),
    ],
)
def test_only_data_files_and_what_an_interrupted_write_left_are_deleted(path: str, expected: bool) -> None:
    assert deleted(path) is expected


def test_a_file_is_kept_until_it_has_the_age() -> None:
    assert not deleted("a.parquet", OLD_MS + 1)
    assert not deleted("a.parquet", NOW_MS + 1)


def test_a_file_that_something_names_is_kept() -> None:
    assert not deleted("a.parquet", 0, NamedFiles(kept={"a.parquet"}))


def test_the_age_of_a_removed_file_is_counted_from_its_removal() -> None:
    assert not deleted("a.parquet", 0, NamedFiles(removed_ms={"a.parquet": OLD_MS + 1}))
    assert deleted("a.parquet", 0, NamedFiles(removed_ms={"a.parquet": OLD_MS}))


@pytest.mark.parametrize("age_ms", [0, MAX_RUN_AGE_MS, LEAST_AGE_MS - 1, MOST_AGE_MS + 1])
def test_an_age_at_which_a_run_may_commit_or_removals_are_forgotten_is_refused(age_ms: int) -> None:
    with pytest.raises(WrongUse, match="25h to 144h"):
        check_age(age_ms)
    for allowed in (LEAST_AGE_MS, DEFAULT_AGE_MS, MOST_AGE_MS):
        check_age(allowed)
