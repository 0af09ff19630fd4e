"""The end of a process: what it has to do is done, and no thread meets an interpreter that is taken down."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys, threading
from rmq_store.utils.process_end import end_process

class AtTheEnd:
    def __del__(self):
        print("the interpreter was taken down", file=sys.__stderr__, flush=True)

kept = AtTheEnd()
go = threading.Event()

def late():
    go.wait()
    sys.stdout.write("thread ")

threading.Thread(target=late).start()
atexit.register(sys.stdout.write, "hook ")

def hook():
    raise SystemExit(9)

atexit.register(hook)
sys.stdout.write("answer ")
go.set()
"""


@pytest.mark.parametrize(("end", "is_taken_down"), [("end_process(3)", False), ("sys.exit(3)", True)])
def test_threads_hooks_and_output_come_to_their_end_and_the_interpreter_is_left(end: str, is_taken_down: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM + end], capture_output=True, text=True, check=False)
    assert sorted(done.stdout.split()) == ["answer", "hook", "thread"]
    assert ("taken down" in done.stderr, done.returncode in (3, 9)) == (is_taken_down, True)
    if not is_taken_down:
        assert done.returncode == 3


def test_output_that_nothing_reads_any_more_changes_no_exit_code() -> None:
    buffered = "import sys; sys.stdout = open(1, 'w'); sys.stdout.write('answer'); "
    program = buffered + "from rmq_store.utils.process_end import end_process; end_process(0)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0


def test_a_stream_that_was_closed_at_the_start_changes_no_exit_code() -> None:
    program = "from rmq_store.utils.process_end import end_process; end_process(3)"
    command = ["bash", "-c", '"$0" -c "$1" >&- 2>&-', sys.executable, program]
    assert subprocess.run(command, check=False).returncode == 3


def test_what_code_of_a_user_keeps_open_is_written(tmp_path: Path) -> None:
    program = f"""
import gzip
from rmq_store.utils import process_end
kept = gzip.open({str(tmp_path / "kept.gz")!r}, "wt")
kept.write("acked")
process_end.code_of_user_runs_here()
process_end.end_process(3)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 3
    assert gzip.decompress((tmp_path / "kept.gz").read_bytes()) == b"acked"


def test_the_program_ends_that_way() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
    assert project["project"]["scripts"]["rmq"] == "rmq_store.cli:command"
    program = "from rmq_store.cli.app import command; import sys; sys.argv = ['rmq', '--no-such-option']; command()"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 2
