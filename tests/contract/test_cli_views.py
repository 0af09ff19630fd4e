"""``rmq topics``, ``groups``, ``lag``, ``audit``, ``sql``: what they answer, in text and in JSON."""

from __future__ import annotations

import base64
import csv
import io
import resource

import pytest

from rmq_store.lake.audit.finding import Finding, Problem
from tests.contract.rmq import ORDERS, Rmq


def test_topics_groups_and_lag_show_the_views(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "200")
    assert {"topic": "OrderEvents", "queues": 8, "messages": ORDERS}.items() <= next(
        row.items() for row in imported.json("topics")["topics"] if row["topic"] == "OrderEvents"
    )
    assert {"orders", "gm_ack"} <= {row["group_name"] for row in imported.json("groups")["groups"]}
    lag = imported.json("lag", "--group", "orders")["lag"]
    assert {row["group_name"] for row in lag} == {"orders"}
    assert sum(row["readable_lag"] for row in lag) == ORDERS - 200
    shown = imported("lag").out
    assert shown.splitlines()[0].split()[:3] == ["shard", "group_name", "topic"]
    assert imported("lag", "--group", "elsewhere").out == "no offsets of elsewhere\n"


@pytest.mark.parametrize("command", ["lag", "audit", "progress"])
def test_a_group_that_nobody_knows_has_no_answer(imported: Rmq, command: str) -> None:
    answer = imported(command, "--group", "o'rders")
    assert (answer.exit_code, answer.out) == (2, "")
    assert """there is no group "o'rders", did you mean 'orders'?""" in answer.err


def test_audit_finds_nothing_in_a_sound_store(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    answer = imported("audit")
    assert answer.exit_code == 0
    assert answer.out == "no contradiction: every offset has exactly one outcome\n"


def test_a_full_audit_says_what_it_read(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    answer = imported("audit", "--full")
    assert (answer.exit_code, answer.out.splitlines()[0]) == (
        0,
        "no contradiction: every offset has exactly one outcome",
    )
    assert answer.out.splitlines()[1].startswith("read ")
    assert "not covered" not in answer.out
    contents = imported.json("audit", "--full")["full"]
    assert contents["files"] > 0
    assert contents["rows"] >= ORDERS
    assert contents["without_digest"] == 0
    for wrong in (["--full", "--group", "orders"], ["--engine", "local"]):
        assert imported("audit", *wrong).exit_code == 2


def test_a_full_audit_does_not_count_a_missing_file_as_read(imported: Rmq) -> None:
    before = imported.json("audit", "--full")["full"]
    missing = max(imported.root.rglob("kind=msg/*.parquet"), key=lambda path: path.stat().st_size)
    size = missing.stat().st_size
    missing.unlink()
    after = imported("audit", "--full", "--json").json()["full"]
    assert (after["files"], after["size"]) == (before["files"] - 1, before["size"] - size)


def test_audit_is_exit_code_1_when_something_is_found(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    gap = Finding(shard="broker-a", problem=Problem.GAP, begin_offset=7)
    monkeypatch.setattr("rmq_store.lake.audit.audit.audit", lambda store, progress: [gap])
    answer = imported("audit")
    assert (answer.exit_code, answer.err) == (1, "")
    header, _, row, _, advice, _ = answer.out.splitlines()
    assert (header.split(), row.split()) == (["shard", "problem", "begin_offset"], ["broker-a", "gap", "7"])
    assert advice.startswith("gap: a group has passed these messages")
    in_json = imported("audit", "--json")
    assert (in_json.exit_code, in_json.json()["audit"]) == (1, [gap.row()])
    assert [one["problem"] for one in in_json.json()["advice"]] == ["gap"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("interval '3 years 2 months -5 days'", "3 years 2 months -5 days"),
        ("interval '-30000000 years'", "-30000000 years"),
        ("[interval '90 minutes']", "['01:30:00']"),
        ("{'at': date 'infinity'}", "{'at': infinity}"),
        ("timestamp '290000-01-01'", "290000-01-01 00:00:00"),
        ("map {{'a': 1}: 2}", "{{'a': 1}=2}"),
    ],
)
def test_sql_prints_what_python_has_no_value_for_as_duckdb_does(rmq: Rmq, value: str, text: str) -> None:
    rmq("init")
    query = f"select {value} as v, 1 as n union all select null, 2 order by n"
    assert rmq.json("sql", query) == [{"v": text, "n": 1}, {"v": None, "n": 2}]
    assert text in rmq("sql", query).out
    assert list(csv.reader(io.StringIO(rmq("sql", query, "--format", "csv").out)))[1] == [text, "1"]


@pytest.mark.parametrize("value", ["repeat('x', 4000000000)", "len(range(1000000000))"])
def test_sql_also_bounds_the_memory_that_duckdb_does_not_count(rmq: Rmq, value: str) -> None:
    rmq("init")
    before = resource.getrlimit(resource.RLIMIT_AS)
    answer = rmq("sql", f"SELECT {value}", "--memory", "64MiB")
    assert answer.exit_code == 2, answer
    assert "needs more than 64 MiB of memory" in answer.err
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_sql_answers_in_three_forms(rmq: Rmq) -> None:
    rmq("init")
    query = (
        "select 1 as n, 'a,\"b' as t, null as nothing, true as yes, 2.5 as x, sum(7::bigint) as s, "
        "map {'k': 'v'} as m, [1, 2] as l, '\\xC3\\xBC\\xFF'::blob as b, 'second' as n"
    )
    (row,) = rmq.json("sql", query)
    assert list(row) == ["n", "t", "nothing", "yes", "x", "s", "m", "l", "b", "n_2"]
    blob = base64.b64encode("ü".encode() + b"\xff").decode()
    assert list(row.values()) == [1, 'a,"b', None, True, 2.5, 7, {"k": "v"}, [1, 2], blob, "second"]
    assert rmq("sql", query, "--format", "json").json() == [row]
    names, values = csv.reader(io.StringIO(rmq("sql", query, "--format", "csv").out))
    assert names == list(row)
    assert values == ["1", 'a,"b', "", "true", "2.5", "7", '{"k": "v"}', "[1, 2]", "ü\\xff", "second"]
    head, _, cells = rmq("sql", query).out.splitlines()
    assert head.split() == list(row)
    assert cells.split() == ["1", 'a,"b', "true", "2.5", "7", '{"k":', '"v"}', "[1,", "2]", "ü\\xff", "second"]


def test_sql_takes_the_query_from_input_or_a_file(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    rmq("init")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"select 40 + 2 as n")))
    assert rmq.json("sql", "-") == [{"n": 42}]
    for query in ("-- how many\nselect 42 as n", "--how many\nselect 42 as n", "--\nselect 42 as n"):
        assert rmq.json("sql", query) == [{"n": 42}]
    (rmq.folder / "q.sql").write_text("select 41 as n\n")
    assert rmq.json("sql", "--file", "q.sql") == [{"n": 41}]
    for name in ("none.sql", "/dev/zero"):
        refused = rmq("sql", "--file", name)
        assert (refused.exit_code, f"--file {name} cannot be read" in refused.err) == (2, True)


@pytest.mark.parametrize("query", ["selec 1", "select * from nothing", "select 1; select 2", "drop table x", ""])
def test_wrong_sql_is_wrong_use(imported: Rmq, query: str) -> None:
    answer = imported("sql", query)
    assert (answer.exit_code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")


def test_no_rows_are_an_empty_table_and_an_empty_array(rmq: Rmq) -> None:
    rmq("init")
    assert rmq.json("sql", "select 1 as n where false") == []
    assert rmq("sql", "select 1 as n where false").out.split()[0] == "n"
    assert rmq("sql", "select 1 as n where false", "--format", "csv").out == "n\n"


def test_a_message_cannot_steer_the_terminal_that_shows_it(rmq: Rmq) -> None:
    rmq("init")
    shown = rmq("sql", "select chr(27) || '[2J' || chr(10) || 'x' as t").out
    assert shown.splitlines()[-1].strip() == "\\x1b[2J\\nx"


def test_no_text_of_a_message_is_a_formula_in_csv(rmq: Rmq) -> None:
    rmq.json("init")
    query = (
        "SELECT '=1+1' AS \"=h\", '@x' AS b, '-1+1' AS c, '+cmd|x' AS d, chr(9) || 'x' AS e, chr(13) || 'x' AS f, "
        "'\uff1dx' AS g, '=x'::BLOB AS h, '-1.5' AS i, -1 AS j, 'a=b' AS k"
    )
    harmless = "'=h,b,c,d,e,f,g,h,i,j,k\n'=1+1,'@x,'-1+1,'+cmd|x,'\tx,\"'\rx\",'\uff1dx,'=x,-1.5,-1,a=b\n"
    assert rmq("sql", query, "--format", "csv").out == harmless
    raw = '=h,b,c,d,e,f,g,h,i,j,k\n=1+1,@x,-1+1,+cmd|x,\tx,"\rx",\uff1dx,=x,-1.5,-1,a=b\n'
    assert rmq("sql", query, "--format", "csv", "--raw").out == raw


def test_no_secret_and_no_control_character_is_shown(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    rmq.json("init")
    monkeypatch.setenv("SHOP_TOKEN", "hunter2hunter2")
    text = "hunter2hunter2 https://u:pw@h/x \x1b]0;t\x07\x9b\u202e"
    rmq("send", "--topic", "O", "--create", "--key", "k\x9b", text)
    (key,) = (row["unique_key"] for row in rmq.json("sql", "SELECT unique_key FROM messages"))
    for command in (
        ("message", key),
        ("print", "--topic", "O", "--body"),
        ("sql", f"SELECT '{text}' AS \"a\x1b\", keys FROM messages"),
        ("track", key),
        ("messages", "--topic", "O", "--key", f"{text}"),
        ("lag", "--group", text),
        ("--json", "message", key),
    ):
        answer = rmq(*command)
        shown = answer.out + answer.err
        assert not set("\x1b\x07\x9b\u202e") & set(shown), command
        if "--json" not in command:
            assert "hunter2" not in shown, command
            assert "u:pw" not in shown, command


def test_a_long_table_says_what_it_leaves_out(rmq: Rmq) -> None:
    rmq("init")
    shown = rmq("sql", "select * from range(1500)").out.splitlines()
    assert len(shown) == 2 + 1000 + 1
    assert shown[-1].startswith("(500 more rows are not shown")
    assert len(rmq("sql", "select * from range(1500)", "--format", "csv").out.splitlines()) == 1501
