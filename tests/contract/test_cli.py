"""What the command line promises whatever the command is: help, errors, exit codes, JSON, a quick start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperCommand

from rmq_store.cli import app as command_line
from rmq_store.cli.app import app
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import own_queue_id
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.sql.views import views
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils import signals
from rmq_store.utils.host import Host, day_of
from tests.contract.rmq import CONSUMERS, LISTENER, Rmq
from tests.terminal import Terminal

CHECKOUT = Path(__file__).parents[2]


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, each as the words that name it."""
    parent: Any = group or typer.main.get_command(app)
    for name, command in parent.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(commands())
IDS = [" ".join(path) for path in COMMANDS]


# --- help ------------------------------------------------------------------------------------------------------------


def test_the_commands_are_those_that_people_build_on() -> None:
    assert sorted(IDS) == [
        *(
            "audit",
            "backup",
            "clone",
            "consume",
            "cutover",
            "delete-group",
            "deliver",
            "diff",
            "dispatch",
            "doctor",
            "groups",
            "hand-back",
        ),
        *(
            "import-store",
            "init",
            "lag",
            "maintain",
            "message",
            "messages",
            "offsets export",
            "offsets import",
            "print",
            "progress",
        ),
        *(
            "redrive",
            "replay",
            "reset",
            "search-offset",
            "send",
            "skip",
            "sql",
            "topic-status",
            "topics",
            "track",
            "undo",
            "upgrade",
        ),
    ]


@pytest.mark.parametrize("path", COMMANDS, ids=IDS)
def test_every_help_says_what_the_command_does_and_takes_a_root_and_json(rmq: Rmq, path: tuple[str, ...]) -> None:
    answer = rmq(*path, "--help")
    assert answer.exit_code == 0
    assert {"--root", "--json"} <= set(answer.out.split())
    assert answer.out.split("Usage:")[1].splitlines()[2].strip().endswith(".")


@pytest.mark.parametrize("path", COMMANDS, ids=IDS)
def test_every_help_has_an_example_and_the_examples_parse(
    rmq: Rmq, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [line.strip() for line in rmq(*path, "--help").out.partition("Example")[2].splitlines()]
    examples = [shlex.split(line) for line in shown if line.startswith("rmq ")]
    assert examples
    parsed = []
    monkeypatch.setattr(TyperCommand, "invoke", lambda command, context: parsed.append(context.command_path))
    for example in examples:
        answer = rmq(*example[1:])
        assert (answer.exit_code, answer.err) == (0, "")
    assert parsed == [f"rmq {' '.join(path)}"] * len(examples)


def readme_commands() -> list[list[str]]:
    text = (CHECKOUT / "README.md").read_text()
    found = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith(".venv/bin/rmq ")]
    return [words[1:] for words in found]


def test_the_commands_of_the_readme_parse_and_its_sql_runs(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    every = readme_commands()
    for query in [words[1] for words in every if words[0] == "sql"]:
        assert imported("sql", query).err == ""
    parsed = []
    monkeypatch.setattr(TyperCommand, "invoke", lambda command, context: parsed.append(context.command_path))
    for words in every:
        assert (imported(*words).exit_code, imported(*words).err) == (0, "")
    assert {"rmq import-store", "rmq send", "rmq sql", "rmq redrive"} <= set(parsed)


def test_the_help_of_sql_names_every_view(rmq: Rmq) -> None:
    shown = rmq("sql", "--help").out.replace(",", " ").replace(";", " ").split()
    assert sorted(view for view in views() if view not in shown) == []


def test_help_lists_every_command(rmq: Rmq) -> None:
    shown = rmq("--help").out
    assert [path[0] for path in COMMANDS if f"│ {path[0]} " not in shown] == []


def test_without_a_command_the_help_is_shown_and_the_use_is_wrong(rmq: Rmq) -> None:
    answer = rmq()
    assert answer.exit_code == 2
    assert "Usage: rmq" in answer.out + answer.err


# --- errors ----------------------------------------------------------------------------------------------------------


def refused(answer: Any, exit_code: int, *said: str) -> None:
    """One error, without a traceback, that says all of it; nothing on standard output."""
    assert answer.exit_code == exit_code, answer
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert answer.err.count("error: ") == 1
    assert "Traceback" not in answer.err
    assert [text for text in said if text not in answer.err] == []


@pytest.mark.parametrize(
    "path", [p for p in COMMANDS if p[0] in ("topics", "groups", "lag", "audit", "dispatch", "deliver")]
)
def test_without_a_store_it_is_said_how_to_make_one(rmq: Rmq, path: tuple[str, ...]) -> None:
    refused(rmq(*path), 1, f"no store at {rmq.root}", "init")
    assert not rmq.root.exists()


def test_the_way_that_is_named_to_make_a_store_works(rmq: Rmq) -> None:
    """``rmq --root ROOT COMMAND`` is ``rmq COMMAND --root ROOT``."""
    elsewhere = rmq.folder / "elsewhere"
    assert rmq("--root", str(elsewhere), "init").exit_code == 0
    assert rmq("topics", "--root", str(elsewhere)).exit_code == 0
    assert rmq("--root", str(elsewhere), "--json", "topics").json() == {"status": "done", "topics": []}


def test_a_root_that_cannot_be_written(rmq: Rmq) -> None:
    (rmq.folder / "file").write_text("not a folder")
    refused(rmq("init", "--root", str(rmq.folder / "file" / "store")), 1, "cannot create", "or choose another root")
    refused(rmq("init", "--root", str(rmq.folder / "file")), 1, "is a file, not a folder")


def test_a_root_of_another_kind(rmq: Rmq) -> None:
    for root in ("gs://bucket", ""):
        refused(rmq("topics", "--root", root), 2, "neither a folder nor s3://bucket/prefix")
    for root in ("s3://bucket/./store", "s3://bucket/other/../store", "s3://bucket/store/..", "s3://./store"):
        refused(rmq("topics", "--root", root), 2, "has a part '.' or '..'", "without it")


def test_a_store_is_not_made_in_a_folder_whose_name_is_not_utf8(rmq: Rmq) -> None:
    """Python reads a byte of the shell that is not UTF-8 as a surrogate. A dataset of pyarrow cannot open such a path."""
    refused(rmq("init", "--root", str(rmq.folder / "st\udcf6re")), 2, "is not UTF-8", "rename the folder")
    assert not (rmq.folder / "st\udcf6re").exists()


def test_a_store_whose_folder_was_renamed_to_what_is_not_utf8_says_so(imported: Rmq) -> None:
    renamed = imported.root.rename(imported.folder / "st\udcf6re")
    refused(
        imported("sql", "SELECT count(*) FROM messages", "--root", str(renamed)), 2, "is not UTF-8", "rename the folder"
    )
    consumed = imported("consume", "--group", "orders", "--max-messages", "50", "--root", str(renamed), "--json")
    assert (consumed.exit_code, consumed.json()["messages"]) == (0, 50)


def test_a_store_of_a_newer_format(rmq: Rmq) -> None:
    rmq("init")
    file = rmq.root / "store.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    refused(rmq("consume", "--group", "orders"), 1, "has format 99", "this version of rmq reads up to")


def test_an_empty_store_says_how_to_fill_it(rmq: Rmq) -> None:
    rmq("init")
    refused(rmq("consume", "--group", "orders"), 2, "is empty", "rmq import-store")


def test_a_group_that_the_settings_do_not_know(imported: Rmq) -> None:
    refused(imported("consume", "--group", "order"), 2, "no group 'order'", "did you mean 'orders'", "elsewhere")


def test_a_group_that_nobody_knows_is_not_reset(imported: Rmq) -> None:
    answer = imported("reset", "-g", "gm_akc", "-t", "OrderEvents", "--to-min", "--reason", "x")
    refused(answer, 2, "no group 'gm_akc'", "did you mean 'gm_ack'", "gm_sql", "orders")
    system = ["-g", "CID_RMQ_SYS_SCHEDULE", "-t", "SCHEDULE_TOPIC_XXXX"]
    refused(imported("reset", *system, "--to-min", "--reason", "x"), 2, "no group 'CID_RMQ_SYS_SCHEDULE'")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consume", "-g", "elsewhere"], ["no topic NoSuchTopic", "OrderEvents", "TxnLedger"]),
        (["reset", "-g", "orders", "-t", "OrderEvent", "--to-min", "--reason", "x"], ["did you mean 'OrderEvents'"]),
        (["search-offset", "-t", "Nope", "-q", "broker-a:0", "--time", "0"], ["no topic Nope", "OrderEvents"]),
        (["replay", "-g", "orders", "-t", "StockTicks", "--from", "0"], ["does not read StockTicks", "OrderEvents"]),
    ],
)
def test_a_topic_that_is_not_there(imported: Rmq, arguments: list[str], said: list[str]) -> None:
    refused(imported(*arguments), 2, *said)


def test_a_queue_that_is_not_there(imported: Rmq) -> None:
    answer = imported("search-offset", "-t", "PaymentFlow", "-q", "broker-a:4", "--time", "0")
    refused(answer, 2, "no queue broker-a:4", "broker-a:0, broker-a:1, broker-a:2, broker-a:3")
    refused(imported("search-offset", "-t", "PaymentFlow", "-q", "4", "--time", "0"), 2, "write BROKER:QUEUE")


def test_a_listener_that_cannot_be_imported(imported: Rmq) -> None:
    refused(imported("consume", "-g", "broken"), 1, "no_such_module", "cannot be imported")
    assert imported.json("consume", "-g", "orders")["status"] == "committed"


def test_settings_with_several_problems_name_them_all(imported: Rmq) -> None:
    (imported.folder / "bad.toml").write_text(
        '[[group]]\nname = "a b"\nlistener = "x"\nengine = "sparc"\n[[group.subscription]]\ntopic = "T"\n'
    )
    answer = imported("consume", "-g", "a b", "--settings", "bad.toml")
    refused(answer, 2, "bad.toml: group a b has 3 problem(s)", "name: ", "listener: ", "engine: ")
    answer = imported("consume", "-g", "orders", "--settings", "bad.toml")
    refused(answer, 2, "bad.toml has no group 'orders'; known: none; with problems: a b")
    (imported.folder / "bad.toml").write_text("[[group]\n")
    refused(imported("consume", "-g", "orders", "--settings", "bad.toml"), 2, "bad.toml is not TOML")
    refused(imported("consume", "-g", "orders", "--settings", "none.toml"), 2, "none.toml cannot be read", "--settings")


@pytest.mark.parametrize("time", ["yesterday", "2026-11-20T12:00:00", "1709222399", "20260230120000Z"])
def test_a_time_that_is_none_names_the_option(imported: Rmq, time: str) -> None:
    refused(imported("consume", "-g", "orders", "--until", time), 2, "'--until'", "rmq consume --help")


@pytest.mark.parametrize("request_id", ["mine", "20-11-2026-mine", "2026-13-01-mine", "2026-01-011", ""])
def test_a_request_id_begins_with_its_date(imported: Rmq, request_id: str) -> None:
    refused(imported("consume", "-g", "orders", "--request", request_id), 2, "must begin with its UTC date, YYYY-MM-DD")


def test_a_request_id_of_a_day_to_come_would_not_be_found_again(imported: Rmq) -> None:
    refused(imported("deliver", "--request", "2999-01-01-mine"), 2, "a date in the future")


def test_a_reset_says_where_to_once_and_why(imported: Rmq) -> None:
    reset = ["reset", "-g", "orders", "-t", "OrderEvents"]
    refused(imported(*reset, "--to-min"), 2, "needs a reason (--reason)")
    refused(imported(*reset, "--reason", "x"), 2, "--to-time TIME, --to-offset OFFSET, --to-min or --to-max")
    refused(imported(*reset, "--reason", "x", "--to-min", "--to-offset", "3"), 2, "give exactly one of")
    refused(imported(*reset, "--reason", "x", "--to-offset", "526"), 2, "not in consume queue range [0-525]")


def test_a_group_whose_queues_another_request_holds_is_exit_code_3_and_says_who(imported: Rmq) -> None:
    (shard,) = LakeStore.open(Root.parse(str(imported.root))).shards()
    queues = tuple(own_queue_id("orders", queue) for queue in shard.positions().all_queues())
    with claimed(shard, Wish("2026-01-01-theirs", Actor("ben", "test"), "orders", queues=queues), Host()):
        answer = imported("consume", "-g", "orders", "--request", "2026-01-01-mine")
        refused(answer, 3, "held by request 2026-01-01-theirs of ben", "2026-01-01-mine")
        in_json = imported("consume", "-g", "orders", "--request", "2026-01-01-mine", "--json")
    assert in_json.exit_code == 3
    found = in_json.json()
    assert (found["status"], found["error"], found["exit_code"]) == ("error", "HeldByAnother", 3)
    assert found["request_id"] == "2026-01-01-mine"
    assert "held by request 2026-01-01-theirs" in found["message"]
    assert in_json.err.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consum"], "No such command 'consum'. Did you mean 'consume'?"),
        (["consume"], "give one group with --group; several groups, --exclude and --threads need --all"),
        (["consume", "--groop", "x"], "No such option: --groop"),
        (["consume", "-g", "orders", "--engine", "spork"], "expected one of spark, local, auto"),
        (["consume", "-g", "orders", "--max-messages", "0"], "'--max-messages'"),
        (["search-offset", "-t", "T", "-q", "b:0", "--time", "0", "--boundary", "middle"], "'--boundary'"),
        (["sql"], "give exactly one query"),
    ],
)
def test_wrong_use_is_exit_code_2_in_text_and_in_json(rmq: Rmq, arguments: list[str], said: str) -> None:
    refused(rmq(*arguments), 2, said)
    answer = rmq(*arguments, "--json")
    assert answer.exit_code == 2
    found = answer.json()
    assert (found["status"], found["error"], found["exit_code"]) == ("error", "WrongUse", 2)
    assert said in found["message"]


def test_a_defect_is_one_line_and_its_place_is_shown_when_asked_for(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("somewhere deep")

    monkeypatch.setattr(LakeStore, "open", broken)
    refused(rmq("topics"), 1, "ZeroDivisionError: somewhere deep", "RMQ_DEBUG=1")
    monkeypatch.setenv("RMQ_DEBUG", "1")
    answer = rmq("topics")
    assert answer.exit_code == 1
    assert "Traceback" in answer.err
    assert "in broken" in answer.err


@pytest.mark.parametrize("foreign", [SystemExit(0), SystemExit(), GeneratorExit()])
def test_foreign_code_that_ends_the_process_is_an_error_with_a_document(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch, foreign: BaseException
) -> None:
    def ends(*_: object) -> None:
        raise foreign

    monkeypatch.setattr(LakeStore, "open", ends)
    answer = rmq("topics", "--json")
    told = answer.json()
    assert (answer.exit_code, told["status"], told["error"]) == (1, "error", type(foreign).__name__)


def test_a_name_in_an_error_steers_no_terminal_and_makes_no_second_error(imported: Rmq) -> None:
    answer = imported("print", "--topic", "a\x1b]0;title\x07\nerror: all is lost", "--json")
    assert answer.exit_code == 2
    first, second = answer.err.splitlines()[:2]
    assert first.startswith("error: ")
    assert "a\\x1b]0;title\\x07" in first
    assert second.startswith("  error: all is lost")
    assert "\x1b" not in answer.err + answer.json()["message"]


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_secret_in_an_address_is_never_told(rmq: Rmq, monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv("RMQ_DEBUG", debug)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:address-secret@127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key-secret")
    roots = ("s3://bucket/store", "s3://KEY:root-secret@bucket", "s3://KEY:root-/secret@bucket", "gs://K:root-secret@b")
    for root in roots:
        answer = rmq("topics", "--root", root, "--json")
        assert answer.exit_code in (1, 2)
        assert answer.json()["status"] == "error"
        assert "secret" not in (answer.out + answer.err).replace("AWS_SECRET_ACCESS_KEY", "")
    assert "127.0.0.1:9" in rmq("topics", "--root", roots[0]).err


def test_an_error_is_red_in_a_terminal_only(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in rmq("topics").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert rmq("topics").err.startswith("\x1b[31merror: no store")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in rmq("topics").err


# --- a process of its own --------------------------------------------------------------------------------------------


def in_a_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )


AND_SAY_WHAT_WAS_LOADED = """
import sys
from rmq_store.cli import main
code = main(sys.argv[1:])
heavy = {"pyspark", "py4j", "pandas", "airflow", "spark_jobs"} & set(sys.modules)
print("loaded:", sorted(heavy), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments", [["sql", "select 1"], ["consume", "-g", "orders", "--until", "0"], ["topics"], ["deliver"], ["--help"]]
)
def test_a_short_question_loads_neither_spark_nor_pandas(imported: Rmq, arguments: list[str]) -> None:
    imported("consume", "-g", "orders", "--max-messages", "1")  # the first window of a group records where it begins
    done = in_a_process(AND_SAY_WHAT_WAS_LOADED, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "loaded: []"


def test_a_listener_finds_pandas_as_if_nothing_had_been_left_out(imported: Rmq) -> None:
    (imported.folder / "cli_listener.py").write_text(
        "import pyarrow as pa\nimport pandas as pd\n\n"
        "def fail_without_price(batch):\n"
        "    assert pa.array(pd.Series([1.0, float('nan')])).null_count == 1\n"
        "    return pa.array(['CONSUME_SUCCESS'] * len(batch.to_pandas()))\n\n"
        "fail_without_price.columns = ('tags',)\n"
    )
    done = in_a_process(
        "import sys; from rmq_store.cli import main; sys.exit(main())", "consume", "-g", "orders", "--json"
    )
    counts = json.loads(done.stdout)["windows"][0]["counts"]
    assert {outcome: count for outcome, count in counts.items() if count} == {"acked": 4200}


def test_an_answer_that_nobody_reads_to_its_end_is_no_defect(imported: Rmq) -> None:
    command = [sys.executable, "-c", "from rmq_store.cli import main; raise SystemExit(main())"]
    query = "select topic, queue_id, queue_offset from messages"
    with subprocess.Popen(
        [*command, "sql", query, "--format", "csv"],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"topic,queue_id,queue_offset\n"
        process.stdout.close()
        assert process.stderr.read() == b""


PRINTS = """
def fail_without_price(msgs, context):
    print("hello")
"""


def test_what_a_listener_prints_in_its_process_is_on_standard_error_beside_the_json(imported: Rmq) -> None:
    (imported.folder / "cli_listener.py").write_text(PRINTS)
    consume = ["consume", "-g", "orders", "--max-messages", "1", "--json"]
    done = in_a_process("import sys; from rmq_store.cli import main; sys.exit(main())", *consume)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["messages"]) == (0, "hello\n", 1)


LISTENING = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
)
"""A shell that starts the tests in the background has these ignored."""

STOPPED = """
import os, signal, time

def parent(pid):
    with open(f"/proc/{{pid}}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

def fail_without_price(msgs, context):
    os.kill({pid}, signal.{name})
    time.sleep(60)
"""


STOPPED_IN_DEL = """
import os, signal, time

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))

def fail_without_price(msgs, context):
    Dying()
    time.sleep(60)
"""


def test_a_signal_inside_del_stops_the_command_too(imported: Rmq) -> None:
    """Python drops what its handler raises there."""
    (imported.folder / "cli_listener.py").write_text(STOPPED_IN_DEL)
    settings = imported.folder / "consumers.toml"
    settings.write_text(CONSUMERS.replace('engine = "auto"', 'engine = "auto"\nlistener_process = false'))
    stopped = in_a_process("import sys; from rmq_store.cli import main; sys.exit(main())", "consume", "-g", "orders")
    assert (stopped.returncode, "stopped by SIGTERM" in stopped.stderr, "Traceback" in stopped.stderr) == (
        143,
        True,
        False,
    )


STOPS = [("SIGINT", "Ctrl-C", 130), ("SIGTERM", "SIGTERM", 143), ("SIGHUP", "SIGHUP", 129)]


@pytest.mark.parametrize("pid", ["os.getpid()", "parent(os.getppid())"], ids=["this process", "its process"])
@pytest.mark.parametrize(("name", "by", "exit_code"), STOPS)
def test_who_is_stopped_says_so_and_gives_its_queues_back(
    imported: Rmq, name: str, by: str, exit_code: int, pid: str
) -> None:
    (imported.folder / "cli_listener.py").write_text(STOPPED.format(name=name, pid=pid))
    settings, is_own = imported.folder / "consumers.toml", "true" if "parent" in pid else "false"
    settings.write_text(CONSUMERS.replace('engine = "auto"', f'engine = "auto"\nlistener_process = {is_own}'))
    request = f"{day_of(Host().now_ms())}-stopped"
    consume = ["consume", "-g", "orders", "--request", request, "--json"]
    done = in_a_process(f"{LISTENING}; from rmq_store.cli import main; sys.exit(main())", *consume)
    said = f"stopped by {by}; what was committed stays, run the same request again to finish (request {request})"
    assert (done.returncode, done.stderr) == (exit_code, f"error: {said}\n")
    assert json.loads(done.stdout) == {
        "status": "error",
        "error": "Stopped",
        "message": said,
        "exit_code": exit_code,
        "request_id": request,
    }
    owned = imported.json("sql", "select distinct ended_by from queue_owners where group_name = 'orders'")
    assert owned == [{"ended_by": "released"}]
    (imported.folder / "cli_listener.py").write_text(LISTENER)
    assert imported.json(*consume)["messages"] == 4200


SLOW = """
import time
from pathlib import Path

def fail_without_price(msgs, context):
    Path("called").touch()
    while not Path("open").exists():
        time.sleep(0.02)
"""


def test_a_closed_terminal_stops_the_command_and_its_queues_are_given_back(imported: Rmq) -> None:
    (imported.folder / "cli_listener.py").write_text(SLOW)
    command = [str(Path(sys.executable).with_name("rmq")), "consume", "-g", "orders"]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT), "RMQ_ROOT": str(imported.root)}
    with Terminal(command, imported.folder, env) as terminal:
        while not (imported.folder / "called").exists():
            assert terminal.process.poll() is None, terminal.screen
            time.sleep(0.02)
        terminal.close()
        assert terminal.end() == 129
    owned = imported.json("sql", "select distinct ended_by from queue_owners where group_name = 'orders'")
    assert owned == [{"ended_by": "released"}]


@pytest.mark.parametrize(
    ("place", "exit_code", "message"),
    [("print_error", 1, "no store at "), ("_failed", 128 + signal.SIGTERM, "stopped by SIGTERM")],
    ids=["while it is told", "before it is told"],
)
def test_a_signal_after_an_error_leaves_one_answer(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch, place: str, exit_code: int, message: str
) -> None:
    """The process ends in any case."""
    tell = getattr(command_line, place)

    def killed(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return tell(*arguments)

    monkeypatch.setattr(command_line, place, killed)
    handler = signal.signal(signal.SIGTERM, signals._stop)
    try:
        answer = rmq("topics", "--json")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (answer.exit_code, message in answer.json()["message"]) == (exit_code, True), answer


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_the_starter_has_ignored_stops_nothing(imported: Rmq, name: str) -> None:
    """``nohup`` ignores SIGHUP, a shell SIGINT for what it starts in the background."""
    ends = f"import os, signal\ndef fail_without_price(msgs, context):\n    os.kill(os.getpid(), signal.{name})\n"
    (imported.folder / "cli_listener.py").write_text(ends)
    settings = imported.folder / "consumers.toml"
    settings.write_text(CONSUMERS.replace('engine = "auto"', 'engine = "auto"\nlistener_process = false'))
    ignoring = f"import signal, sys; signal.signal(signal.{name}, signal.SIG_IGN)"
    consume = ["consume", "-g", "orders", "--json"]
    done = in_a_process(f"{ignoring}; from rmq_store.cli import main; sys.exit(main())", *consume)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "committed"), done.stderr


QUERY_STOPPED = """
import os, signal, sys
from functools import wraps
from rmq_store.cli import main
from rmq_store.lake.sql import sql_functions

{listening}
function, arguments = sql_functions.FUNCTIONS["{function}"]

@wraps(function)
def stopped(*columns):
    os.kill(os.getpid(), signal.{name})
    return function(*columns)

sql_functions.FUNCTIONS["{function}"] = (stopped, arguments)
sys.exit(main())
"""


@pytest.mark.parametrize(("name", "by", "exit_code"), STOPS)
@pytest.mark.parametrize(
    ("function", "query"),
    [
        (
            "offset_hash",
            "SELECT sum(sin(a.range * b.range)) + sum(offset_hash(a.range)) FROM range(2000) a, range(2000) b",
        ),
        ("range_hash", "SELECT range_hash(0, 60000000000)"),
        ("range_hash", "SELECT max(range_hash(range, 60000000000)) FROM range(2000)"),
    ],
)
def test_a_query_that_is_stopped_is_no_defect(
    imported: Rmq, function: str, query: str, name: str, by: str, exit_code: int
) -> None:
    """DuckDB replaces what a signal raises by an error of its own. It cannot interrupt a call of a function."""
    done = in_a_process(QUERY_STOPPED.format(name=name, function=function, listening=LISTENING), "sql", query)
    assert (done.returncode, done.stderr) == (exit_code, f"error: stopped by {by}\n")


@pytest.mark.parametrize(
    "command",
    [
        ["sql", "--file", "a\0b"],
        ["sql", "--file", "a\ud800"],
        ["send", "--topic", "T", "a\ud800"],
        ["import-store", "--broker", "b", "n" * 600],
    ],
)
def test_an_argument_that_no_file_and_no_text_can_be_is_wrong_use(rmq: Rmq, command: list[str]) -> None:
    rmq("init")
    answer = rmq(*command)
    assert answer.exit_code == 2
    assert "defect" not in answer.err


@pytest.mark.parametrize("name", ["", ".", "/", "s3://bucket/offsets.json"])
@pytest.mark.parametrize(
    "command", [["offsets", "export"], ["offsets", "export", "--merge"], ["offsets", "import", "--group", "g"]]
)
def test_what_is_no_file_of_this_machine_is_refused(rmq: Rmq, command: list[str], name: str) -> None:
    """An unset variable of a shell, and an address: these commands read and write local files."""
    rmq("init")
    answer = rmq(*command, name, "--broker", "broker-a", "--dry-run")
    assert answer.exit_code == 2
    assert f"{name!r} is not the name of a file on this machine" in answer.err


@pytest.mark.parametrize("options", [["--group", "orders"], ["--all"]])
def test_a_dry_run_refuses_a_folder_of_listeners_as_the_run_does(imported: Rmq, options: list[str]) -> None:
    folder = str(imported.folder / "none")
    answers = [
        imported("consume", *options, "--listener-path", folder, *more)
        for more in (["--dry-run"], ["--engine", "local"])
    ]
    assert [(answer.exit_code, answer.err) for answer in answers] == 2 * [
        (2, f"error: --listener-path {folder} is not a folder\n")
    ]
