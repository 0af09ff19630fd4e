"""Which files are joined: every rule by a small example, and that joining comes to an end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rmq_store.maintain.files_to_join import Limits, SmallFile, files_to_join

_DAY, _NEXT_DAY = ("msg", "2026-11-22"), ("msg", "2026-11-23")
_LIMITS = Limits(target_bytes=100, least_files=2, most_files=4, target_rows=1000)


def _file(path: str, size: int, partition: tuple[str, ...] = _DAY, rows: int = 1) -> SmallFile:
    return SmallFile(path, partition, size, rows)


def _paths(files: list[SmallFile], limits: Limits = _LIMITS) -> list[list[str]]:
    return [[file.path for file in group] for group in files_to_join(files, limits)]


def test_small_files_of_a_partition_are_joined_and_large_ones_left_alone() -> None:
    files = [_file("b", 10), _file("a", 10), _file("large", 50), _file("other", 10, _NEXT_DAY)]
    assert _paths(files) == [["a", "b"]]


def test_a_group_has_at_most_the_target_size_and_the_most_files() -> None:
    assert _paths([_file(name, 40) for name in "abcde"]) == [["a", "b"], ["c", "d"]]
    assert _paths([_file(name, 1) for name in "abcdefg"]) == [["a", "b", "c", "d"], ["e", "f", "g"]]


def test_a_file_of_half_the_target_rows_is_left_alone() -> None:
    assert _paths([_file("a", 1, rows=500), _file("b", 1, rows=499), _file("c", 1)]) == [["b", "c"]]


def test_a_few_files_are_left_alone() -> None:
    assert _paths([_file("a", 10), _file("b", 10, _NEXT_DAY)]) == []
    assert _paths([_file(name, 1) for name in "abcdefg"], Limits()) == []
    assert _paths([_file(name, 1) for name in "abcdefgh"], Limits()) == [list("abcdefgh")]


_FILES = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 1200), st.sampled_from([_DAY, _NEXT_DAY])), max_size=40
).map(lambda values: [_file(f"{n:03}", size, day, rows) for n, (size, rows, day) in enumerate(values)])


def _joined(name: str, group: tuple[SmallFile, ...]) -> list[SmallFile]:
    """Files of the target's rows, and the rest."""
    rows, target = sum(file.rows for file in group), _LIMITS.target_rows or 0
    counts = [target] * (rows // target) + [rows % target] * (rows % target > 0)
    size = sum(file.size for file in group)
    return [_file(f"{name}-{n}", size * count // rows, group[0].partition, count) for n, count in enumerate(counts)]


@given(files=_FILES)
def test_joining_comes_to_an_end_and_keeps_every_row(files: list[SmallFile]) -> None:
    rows = sum(file.rows for file in files)
    for number in range(len(files) + 1):
        groups = files_to_join(files, _LIMITS)
        if not groups:
            break
        members = Counter(file for group in groups for file in group)
        assert set(members.values()) == {1}
        assert all(len({file.partition for file in group}) == 1 for group in groups)
        joined = [file for n, group in enumerate(groups) for file in _joined(f"{number}-{n}", group)]
        files = [file for file in files if file not in members] + joined
    assert not files_to_join(files, _LIMITS)
    assert sum(file.rows for file in files) == rows
    assert max(Counter(file.partition for file in files if not _LIMITS.is_large(file)).values(), default=0) <= 1
