"""A case: the files and the commands that it tries. All of it follows from its name."""

from __future__ import annotations

import base64
import json
import random
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.fuzz.broker_files import CONFIGS, broker_store
from tests.faults.fuzz.changes import as_bytes, changed, changed_values, nasty_text
from tests.faults.fuzz.command_lines import command_line
from tests.faults.fuzz.listener_inputs import listener
from tests.faults.fuzz.message_inputs import messages
from tests.faults.fuzz.queries import any_query
from tests.faults.fuzz.settings_inputs import SETTINGS, settings

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What is tried in a folder of its own."""

    name: str
    """``KIND:SEED-NUMBER``."""
    start: str
    """The store at its begin: a key of ``starts.STARTS``."""
    commands: tuple[Line, ...]
    """Run one after the other, each whatever the one before it answered."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By paths in the folder, besides those that every case has (``starts.FILES``)."""
    has_broker: bool = True
    """False: without the good broker store, because ``files`` has another."""
    stdin: bytes = b""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment."""

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]


def case_of(name: str) -> Case:
    """The case of this name. Raises ValueError for a name of no kind."""
    kind, colon, seed = name.partition(":")
    if kind not in KINDS or not colon or not seed:
        raise ValueError(f"{name!r} is no case: KIND:SEED-NUMBER, where KIND is one of {', '.join(KINDS)}")
    return KINDS[kind](name, random.Random(name))


def name_of(seed: str, number: int) -> str:
    """The name of a run's case: every kind has its share."""
    kinds = random.Random(f"kind {seed}-{number}").choices(list(KINDS), weights=list(_SHARES.values()))
    return f"{kinds[0]}:{seed}-{number}"


# --- the kinds --------------------------------------------------------------------------------------------------------


def _lines(text: str) -> tuple[Line, ...]:
    return tuple(tuple(shlex.split(line)) for line in text.strip().splitlines())


_IMPORT: Line = ("import-store", "broker", "--broker", "broker-a", "--engine", "local")
_WINDOWS = _lines("""
    consume --group g
    consume --group h
    consume --group d
    consume --group b@c1
    consume --all
    consume --all --group [gd]*
    consume --group g --max-messages 3
    consume --group g --client c1 --clients c1,c2
    replay --group g --topic T --from 0
""")
_LATER = _lines("""
    import-store broker --broker broker-a --engine local
    cutover --broker broker-a --reason r
    hand-back --broker broker-a --reason r
    deliver --now 4000000000000
    dispatch
    dispatch --rebuild
    maintain
    backup other
    redrive --group g --all --reason r
    reset --group g --topic T --to-min --reason r
    skip --group h --topic T --reason r
    clone --from g --to new --reason r
    delete-group --group g --reason r
    offsets export out.json --broker broker-a
    offsets export out.json --broker broker-a --merge broker/config/consumerOffset.json
""")
_LOOKS = _lines("""
    topics
    groups
    lag
    progress --group g
    topic-status --topic T
    doctor
    audit --group g
    diff --group g
    print --topic T --body
    print --topic Sent --body
    message 00000000000000000000000000000001
    track 00000000000000000000000000000001
    messages --topic T --key k1
    messages --topic Sent --key o-1
    search-offset --topic T --queue broker-a:0 --time 1700000000000
    sql 'SELECT * FROM messages'
    sql 'SELECT * FROM messages' --format csv
    sql 'SELECT * FROM delayed'
    sql 'SELECT * FROM outcomes'
    sql 'SELECT * FROM dead_letters'
    sql 'SELECT * FROM offset_history'
""")


def _then(chance: random.Random, *first: Line, more: int = 3) -> tuple[Line, ...]:
    """The commands, and some others behind them; about half answer in JSON."""
    lines = [
        *first,
        *(chance.choice(chance.choice((_WINDOWS, _LATER, _LOOKS))) for _ in range(chance.randint(1, more))),
    ]
    return tuple((*line, "--json") if chance.random() < 0.5 else line for line in lines)


def _of_store(name: str, chance: random.Random) -> Case:
    share = chance.choice((0.02, 0.1, 0.3))
    files = broker_store(chance, records=share, entries=chance.choice((0, 0.3)), configs=chance.choice((0, 0.2)))
    line = (*_IMPORT, "--salvage") if chance.random() < 0.4 else _IMPORT
    return Case(name, "empty", _then(chance, line, more=5), _below("broker", files), has_broker=False)


def _of_config(name: str, chance: random.Random) -> Case:
    files = _below("broker", broker_store(chance, configs=0.6))
    path = f"broker/config/{chance.choice(list(CONFIGS))}"
    files[path] = chance.choice((changed, changed_values))(chance, files[path])
    conf = b"brokerName=broker-a\nmessageDelayLevel=1s 5s 10s 30s 1m\n"
    offsets = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3}}'
    files |= {
        "broker.conf": changed(chance, conf),
        "offsets.json": chance.choice((changed, changed_values))(chance, offsets),
    }
    reads = _lines(f"""
        offsets import offsets.json --group b@c1 --reason r
        offsets import {path} --broker broker-a --group g --reason r
        offsets export {path} --broker broker-a --overwrite
        offsets export out.json --broker broker-a --merge {path}
        init --root other --broker-conf broker.conf
    """)
    first = (_IMPORT, chance.choice(reads), chance.choice((*_LATER, *reads)))
    return Case(name, chance.choice(("empty", "used")), _then(chance, *first), files, has_broker=False)


def _of_settings(name: str, chance: random.Random) -> Case:
    first: tuple[Line, ...] = (
        chance.choice(_WINDOWS),
        chance.choice((*_WINDOWS, ("doctor",), ("lag",), ("maintain",))),
    )
    return Case(name, chance.choice(("imported", "used")), _then(chance, *first), {"consumers.toml": settings(chance)})


def _of_listener(name: str, chance: random.Random) -> Case:
    lines = (chance.choice(_WINDOWS), ("deliver", "--now", "4000000000000"), chance.choice(_WINDOWS))
    files = {"fuzz_listener.py": listener(chance)}
    if chance.random() < 0.5:
        files["consumers.toml"] = SETTINGS.replace(b"listener_process = false", b"listener_process = true")
    return Case(name, chance.choice(("imported", "used")), _then(chance, *lines), files)


def _of_options(name: str, chance: random.Random) -> Case:
    lines = [command_line(chance) for _ in range(chance.randint(5, 14))]
    variables = {}
    if chance.random() < 0.1:
        value = nasty_text(chance).replace("\0", "").encode("utf-8", "replace").decode()
        names = (
            "RMQ_SQL_TIMEOUT",
            "RMQ_SQL_MEMORY",
            "RMQ_SQL_SPILL",
            "RMQ_SETTINGS",
            "RMQ_SPARK_MASTER",
            "RMQ_SPARK_SUBMIT",
            "SPARK_REMOTE",
            "RMQ_UMASK",
        )
        variables[chance.choice(names)] = value
    start = chance.choice(("used", "used", "imported", "empty", "none"))
    return Case(
        name, start, tuple(lines), stdin=nasty_text(chance).encode("utf-8", "surrogatepass"), variables=variables
    )


def _of_sql(name: str, chance: random.Random) -> Case:
    lines: list[Line] = []
    for _ in range(chance.randint(2, 6)):
        form = chance.choice(((), ("--json",), ("--format", "csv"), ("--format", "csv", "--raw"), ("--format", "json")))
        lines.append(("sql", "--timeout", "2s", *form, "--", any_query(chance)))
    files = {"query.sql": as_bytes(any_query(chance))}
    lines.append(("sql", "--timeout", "2s", "--file", "query.sql"))
    return Case(name, "used", tuple(lines), files)


def _of_messages(name: str, chance: random.Random) -> Case:
    send: Line = ("send", "--file", "messages.jsonl", "--create")
    properties = [f"{nasty_text(chance)}={nasty_text(chance)}" for _ in range(chance.randint(1, 3))]
    one = (
        "send",
        "--topic",
        chance.choice(("Sent", "Sent", nasty_text(chance))),
        "--create",
        "--tag",
        nasty_text(chance),
    )
    line = (
        *one,
        "--key",
        nasty_text(chance),
        *(word for text in properties for word in ("--property", text)),
        "--",
        "body",
    )
    lines = _then(chance, send, line, ("consume", "--group", "g"), ("deliver", "--now", "4000000000000"))
    return Case(name, chance.choice(("empty", "used")), lines, {"messages.jsonl": messages(chance)})


KINDS: Mapping[str, Callable[[str, random.Random], Case]] = {
    "store": _of_store,
    "config": _of_config,
    "settings": _of_settings,
    "listener": _of_listener,
    "options": _of_options,
    "sql": _of_sql,
    "messages": _of_messages,
}
_SHARES = {"store": 4, "config": 3, "settings": 3, "listener": 3, "options": 6, "sql": 2, "messages": 3}


def _below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


# --- as JSON ----------------------------------------------------------------------------------------------------------


def document_of(case: Case) -> dict[str, Any]:
    """A case as a JSON value, for a file that replays it. Texts of command lines have surrogates as JSON writes them."""
    return {
        "name": case.name,
        "start": case.start,
        "commands": [list(line) for line in case.commands],
        "files": {name: base64.b64encode(data).decode() for name, data in case.files.items()},
        "has_broker": case.has_broker,
        "stdin": base64.b64encode(case.stdin).decode(),
        "variables": dict(case.variables),
    }


def case_from(text: str) -> Case:
    """The case of a JSON text that ``document_of`` made."""
    value = json.loads(text)
    return Case(
        name=value["name"],
        start=value["start"],
        commands=tuple(tuple(line) for line in value["commands"]),
        files={name: base64.b64decode(data) for name, data in value["files"].items()},
        has_broker=value["has_broker"],
        stdin=base64.b64decode(value["stdin"]),
        variables=value["variables"],
    )
