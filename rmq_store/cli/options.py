"""Options that several commands share, each with one name and one meaning, and the groups of them that commands take."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from rmq_store.broker_files.limits import MAX_CONFIG_BYTES, MAX_QUEUES
from rmq_store.errors import WrongUse
from rmq_store.message.sys_flag import MAX_BODY_BYTES
from rmq_store.utils.numbers import parse_size, whole_number
from rmq_store.utils.times import parse_duration, parse_time

if TYPE_CHECKING:
    from rmq_store.settings.spark_settings import SparkSettings

Value = TypeVar("Value")


class Before(NamedTuple):
    """Options given before the command: ``rmq --root R --json COMMAND`` is ``rmq COMMAND --root R --json``."""

    root: str | None
    as_json: bool


NOTHING_BEFORE = Before(None, False)
BEFORE: ContextVar[Before] = ContextVar("BEFORE")


def before_the_command() -> Before:
    return BEFORE.get(NOTHING_BEFORE)


class QueueName(NamedTuple):
    """``BROKER:QUEUE``. A broker name may hold colons; a queue id may not."""

    broker_name: str
    queue_id: int

    @classmethod
    def parse(cls, text: str) -> QueueName:
        broker_name, _, digits = text.rpartition(":")
        queue_id = whole_number(digits)
        if not broker_name or queue_id is None:
            raise WrongUse(f"{text!r} is not a queue: write BROKER:QUEUE, for example broker-a:0")
        return cls(broker_name, queue_id)


class PropertyText(NamedTuple):
    """``NAME=VALUE``. A value may hold equals signs; a name may not."""

    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> PropertyText:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongUse(f"{text!r} is not a property: write NAME=VALUE, for example region=eu")
        return cls(name, value)


def _parser(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """``parse`` for an option: its WrongUse becomes an error that names the option."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except WrongUse as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


def local_file(text: str) -> Path:
    """The parser of an argument or option that names a file on this machine."""
    if not Path(text).name or "://" in text:
        raise typer.BadParameter(f"{text!r} is not the name of a file on this machine")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise typer.BadParameter(f"{text!r} begins with ~, and there is no such user's folder") from error


def count_from(least: int) -> Callable[[str | int], int]:
    """The parser of an option that is a whole number of at least ``least``."""

    def parsed(value: str | int) -> int:
        number = whole_number(value) if isinstance(value, str) else value
        if number is None or number < least:
            raise typer.BadParameter(f"{value!r:.40} is not a whole number, {least} or more")
        return number

    return parsed


def _engine(text: str) -> str:
    from rmq_store.settings.settings_values import ENGINES

    if text not in ENGINES:
        raise WrongUse(f"invalid engine {text!r}: expected one of {', '.join(ENGINES)}")
    return text


COMMON = "Common options"
TIME = _parser(parse_time)
DURATION = _parser(parse_duration)
SIZE = _parser(parse_size)
_TIMES = "ISO 8601 with a zone, or epoch ms"

RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="ROOT",
        help="The store: a folder or s3://bucket/prefix. Default: $RMQ_ROOT, else var/store.",
        rich_help_panel=COMMON,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the answer, or the error, as JSON, with the requests to S3 of this process.",
        rich_help_panel=COMMON,
    ),
]
SettingsOption = Annotated[
    str | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="The file with the consumer groups. Default: $RMQ_SETTINGS, else consumers.toml.",
        rich_help_panel=COMMON,
    ),
]
RequestOption = Annotated[
    str | None,
    typer.Option(
        "--request",
        metavar="ID",
        help="The request id: its UTC date first, YYYY-MM-DD. A repeated id is the same request. Default: a new id.",
        rich_help_panel=COMMON,
    ),
]
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--actor", metavar="NAME", help="Who makes the request. Default: the OS user.", rich_help_panel=COMMON
    ),
]
ShardOption = Annotated[str | None, typer.Option("--shard", metavar="SHARD", help="Only this shard.")]
ShardOfRequestOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="SHARD",
        help="Only this shard. It is no part of the request: a repeated id without it does the other shards.",
    ),
]
GroupOption = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group.")]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="The consumer group. With --all a pattern, such as 'orders-*'. Repeatable.",
    ),
]
OfGroupOption = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group.")]
TopicOption = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")]
BrokerOption = Annotated[str, typer.Option("--broker", "-b", metavar="NAME", help="The broker's name.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="The reason, recorded permanently in the history.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        parser=_parser(_engine),
        help="spark, local (this process), or auto (local for little work). Default: the group's setting.",
    ),
]
ImportEngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        parser=_parser(_engine),
        help="spark, local (this process), or auto, the default: local below 512 MiB.",
    ),
]
FullEngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        parser=_parser(_engine),
        help="With --full: spark, where each file is a task, or local, the default: threads of this process.",
    ),
]
ListenerPathOption = Annotated[
    list[str] | None,
    typer.Option(
        "--listener-path",
        metavar="FOLDER",
        help="A folder with listener modules, besides the current one and $RMQ_LISTENER_PATH. Repeatable.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        help="Where Spark runs: local[N], spark://host:port, k8s://..., yarn. Default: $RMQ_SPARK_MASTER, else the settings.",
    ),
]
SparkConfOption = Annotated[
    list[str] | None,
    typer.Option("--spark-conf", metavar="KEY=VALUE", help="A setting of Spark, before those of the file. Repeatable."),
]
PyFilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files", metavar="FILE", help="A .py, .zip or .whl file or a folder for Spark's workers. Repeatable."
    ),
]
UntilOption = Annotated[
    int | None,
    typer.Option("--until", metavar="TIME", parser=TIME, help=f"Only messages stored before this time: {_TIMES}."),
]
SinceOption = Annotated[
    int | None,
    typer.Option("--from", metavar="TIME", parser=TIME, help=f"Only messages stored at or after this time: {_TIMES}."),
]
FromOption = Annotated[
    int | None,
    typer.Option(
        "--from", metavar="TIME", parser=TIME, help=f"From the first message stored at or after this time: {_TIMES}."
    ),
]
AtOption = Annotated[int, typer.Option("--time", metavar="TIME", parser=TIME, help=f"The time: {_TIMES}.")]
NowOption = Annotated[
    int | None,
    typer.Option(
        "--now",
        metavar="TIME",
        parser=TIME,
        help="Deliver what is due by this time. Default: now, by this machine's clock.",
    ),
]
ToTimeOption = Annotated[
    int | None,
    typer.Option(
        "--to-time", metavar="TIME", parser=TIME, help=f"To the first message stored at or after this time: {_TIMES}."
    ),
]
QueueOption = Annotated[
    QueueName, typer.Option("--queue", "-q", metavar="BROKER:QUEUE", parser=_parser(QueueName.parse), help="The queue.")
]
QueuesOption = Annotated[
    list[QueueName] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="BROKER:QUEUE",
        parser=_parser(QueueName.parse),
        help="Only this queue. Repeatable. Default: all queues of the topic.",
    ),
]
SendQueueOption = Annotated[
    QueueName | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="BROKER:QUEUE",
        parser=_parser(QueueName.parse),
        help="Send to this queue of the lake, for example lake-local:0.",
    ),
]
PropertiesOption = Annotated[
    list[PropertyText] | None,
    typer.Option(
        "--property", metavar="NAME=VALUE", parser=_parser(PropertyText.parse), help="A property. Repeatable."
    ),
]


# --- groups of options: a command takes one as a single parameter, see command.py --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Every command has these."""

    root: RootOption = None
    as_json: JsonOption = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsOptions(StoreOptions):
    """Of a command that reads the settings of groups."""

    settings: SettingsOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions(StoreOptions):
    """Of a command that writes: the request under which it does."""

    request: RequestOption = None
    actor: ActorOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(RequestOptions):
    """Of a change by an operator, which needs a reason and can be tried first."""

    reason: ReasonOption = ""
    dry_run: DryRunOption = False
    shard: ShardOfRequestOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChangeOptions(ChangeOptions):
    """Of a change to a consumer group."""

    settings: SettingsOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions(RequestOptions):
    """Of a command that runs the listener of a group."""

    shard: ShardOption = None
    engine: EngineOption = None
    listener_path: ListenerPathOption = None
    settings: SettingsOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Of an import: what to do where a broker's log is damaged, or is not the imported one any more."""

    salvage: Annotated[
        bool, typer.Option("--salvage", help="Skip what is damaged or missing, and record what is skipped.")
    ] = False
    max_body_bytes: Annotated[
        int,
        typer.Option(
            "--max-body-bytes",
            metavar="BYTES",
            parser=count_from(1),
            help="The largest size of a body after decompression. A larger body stops the import, also with --salvage.",
        ),
    ] = MAX_BODY_BYTES
    max_config_bytes: Annotated[
        int,
        typer.Option(
            "--max-config-bytes",
            metavar="BYTES",
            parser=count_from(1),
            help="The largest size of each of the broker's config files. A larger one stops the import.",
        ),
    ] = MAX_CONFIG_BYTES
    max_queues: Annotated[
        int,
        typer.Option(
            "--max-queues",
            metavar="N",
            parser=count_from(1),
            help="The most queues of a topic; all topics may have four times as many. More stop the import.",
        ),
    ] = MAX_QUEUES
    continue_as: Annotated[
        str | None,
        typer.Option(
            "--continue-as",
            metavar="NAME",
            help="For a broker that lost the end of its log and wrote on: import what follows under this broker name.",
        ),
    ] = None
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, with --continue-as; recorded.")] = ""
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --continue-as: show where the log was cut; change nothing.")
    ] = False

    def check(self) -> None:
        """Raises WrongUse for the other options without --continue-as, and for that one without a name."""
        if self.continue_as == "":
            raise WrongUse("--continue-as needs a broker name")
        if (self.reason or self.dry_run) and self.continue_as is None:
            raise WrongUse("--reason and --dry-run are for an import with --continue-as")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Of a command that may start Spark: where, and with which settings and code (``docs/cluster.md``)."""

    master: MasterOption = None
    spark_conf: SparkConfOption = None
    py_files: PyFilesOption = None

    def settings(self) -> SparkSettings:
        """Raises WrongUse for a value that is not one."""
        from rmq_store.settings.spark_settings import SparkSettings, conf_of

        return SparkSettings(
            master=self.master, conf=conf_of(self.spark_conf or ()), py_files=tuple(self.py_files or ())
        )
