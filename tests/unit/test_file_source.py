"""A broker's folder as it may lie there: links, FIFOs, loops. Only regular files inside of it are opened."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.broker_files.config_files import read_topics
from rmq_store.broker_files.consume_queue_file import list_consume_queues
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData

LOG = f"commitlog/{0:020}"
TOPICS = '{"topicConfigTable":{"T":{}}}'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for folder in ("commitlog", "consumequeue/T/0", "config"):
        (tmp_path / "store" / folder).mkdir(parents=True)
    (tmp_path / "store" / LOG).write_bytes(bytes(100))
    (tmp_path / "store" / "config" / "topics.json").write_text(TOPICS)
    return tmp_path / "store"


def link(path: Path, target: str | Path) -> None:
    if path.is_dir():
        path.rename(path.with_name("moved"))
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def test_links_that_stay_inside_are_followed(store: Path) -> None:
    link(store / "commitlog", "moved")
    link(store / "config" / "topics.json", "elsewhere.json")
    (store / "config" / "elsewhere.json").write_text(TOPICS)
    source = LocalFileSource(store)
    assert source.list("commitlog") == [(LOG, 100)]
    assert source.read(LOG, 90, 200) == bytes(10)
    assert list(read_topics(source).value) == ["T"]


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    source = LocalFileSource(tmp_path)
    assert source.list("consumequeue") == []
    assert read_topics(source).used is None


def test_the_store_itself_may_be_behind_a_link(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    assert LocalFileSource(tmp_path / "link").list("commitlog") == [(LOG, 100)]


@pytest.mark.parametrize("name", ["commitlog", LOG, "consumequeue", "consumequeue/T", "config", "config/topics.json"])
def test_a_link_that_leads_out_is_refused_and_says_nothing_of_what_is_there(
    store: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "topics.json").write_text("root:x:0:0")
    link(store / name, outside / "topics.json" if "." in name else outside)
    source = LocalFileSource(store)
    with pytest.raises(BadData, match="leads out of that folder") as raised:
        list_commit_log(source), list_consume_queues(source), read_topics(source)
    assert name in str(raised.value)
    assert "root:" not in str(raised.value)


@pytest.mark.parametrize("name", ["commitlog", LOG, "consumequeue/T/0", "config", "config/topics.json"])
@pytest.mark.parametrize("target", ["loop", "nothing"])
def test_a_link_to_itself_or_to_nothing_is_refused_by_name(store: Path, name: str, target: str) -> None:
    link(store / name, Path(name).name if target == "loop" else "nothing")
    source = LocalFileSource(store)
    with pytest.raises(BadData, match=rf"{name} in .*(Too many levels|link to nothing)"):
        list_commit_log(source), list_consume_queues(source), read_topics(source)


def test_a_folder_that_holds_itself_by_a_link_ends(store: Path) -> None:
    (store / "consumequeue" / "T" / "again").symlink_to("..")
    with pytest.raises(BadData, match=r"consumequeue/T/again .* was already listed"):
        list_consume_queues(LocalFileSource(store))


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(("make", "kind"), [(a_fifo, "a FIFO"), (a_socket, "a socket"), (a_folder, "a folder")])
def test_what_is_no_file_is_refused_in_place_of_a_wanted_config_and_not_looked_at_elsewhere(
    store: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(store / "config" / "other.json")
    assert list(read_topics(LocalFileSource(store)).value) == ["T"]
    (store / "config" / "topics.json").unlink()
    make(store / "config" / "topics.json")
    with pytest.raises(BadData, match=rf"config/topics.json in .* is not a regular file \({kind}\)"):
        read_topics(LocalFileSource(store))


@pytest.mark.parametrize("name", ["commitlog", "consumequeue/T/0"])
def test_a_fifo_among_the_files_of_a_queue_is_refused(store: Path, name: str) -> None:
    os.mkfifo(store / name / f"{100:020}")
    source = LocalFileSource(store)
    with pytest.raises(BadData, match=rf"{name}/0*100 in .* is not a regular file \(a FIFO\)"):
        list_commit_log(source), list_consume_queues(source)


def test_a_folder_in_the_place_of_another_thing_is_said(store: Path) -> None:
    (store / "consumequeue").rename(store / "moved")
    os.mkfifo(store / "consumequeue")
    with pytest.raises(BadData, match=r"consumequeue in .* cannot be read: Not a directory"):
        list_consume_queues(LocalFileSource(store))


def test_a_folder_that_is_no_store_is_refused_without_a_look_below_it(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number:02}").mkdir()
    os.mkfifo(tmp_path / "d00" / "fifo")
    with pytest.raises(BadData, match="not a broker's store") as raised:
        list_commit_log(LocalFileSource(tmp_path))
    assert len(re.findall(r"d\d\d", str(raised.value))) == 20


def test_nothing_is_read_of_a_range_that_ends_before_it_begins(store: Path) -> None:
    assert LocalFileSource(store).read(LOG, 50, 20) == b""
