"""Files that somebody names: what is no regular file is refused at once, and not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.broker_files.broker_conf import message_delay_level
from rmq_store.broker_files.config_files import DataVersion
from rmq_store.broker_files.offset_files import read_offsets
from rmq_store.broker_files.offsets_to_broker import CONSUMER_OFFSETS, How, KnownOffsets, planned_write
from rmq_store.errors import RmqError
from rmq_store.settings.settings import read_settings
from rmq_store.utils.small_file import read_small_file

READERS: dict[str, Callable[[Path], object]] = {
    "settings": read_settings,
    "broker.conf": message_delay_level,
    "offsets import": lambda path: read_offsets(path, "billing", "broker-a"),
    "offsets export": lambda path: planned_write(path, CONSUMER_OFFSETS, KnownOffsets(), DataVersion(), How.OVERWRITE),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_no_file_is_refused_in_words(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((Path("/dev/null"), "a device"), (tmp_path, "a folder"), (tmp_path / "fifo", "a FIFO")):
        with pytest.raises(RmqError, match=f"it is {kind}, not a file"):
            reader(path)


def test_a_link_to_a_file_is_read_and_one_that_is_too_large_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.utils.small_file.MOST_MIB", 1)
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_small_file(tmp_path / "link") == b"text"
    with open(tmp_path / "file", "r+b") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(OSError, match="it is larger than 1 MiB"):
        read_small_file(tmp_path / "file")


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small_file(tmp_path / "file")
