"""``rmq redrive``: which letters are sent again, and what is said of it."""

from __future__ import annotations

import pytest

from rmq_store.admin import redrive
from rmq_store.utils.host import Host, epoch_ms
from rmq_store.utils.times import format_time
from tests.contract.rmq import TODAY, Rmq, lines_of

LETTERS = (
    "select count(*) as n, count(redriven_at) as sent, max(redriven_to) as topic from dead_letters where group_name = "
)


def a_group_with_letters(rmq: Rmq) -> str:
    """The one with the most."""
    found = rmq.json("sql", "select group_name, count(*) as n from dead_letters group by 1 order by n desc, 1 limit 1")
    return str(found[0]["group_name"])


def test_letters_are_sent_again_once_and_a_dry_run_shows_them_before(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    (before,) = imported.json("sql", f"{LETTERS}'{group}'")
    assert (before["sent"], before["n"] > 10) == (0, True)
    dry = imported.json("redrive", "-g", group, "--all", "--dry-run")
    assert (dry["status"], dry["letters"], len(dry["listed"])) == ("dry_run", before["n"], before["n"])
    some = imported.json("redrive", "-g", group, "--all", "--limit", "5", "--reason", "fixed")
    assert (some["status"], some["letters"], some["readers"]) == ("committed", 5, [group])
    again = ["redrive", "-g", group, "--all", "--reason", "fixed", "--request", f"{TODAY}-again"]
    rest = lines_of(imported(*again).out)
    assert (rest["status"], rest["dead letters"]) == ("committed", str(before["n"] - 5))
    assert rest["topic"] == f"%RETRY%{group}, read by {group}"
    assert imported.json(*again)["status"] == "already_committed"
    nothing = imported("redrive", "-g", group, "--all", "--reason", "more").out
    assert lines_of(nothing)["status"] == "empty"
    assert "nothing to do: no matching dead letter is left" in nothing
    (after,) = imported.json("sql", f"{LETTERS}'{group}'")
    assert after == {"n": before["n"], "sent": before["n"], "topic": f"%RETRY%{group}"}
    assert imported.json("audit")["audit"] == []


def test_a_letter_that_was_sent_again_is_tracked_into_its_second_life(imported: Rmq) -> None:
    settings = (imported.folder / "consumers.toml").read_text()
    mended = imported.folder / "mended.toml"
    dead_at_once = settings.replace('engine = "auto"', 'engine = "local"\nmax_reconsume_times = 0')
    (imported.folder / "consumers.toml").write_text(dead_at_once)
    assert "%RETRY%orders, read by orders" in imported("redrive", "-g", "orders", "--all", "--dry-run").out
    mended.write_text(settings.replace("fail_without_price", "succeed"))
    imported("consume", "-g", "orders")
    letter = "select unique_key as id from dead_letters where group_name = 'orders' and queue_offset = "
    ids = [imported.json("sql", f"{letter}{offset}")[0]["id"] for offset in (0, 1)]

    def of_orders(number: int) -> tuple[str, list[str]]:
        found = imported.json("track", ids[number], "-t", "OrderEvents")["tracks"]
        (track,) = (one for one in found if one["group"] == "orders")
        return track["type"], [hop["outcome"] for hop in track["hops"]]

    assert of_orders(0) == ("DEAD", ["dead"])
    sent = imported("redrive", "-g", "orders", "--letter", "lake-broker-a:0:0", "--reason", "mended")
    assert "to consume them: rmq consume --group orders" in sent.out
    assert of_orders(0) == ("RETRYING", ["dead", "redriven", "unread"])
    assert imported.json("consume", "-g", "orders", "--settings", str(mended))["messages"] == 1
    assert of_orders(0) == ("CONSUMED", ["dead", "redriven", "acked"])
    elsewhere = ["--letter", "lake-broker-a:0:1", "--to-topic", "OrderEvents", "--reason", "for everybody"]
    assert imported.json("redrive", "-g", "orders", *elsewhere)["letters"] == 1
    assert of_orders(1) == ("DEAD", ["dead", "redriven"])


def test_a_letter_is_named_by_its_place_and_may_go_to_a_topic_for_everybody(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    place = "select broker_name || ':' || queue_id || ':' || queue_offset as place, unique_key as k from dead_letters"
    one, two = imported.json("sql", f"{place} where group_name = '{group}' order by queue_offset limit 2")
    broker_and_queue = one["place"].rpartition(":")[0]
    named = ["redrive", "-g", group, "--letter", one["place"], "--to-topic", "OrderEvents"]
    dry = imported.json(*named, "--dry-run")
    assert ([letter["unique_key"] for letter in dry["listed"]], "orders" in dry["readers"]) == ([one["k"]], True)
    assert imported.json(*named, "--reason", "all shall see it")["letters"] == 1
    by_key = ["redrive", "-g", group, "--key", one["k"], "--key", two["k"], "--reason", "x"]
    assert imported.json(*by_key)["letters"] == len({one["k"], two["k"]}) - 1
    even = [f"--letter={broker_and_queue}:{offset}" for offset in range(4, 10, 2)]
    assert imported.json("redrive", "-g", group, *even, "--reason", "x")["letters"] == 3
    assert imported.json("audit")["audit"] == []


def test_a_group_without_dead_letters_has_nothing_to_do_but_a_name_that_is_wrong_is_refused(imported: Rmq) -> None:
    asked = ["redrive", "-g", "orders", "--all", "--reason", "mended"]
    answer = imported.json(*asked)
    assert (answer["status"], answer["letters"]) == ("empty", 0)
    assert answer["nothing_to_do"] == "group orders has no dead letters"
    assert "nothing to do: group orders has no dead letters" in imported(*asked).out
    for wrong, says in (
        (["redrive", "-g", "ordres", "--all", "--reason", "x"], "there is no group 'ordres', did you mean 'orders'?"),
        ([*asked, "--to-topic", "Nowhere"], "there is no topic Nowhere"),
        (["redrive", "-g", "orders", "--letter", "lake-broker-a:0:1", "--reason", "x"], "has no queue lake-broker-a:0"),
    ):
        refused = imported(*wrong)
        assert (refused.exit_code, says in refused.err) == (2, True), refused


def test_a_redrive_says_which_letters_of_whom_and_why(imported: Rmq) -> None:
    group = a_group_with_letters(imported)

    def refused(says: str, *options: str) -> None:
        answer = imported("redrive", *options)
        assert (answer.exit_code, says in answer.err) == (2, True), answer

    refused("choose which dead letters", "-g", group, "--reason", "x")
    refused("choose which dead letters", "-g", group, "--reason", "x", "--all", "--key", "k")
    refused("needs a reason (--reason)", "-g", group, "--all")
    refused(f"did you mean {group!r}", "-g", f"{group}x", "--all", "--reason", "x")
    refused("expected BROKER:QUEUE:OFFSET", "-g", group, "--letter", "broker-a:0")
    refused("has no queue broker-x:0", "-g", group, "--letter", "broker-x:0:1", "--reason", "x")
    refused("has no topic Nowhere", "-g", group, "--all", "--to-topic", "Nowhere", "--reason", "x")
    schedule = "SCHEDULE_TOPIC_XXXX"
    refused(f"cannot redrive to system topic {schedule}", "-g", group, "--all", "--to-topic", schedule, "--reason", "x")


def test_copies_are_edited_and_a_dry_run_shows_it_before(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    (letter,) = imported.json(
        "sql", f"select unique_key, decode(body) as body from dead_letters where group_name = '{group}' limit 1"
    )
    edits = ["--where", f"_unique_key = '{letter['unique_key']}'", "--set-property", "zone=eu=1"]
    one = [
        "redrive",
        "-g",
        group,
        *edits,
        "--replace-body-text",
        f"{letter['body']}=[1]",
        "--cast-property",
        "UNIQUE=int",
    ]
    refused_ones = imported.json(*one, "--dry-run")
    assert (refused_ones["letters"], refused_ones["failed"]) == (0, 1)
    assert refused_ones["failures"][0]["reason"] == "there is no property UNIQUE"
    assert "do not apply: 1: there is no property UNIQUE (1)" in imported(*one, "--dry-run").out
    good = [*one[:-2], "--dry-run"]
    dry = imported.json(*good)
    (preview,) = dry["previews"]
    assert [change["name"] for change in preview["changes"]] == ["zone", ""]
    assert {"name": "zone", "before": None, "after": "eu=1"} in preview["changes"]
    text = imported(*good).out
    assert "  zone: nothing -> 'eu=1'" in text
    assert "-> '[1]'" in text
    sent = imported.json(*good[:-1], "--reason", "x", "--rate", "50", "--all-or-nothing")
    assert (sent["status"], sent["letters"], sent["failed"], sent["shards"][0]["failed"]) == ("committed", 1, 0, 0)
    copy = f"from message_rows where topic = '%RETRY%{group}' and unique_key = '{letter['unique_key']}' and cause = 'redrive'"
    (row,) = imported.json("sql", f"select properties['zone'] as zone, decode(body) as body {copy}")
    assert row == {"zone": "eu=1", "body": "[1]"}
    assert imported.json("audit", "--full")["audit"] == []


def test_json_values_are_sent_and_recorded_as_they_are_written(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    file, number = imported.folder / "edits.json", "123456789.123456789123456789"
    file.write_text('{"set_json": {"": {"b":12.50,"a":1.0,"a":2}}}')
    edits = ["--edit", str(file), "--set-json", f"/z={number}", "--set-json", "/y=-0"]
    one = ["redrive", "-g", group, "--all", "--limit", "1", *edits]
    (preview,) = imported.json(*one, "--dry-run")["previews"]
    body = f'{{"b":12.50,"a":1.0,"a":2,"z":{number},"y":-0}}'
    assert [change["after"] for change in preview["changes"]] == [body]
    assert imported.json(*one, "--reason", "x")["letters"] == 1
    (row,) = imported.json(
        "sql", f"select parameters ->> 'edits' as edits from redrives where group_name = '{group}' and state = 'sent'"
    )
    assert row["edits"] == f'{{"set_json": {{"": {{"b":12.50,"a":1.0,"a":2}}, "/z": {number}, "/y": -0}}}}'
    (copy,) = imported.json(
        "sql", f"select decode(body) as body from message_rows where topic = '%RETRY%{group}' and cause = 'redrive'"
    )
    assert copy["body"] == body
    assert imported.json("audit", "--full")["audit"] == []


def test_edits_may_be_in_a_file_and_one_is_given_once(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    toml, json_file = imported.folder / "edits.toml", imported.folder / "edits.json"
    toml.write_text("remove_property = ['UNIQUE']\n[set_property]\nregion = 'eu'\n")
    json_file.write_text('{"set_json": {"/a=b": {"c": null}}}')

    def answer(*options: str) -> str:
        shown = imported("redrive", "-g", group, "--all", "--limit", "1", "--dry-run", *options)
        return shown.out if shown.exit_code == 0 else shown.err

    assert "no property UNIQUE" in answer("--edit", str(toml))
    assert "-> 'eu'" in answer("--set-property", "region=eu")
    for options, problem in (
        (["--edit", str(toml), "--set-property", "region=us"], "set_property of 'region' is in the file and among the"),
        (["--set-property", "a=1", "--set-property", "a=2"], "--set-property names the same place twice"),
        (["--set-property", "a"], "'a' is not an edit: write NAME=VALUE, for example region=eu"),
        (["--set-json", "/a=b"], "'b' is not JSON: text needs double quotes"),
        (["--set-json", "/a=-Infinity"], "'-Infinity' is not JSON"),
        (["--cast-json", "/a=date"], "cannot be cast to 'date'; known types: int, number, boolean, string"),
        (["--set-property", "UNIQ_KEY=x"], "property UNIQ_KEY belongs to RocketMQ"),
        (["--edit", str(imported.folder / "none.toml")], "cannot be read"),
        (["--edit", str(imported.folder / "consumers.toml")], "unknown kind of edit 'group'"),
    ):
        assert problem in answer(*options)
    assert (
        "SQL92 expression 'a =' is wrong at character 4"
        in imported("redrive", "-g", group, "--where", "a =", "--dry-run").err
    )


def test_a_rate_says_until_when_it_waits(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    group, slept = a_group_with_letters(imported), 0.0
    now_ms = epoch_ms()

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    host = Host(now_ms=lambda: now_ms + int(slept * 1000), sleep=sleep)
    monkeypatch.setattr("rmq_store.cli.redrive.Host", lambda: host)
    monkeypatch.setattr(redrive, "CAP", 4)
    sent = imported("redrive", "-g", group, "--all", "--limit", "6", "--rate", "2", "--reason", "x")
    until = format_time(now_ms + 2000)
    assert "shard broker-a: 4 dead letters are sent, and the rate lets it send the next at " + until in sent.err
    assert (lines_of(sent.out)["dead letters"], slept) == ("6", 2)
