"""Commands in errors can be pasted into a shell."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rmq_store.admin.sentences import blocked_warnings
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue


def words(text: str, command: str) -> list[str]:
    return shlex.split(text[text.index(command) :])


def test_the_root_of_a_command_is_quoted(tmp_path: Path) -> None:
    root = str(tmp_path / "my store; x")
    with pytest.raises(StoreUnusable) as error:
        LakeStore.open(Root.parse(root))
    assert words(str(error.value).removesuffix("'"), "rmq --root") == ["rmq", "--root", root, "init"]


def test_a_group_of_a_command_is_quoted() -> None:
    (warning,) = blocked_warnings(
        replay_group("orders|all", "2026-01-01-r"), [QueueRange(MessageQueue("T", "a", 0), 0, 5)]
    )
    assert re.search(r"rmq replay --group 'orders\|all-replay-\w+' --reprocess", warning), "a shell takes | for a pipe"
