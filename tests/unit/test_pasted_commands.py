"""Commands in errors can be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rmq_store.admin.diff import chosen
from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore


def words(text: str, command: str) -> list[str]:
    return shlex.split(text[text.index(command) :])


def test_the_root_of_a_command_is_quoted(tmp_path: Path) -> None:
    root = str(tmp_path / "my store; x")
    with pytest.raises(StoreUnusable) as error:
        LakeStore.open(Root.parse(root))
    assert words(str(error.value).removesuffix("'"), "rmq --root") == ["rmq", "--root", root, "init"]


def test_a_group_of_a_command_is_quoted() -> None:
    with pytest.raises(WrongUse) as error:
        chosen("orders|all", None, 1)
    command = str(error.value).partition("; ")[2].partition(" makes")[0].removeprefix("'").removesuffix("'")
    assert words(command, "rmq") == ["rmq", "replay", "--group", "orders|all", "--reprocess", "REASON"]
