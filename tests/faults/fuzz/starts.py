"""What a case begins with: files that every case has, and stores that were made once for a run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.faults.fuzz.broker_files import broker_store
from tests.faults.fuzz.command_line import run_command
from tests.faults.fuzz.listener_inputs import LISTENER
from tests.faults.fuzz.message_inputs import MESSAGES
from tests.faults.fuzz.settings_inputs import SETTINGS

_IMPORT = ("import-store", "broker", "--broker", "broker-a", "--engine", "local")
_SEND = ("send", "--file", "messages.jsonl", "--create", "--queues", "2")
_REASON = ("--reason", "a test")
_DUE = ("deliver", "--now", "4000000000000")

STARTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "none": (),
    "empty": (("init",),),
    "imported": (("init",), _IMPORT),
    "used": (
        ("init",),
        _IMPORT,
        (*_SEND, "--shard", "broker-a"),
        ("consume", "--group", "g"),
        ("consume", "--group", "h"),
        ("consume", "--group", "b@c1"),
        ("cutover", "--broker", "broker-a", *_REASON),
        _DUE,
        ("consume", "--group", "g"),
        _DUE,
        ("consume", "--group", "g"),
        ("reset", "--group", "h", "--topic", "T", "--to-min", *_REASON),
        ("replay", "--group", "g", "--topic", "T", "--from", "0"),
        ("redrive", "--group", "g", "--all", "--limit", "1", *_REASON),
        ("send", "--topic", "New", "--create", "--shard", "live", "--key", "o-1", "a body"),
    ),
}
"""The commands that make each store."""

FILES: Mapping[str, bytes] = {
    "consumers.toml": SETTINGS,
    "fuzz_listener.py": LISTENER,
    "messages.jsonl": MESSAGES,
    "query.sql": b"SELECT topic, count(*) FROM messages GROUP BY topic\n",
    "broker.conf": b"brokerName=broker-a\nmessageDelayLevel=1s 5s 10s\n",
    "offsets.json": b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3}}',
    "consumerOffset.json": b'{"offsetTable":{"T@g":{0:2}}}',
}


def make_starts(folder: Path) -> None:
    """A folder for each start. Raises RuntimeError if a command fails, because then nothing could be tried."""
    for name, commands in STARTS.items():
        start = folder / name
        write(start, FILES)
        write(start / "broker", broker_store(random.Random("good")))
        for line in commands:
            answer = run_command(start, line)
            if answer.exit_code:
                raise RuntimeError(f"the start {name} cannot be made: rmq {' '.join(line)}: {answer.shown()}")


def begin(starts: Path, start: str, folder: Path, files: Mapping[str, bytes], *, has_broker: bool) -> None:
    """Make ``folder``, which does not exist, a copy of the start with these files."""
    ignored = None if has_broker else shutil.ignore_patterns("broker")
    shutil.copytree(starts / start, folder, ignore=ignored)
    write(folder, files)


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths in the folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
