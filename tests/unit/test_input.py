"""What an option names is read if it is a file, a pipe of the shell or standard input, and nothing else is opened."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from rmq_store.cli.input import read_input, read_text_input
from rmq_store.errors import WrongUse


def test_what_is_no_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, kind in (("/dev/zero", "a device"), (str(tmp_path), "a folder"), (str(tmp_path / "fifo"), "a FIFO")):
        with pytest.raises(WrongUse, match=f"--file {name} cannot be read: it is {kind}, not a file"):
            read_input("--file", name, 1)


def test_a_pipe_of_the_shell_is_read_to_a_number_of_bytes(tmp_path: Path) -> None:
    """As ``<(...)`` gives it: the name of a descriptor of this process."""
    for content, most_mib in ((b"text", 1), (b"text", 0)):
        end, begin = os.pipe()
        os.write(begin, content)
        os.close(begin)
        try:
            if most_mib:
                assert read_input("--file", f"/dev/fd/{end}", most_mib) == content
            else:
                with pytest.raises(WrongUse, match=f"/dev/fd/{end} cannot be read: it is larger than 0 MiB"):
                    read_input("--file", f"/dev/fd/{end}", most_mib)
        finally:
            os.close(end)


def test_standard_input_is_read_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * ((1 << 20) + 1))))
    with pytest.raises(WrongUse, match="--file - cannot be read: it is larger than 1 MiB"):
        read_input("--file", "-", 1)


def test_a_text_is_utf_8(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("ü".encode())
    assert read_text_input("--edit", str(tmp_path / "text")) == "ü"
    (tmp_path / "text").write_bytes(b"\xff")
    with pytest.raises(WrongUse, match=r"--edit .*text cannot be read: 'utf-8' codec"):
        read_text_input("--edit", str(tmp_path / "text"))
