"""Command lines of ``rmq`` from the commands' own metadata: every command, every option, good and bad values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args

import typer

from rmq_store.cli.app import app
from tests.faults.fuzz.changes import INTS, TIMES, nasty_text, one_of
from tests.faults.fuzz.queries import query

_NUMBERS = ("0", "1", "2", "5", "18", *map(str, INTS))
_GROUPS = ("g", "h", "b@c1", "b@c2", "d", "late", "g@x", "unknown", "%RETRY%g")
_TOPICS = (
    "T",
    "U",
    "Sent",
    "New",
    "%RETRY%g",
    "%DLQ%g",
    "%DLQ%h",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "TBW102",
)
_FILES = (
    "consumers.toml",
    "messages.jsonl",
    "query.sql",
    "broker.conf",
    "consumerOffset.json",
    "offsets.json",
    "none.toml",
)
_FOLDERS = (
    "broker",
    "store",
    "other",
    ".",
    "..",
    "broker/commitlog",
    "none/none",
    "broker.conf",
    "/dev/null",
    "s3://",
    "",
)
_DAY = ("2026-11-23-a", "2026-11-23-b", "2020-01-01-x", "9999-12-31-x", "2026-11-23", "2026-13-01-x", "x")

GOOD: Mapping[str, Sequence[str]] = {
    "BODY": ("hello", "", "-", "{}"),
    "BROKER:QUEUE": ("broker-a:0", "broker-a:1", "lake-broker-a:0", "lake-live:0", "broker-a:9", "unknown:0"),
    "BROKER:QUEUE:OFFSET": ("lake-broker-a:0:0", "lake-broker-a:0:1", "broker-a:0:0", "a:b:c"),
    "BYTES": _NUMBERS,
    "DURATION": ("0s", "1s", "48h", "25h", "144h", "7d", "99999999999d", "1h30m", "-1s", "1", "s", "1w"),
    "ENGINE": ("local", "auto", "spark"),
    "FILE": (*_FILES, *_FOLDERS, "-"),
    "FOLDER": _FOLDERS,
    "GROUP": (*_GROUPS, "*", "g*", "[g", "?"),
    "ID": (
        *_DAY,
        *(f"{number:032X}" for number in (0, 1, 99)),
        "7F00000100002A9F0000000000000000",
        "c1",
        "c2",
        "0" * 31,
    ),
    "ID,ID": ("c1", "c1,c2", "c2,c1,c1", ",", "c1,", "c1, c2"),
    "KEY": ("k0", "k1", "k7", "o-1", "a b"),
    "KEY=VALUE": ("spark.master=local", "a=b", "=", "spark.executor.memory=x"),
    "MASTER": ("local[1]", "local", "spark://127.0.0.1:9", "yarn", "k8s://x"),
    "N": _NUMBERS,
    "NAME": ("broker-a", "broker-b", "lake-live", "live", "broker-a:0"),
    "NAME=VALUE": (
        "region=eu",
        "a==",
        "=",
        "TAGS=x",
        "DELAY=3",
        "INNER_NUM=2",
        "UNIQ_KEY=0",
        "RETRY_TOPIC=T",
        "a=\x01",
    ),
    "NAME=TYPE": ("price=int", "region=boolean", "TAGS=number", "a=date", "=int"),
    "OFFSET": _NUMBERS,
    "OLD=NEW": ("a=b", "=", "1=", "price=x=y"),
    "POINTER": ("/price", "", "/a/0", "/a/-", "/~2", "price"),
    "POINTER=JSON": ("/price=1.5", "=[]", '/a="b"', "/a=b", "/a/-=NaN", "/price=1e999"),
    "POINTER=TYPE": ("/price=number", "=string", "/a=date", "/~0=int"),
    "SQL92": ("price > 1", "_cause = 'x'", "_none = 1", "a =", "TAGS IS NULL OR _attempt >= 1", "'\x01' = a", ""),
    "OLD NEW": ("1", "2", "0", "-1", "9" * 30),
    "QUERY": (),
    "REASON": ("again", "", " "),
    "ROOT": (
        "store",
        "other",
        "broker",
        "none/none",
        "/dev/null",
        "s3://bucket/prefix",
        "file:///dev/null",
        "S3://b",
        "",
    ),
    "SHARD": ("broker-a", "live", "unknown", "", "."),
    "SIZE": ("64MiB", "1GiB", "1", "0", "9" * 30 + "GiB", "1.5GiB", "-1MiB", "64mib"),
    "SPAN": ("90s", "3d", "4d", "0s", "1h30m", "1ms", "-1s"),
    "SRC": ("broker", "other", "broker/commitlog", "s3://bucket/prefix", "store", "none", ".", "/dev/null"),
    "STEP": ("retention", "messages", "derived", "checkpoint", "vacuum"),
    "TAG": ("a", "b", "a||b", "*"),
    "TARGET": ("other", "store", "store/inside", "broker", ".", "/dev/null/x", "s3://bucket/prefix"),
    "TEXT": ("a reason", "", " ", "1s 5s 10s", "1s", "0s", "1d 400d", "s"),
    "TIME": TIMES,
    "TOPIC": _TOPICS,
}
"""By what the help shows for the value (metavar). Paths stay inside the case's folder."""


@cache
def commands() -> Mapping[tuple[str, ...], Sequence[Any]]:
    """The parameters of each command, by its words."""
    return dict(_commands((), typer.main.get_command(app)))


def _commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Sequence[Any]]]:
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _commands((*words, name), one)
    else:
        yield words, command.params


def command_line(chance: random.Random, words: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """One command with its required and some other options. ``words``: of the command, None: any."""
    words = chance.choice(list(commands())) if words is None else words
    share = chance.choice((0.1, 0.25, 0.5))
    line: list[str] = []
    before = ["--root", one_of(chance, GOOD["ROOT"])] if chance.random() < 0.03 else []
    arguments: list[str] = []
    for parameter in commands()[words]:
        is_required = parameter.required and chance.random() < 0.95
        if not is_required and chance.random() >= _share(parameter, share):
            continue
        if parameter.param_type_name == "argument":
            arguments.append(value_of(chance, parameter))
            continue
        for _ in range(chance.randint(1, 3) if parameter.multiple else 1):
            line.append(chance.choice(parameter.opts))
            line += [] if parameter.is_flag else [value_of(chance, parameter) for _ in range(parameter.nargs)]
    if chance.random() < 0.02:
        line.append(nasty_text(chance))
    separator = ["--"] if arguments and chance.random() < 0.1 else []
    return tuple(map(_inside, (*before, *words, *line, *separator, *arguments)))


def _share(parameter: Any, share: float) -> float:
    """How often an option is given: a store or a settings file of its own seldom, as no command goes far without them."""
    return {"root": 0.04, "settings": 0.04, "shard": 0.1, "as_json": 0.5, "reason": 0.8}.get(parameter.name, share)


def value_of(chance: random.Random, parameter: Any) -> str:
    """A value for an option or an argument."""
    if parameter.metavar is None:
        return one_of(chance, get_args(parameter.type_descriptor.annotation), 0.9)
    if parameter.metavar == "QUERY":
        return chance.choice((query(chance), "-"))
    if parameter.metavar == "NAME=VALUE" and chance.random() < 0.3:
        return f"{nasty_text(chance)}={nasty_text(chance)}"
    good = GOOD[parameter.metavar]
    if chance.random() < 0.05:
        good = GOOD[chance.choice(list(GOOD))] or good
    return one_of(chance, good, 0.8)


def _inside(text: str) -> str:
    """A text that is no path out of the folder in which the command runs, and no word for the user's home."""
    return (
        f"x{text}"
        if text.startswith(("/", "~")) and not text.startswith("/dev/null")
        else text.replace("../..", "../x")
    )
