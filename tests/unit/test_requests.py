"""Parameters of a run become typed requests, or one clear sentence about what is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rmq_store.admin.dag_params import (
    ImportParams,
    ReplayParams,
    Run,
    UndoParams,
    Until,
    check_names,
    consume_request,
    dag_id_of,
    interval_replay,
    redrive_request,
    reset_request,
)
from rmq_store.admin.dead_letters import DeadLetterFilter, Place
from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Actor
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_772_366_400_000
RUN = Run("rmq_consume__orders", "manual__1", "manual", NOON, user="ada")
BACKFILL = Run(
    "d", "backfill__r", "backfill", NOON, "ada", data_interval_start=NOON - timedelta(hours=1), data_interval_end=NOON
)


def test_a_request_id_starts_with_the_utc_date_after_which_the_run_could_start() -> None:
    assert RUN.request_id == "2026-03-01/rmq_consume__orders/manual__1"
    in_auckland = datetime(2026, 3, 1, 8, tzinfo=timezone(timedelta(hours=13)))
    assert Run("d", "r", "manual", in_auckland).request_id == "2026-02-28/d/r"


def test_a_time_without_a_zone_is_no_fact_of_a_run() -> None:
    with pytest.raises(ValueError, match="run_after"):
        Run("d", "r", "manual", datetime(2026, 3, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("run_type", "user", "actor"),
    [
        ("manual", "ada", Actor("ada", "airflow")),
        ("backfill", "ada", Actor("ada", "airflow")),
        ("manual", None, Actor("unknown", "unverified")),
        ("scheduled", None, Actor("d", "schedule")),
        ("asset_triggered", None, Actor("d", "schedule")),
    ],
)
def test_who_asked_and_how_that_is_known(run_type: str, user: str | None, actor: Actor) -> None:
    assert Run("d", "r", run_type, NOON, user).actor == actor


def test_a_backfill_of_planned_groups_is_refused_and_pointed_to_the_replay() -> None:
    with pytest.raises(WrongUse, match="trigger rmq_replay with 'from' and 'until'"):
        consume_request(BACKFILL, {})
    with pytest.raises(WrongUse, match="'reprocess' is for a backfill"):
        consume_request(RUN, {"reprocess": "the listener is fixed"})


def test_a_run_of_a_backfill_replays_its_interval_under_a_name_that_no_clear_changes() -> None:
    first, again = interval_replay(BACKFILL, {}), interval_replay(BACKFILL, {"reprocess": " the listener is fixed "})
    assert (first.from_ms, first.until_ms, first.reprocess) == (NOON_MS - 3_600_000, NOON_MS, "")
    assert again.reprocess == "the listener is fixed"
    assert (first.run_id, again.run_id) == (BACKFILL.request_id, BACKFILL.request_id), "the name of the replay group"
    assert again.request().request_id.startswith(f"{BACKFILL.request_id}/reprocess-")


@pytest.mark.parametrize(
    ("run", "params", "says"),
    [
        (BACKFILL, {"until": "2026-01-31T12:00:00Z", "clients": "a,b"}, "leave until and clients empty"),
        (Run("d", "r", "backfill", NOON, "ada", data_interval_end=NOON), {}, "the run has no data interval"),
    ],
)
def test_a_backfill_replays_whole_intervals(run: Run, params: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        interval_replay(run, params)


def test_a_parameter_that_is_not_there_is_refused_with_the_one_that_was_meant() -> None:
    known = {"group": None, "queues": None, "until": None}
    says = "^unknown parameter 'queue', did you mean 'queues'\\?; 'x'; known: group, queues, until$"
    with pytest.raises(WrongUse, match=says):
        check_names({"group": "g", "queue": "broker-a:0", "x": 1}, known)
    check_names({"group": "g", "openlineage": {"parentRunId": "1"}}, known)
    with pytest.raises(WrongUse, match="unknown parameter 'until'; known: none"):
        check_names({"until": 1}, {})


@pytest.mark.parametrize(
    ("explicit_ms", "partition_key", "interval_end", "until"),
    [
        (7, "2026-01-01T00:00:00", NOON, Until(7, "params")),
        (None, "2026-03-01T12:00:00", None, Until(NOON_MS, "partition_key")),
        (None, "2026-03-01T11:00:00/2026-03-01T12:00:00", NOON, Until(NOON_MS, "partition_key")),
        (None, "2026-03-01T13:00:00+01:00", NOON, Until(NOON_MS, "partition_key")),
        (None, None, NOON, Until(NOON_MS, "data_interval_end")),
        (None, None, None, Until(None, "none")),
    ],
)
def test_the_upper_bound_is_explicit_else_partition_else_interval_else_none(
    explicit_ms: int | None, partition_key: str | None, interval_end: datetime | None, until: Until
) -> None:
    run = Run("d", "r", "scheduled", NOON, partition_key=partition_key, data_interval_end=interval_end)
    assert run.until(explicit_ms) == until


@pytest.mark.parametrize("run_type", ["manual", "operator_triggered", "asset_triggered"])
def test_the_data_interval_of_a_logical_date_does_not_shorten_a_run_without_a_schedule(run_type: str) -> None:
    assert Run("d", "r", run_type, NOON, data_interval_end=NOON).until(None) == Until(None, "none")


@pytest.mark.parametrize(
    ("until", "words"),
    [
        (Until(NOON_MS, "params"), "only messages stored before 2026-03-01T12:00:00.000Z: the parameter 'until'"),
        (
            Until(NOON_MS, "partition_key"),
            "only messages stored before 2026-03-01T12:00:00.000Z: the run's partition key",
        ),
        (
            Until(NOON_MS, "data_interval_end"),
            "only messages stored before 2026-03-01T12:00:00.000Z: the end of the scheduled run's data interval",
        ),
        (
            Until(None, "none"),
            "no upper bound: 'until' is empty, and the run has neither a partition key nor an interval of the schedule",
        ),
    ],
)
def test_a_bound_says_in_words_why_it_holds(until: Until, words: str) -> None:
    assert str(until) == words


def test_a_partition_key_that_is_no_time_is_refused() -> None:
    with pytest.raises(WrongUse, match="invalid partition key 'eu-west'"):
        Run("d", "r", "manual", NOON, partition_key="eu-west").until(None)


def test_a_window_records_which_rule_gave_its_bound() -> None:
    request = consume_request(RUN, {"until": "2026-03-01T12:00:00Z", "max_messages": 10})
    assert (request.until_ms, request.max_messages) == (NOON_MS, 10)
    assert request.parameters == {"until_rule": "params"}
    assert request.actor == Actor("ada", "airflow")
    assert consume_request(RUN, {"until": None, "max_messages": None}).until_ms is None


def test_a_whole_number_may_have_a_point_as_in_the_form_of_airflow() -> None:
    request = consume_request(RUN, {"until": float(NOON_MS), "max_messages": 10.0})
    assert (request.until_ms, type(request.until_ms), request.max_messages) == (NOON_MS, int, 10)
    for until, says in (
        (1.5, "invalid time 1.5"),
        (NOON_MS / 1000, "looks like seconds"),
        (1e300, "64-bit"),
        (True, "True"),
    ):
        with pytest.raises(WrongUse, match=f"until: .*{says}"):
            consume_request(RUN, {"until": until})


def test_a_window_of_one_of_several_consumers_says_which_and_who_they_are() -> None:
    request = consume_request(RUN, {"client": "c1", "clients": "c2, c1"})
    assert (request.client_id, request.client_ids) == ("c1", ("c2", "c1"))
    alone = consume_request(RUN, {"client": None, "clients": ""})
    assert (alone.client_id, alone.client_ids) == (None, ())


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"until": "yesterday"}, "until: invalid time: 'yesterday'"),
        ({"until": "2026-03-01T12:00:00"}, "until: .* has no zone"),
        ({"until": 1772366400}, "looks like seconds"),
        ({"max_messages": 0}, "max_messages must be a whole number, 1 or more; it is 0"),
        ({"max_messages": True}, "max_messages must be a whole number"),
        ({"max_messages": 5.5}, "max_messages must be a whole number"),
        ({"max_messages": float("inf")}, "max_messages must be a whole number"),
        ({"max_messages": "5"}, "max_messages must be a whole number"),
        ({"clients": "c1,,c2"}, "invalid list of client ids 'c1,,c2'"),
        ({"clients": "c1,c1"}, "invalid list of client ids 'c1,c1'"),
        ({"clients": " "}, "clients is blank: leave it out"),
        ({"clients": ["c1"]}, "clients must be a text"),
        ({"client": 0}, "client must be a text"),
        ({"clients": "c1,c2"}, "need both: the id of this consumer"),
        ({"client": "c1"}, "need both: the id of this consumer"),
    ],
)
def test_a_window_with_a_bad_parameter_is_refused(params: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        consume_request(RUN, params)


RESET = {"group": "orders", "topic": "OrderEvents", "to": "min", "reason": "a defect"}


def test_a_reset_is_a_dry_run_unless_somebody_says_otherwise() -> None:
    assert reset_request(RUN, RESET).dry_run is True
    assert reset_request(RUN, RESET | {"dry_run": None}).dry_run is True
    assert reset_request(RUN, RESET | {"dry_run": False}).dry_run is False


def test_a_reset_says_where_to_and_for_which_queues() -> None:
    to_time = reset_request(RUN, RESET | {"to": "time", "time": str(NOON_MS), "queues": ["broker-a:3", "b:c:0"]})
    assert (to_time.to, to_time.value) == (ResetTo.TIME, NOON_MS)
    assert to_time.queues == (MessageQueue("OrderEvents", "broker-a", 3), MessageQueue("OrderEvents", "b:c", 0))
    assert reset_request(RUN, RESET | {"to": "offset", "offset": 0}).value == 0
    assert reset_request(RUN, RESET).queues == reset_request(RUN, RESET | {"queues": None}).queues == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group": " "}, "group is missing"),
        ({"topic": None}, "topic is missing"),
        ({"reason": ""}, "reason is missing"),
        ({"to": "noon"}, "invalid value of 'to', 'noon': expected one of time, offset, min, max"),
        ({"to": "time"}, "a reset to time needs the time"),
        ({"to": "offset"}, "a reset to offset needs the offset"),
        ({"to": "offset", "offset": -1}, "offset must be a whole number, 0 or more; it is -1"),
        ({"offset": 5}, "a reset to min takes no offset"),
        ({"to": "offset", "offset": 5, "time": "0"}, "a reset to offset takes no time"),
        ({"queues": ["broker-a"]}, "invalid queue 'broker-a': expected BROKER:QUEUE"),
        ({"queues": ["broker-a:-1"]}, "invalid queue"),
        ({"queues": []}, "^queues is empty: give at least one"),
        ({"queues": "broker-a:0"}, "queues must be several"),
        ({"queues": [0]}, "an item of queues must be a text, it is of the type int"),
    ],
)
def test_a_reset_that_contradicts_itself_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        reset_request(RUN, RESET | change)


REDRIVE = {"group": "orders", "all": True, "reason": "fixed"}


def test_a_redrive_is_a_dry_run_unless_somebody_says_otherwise() -> None:
    assert redrive_request(RUN, REDRIVE).dry_run is True
    assert redrive_request(RUN, REDRIVE | {"dry_run": False}).dry_run is False


def test_a_redrive_says_which_letters_and_where_to() -> None:
    chosen = {"all": False, "from": "2026-03-01T12:00:00Z", "keys": ["k"], "letters": ["b:c:0:17"], "limit": 5}
    asked = redrive_request(RUN, REDRIVE | chosen | {"to_topic": "", "original_topic": None})
    assert asked.dead_letters == DeadLetterFilter(from_ms=NOON_MS, keys=frozenset({"k"}), places=(Place("b:c", 0, 17),))
    assert (asked.limit, asked.to_topic, asked.target_topic) == (5, None, "%RETRY%orders")
    assert asked.actor == Actor("ada", "airflow")


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ('{"set_json": {"/price": 12.50, "/id": 12345678901234567890}}\n',) * 2,
        ({"set_json": {"/price": 12.5}}, '{"set_json": {"/price": 12.5}}'),
        (None, "{}"),
        (" ", "{}"),
        ({}, "{}"),
    ],
)
def test_edits_as_a_text_keep_the_digits_of_their_numbers(edits: object, text: str) -> None:
    assert redrive_request(RUN, REDRIVE | {"edits": edits}).edits.text == text.strip()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"all": False}, "choose which dead letters"),
        ({"edits": '{"set": {}}'}, "unknown kind of edit 'set'"),
        ({"edits": "{12.50}"}, "the edits are not valid JSON"),
        ({"edits": "{}"}, "no edits"),
        ({"keys": ["k"]}, r"choose which dead letters .*\(all\)\. Not both"),
        ({"reason": " "}, "reason is missing"),
        ({"limit": 0}, "limit must be a whole number, 1 or more"),
        ({"all": None, "letters": ["broker-a:17"]}, "invalid dead letter 'broker-a:17': expected BROKER:QUEUE:OFFSET"),
        ({"all": None, "letters": ["broker-a:0:-1"]}, "invalid dead letter"),
        ({"all": None, "keys": [""]}, r"a key \(--key\) is empty"),
        ({"all": None, "keys": []}, "^keys is empty: give at least one"),
        ({"all": None, "keys": "abc"}, "keys must be several"),
        ({"all": None, "keys": [1]}, "an item of keys must be a text, it is of the type int"),
        ({"all": None, "letters": []}, "^letters is empty: give at least one"),
        ({"all": None, "letters": "broker-a:0:17"}, "letters must be several"),
        ({"original_topic": 0}, "original_topic must be a text"),
        ({"original_topic": " "}, "original_topic is blank: leave it out"),
        ({"where": []}, "where must be a text"),
        ({"to_topic": False}, "to_topic must be a text"),
        ({"reason": "\ud800"}, "reason .* contains an unpaired surrogate"),
        ({"to_topic": "%DLQ%orders"}, "cannot redrive to system topic %DLQ%orders"),
    ],
)
def test_a_redrive_that_contradicts_itself_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        redrive_request(RUN, REDRIVE | change)


REPLAY = {"group": "orders", "topic": "OrderEvents", "from": "2026-03-01T12:00:00Z"}


def test_a_replay_asks_for_a_span_of_time() -> None:
    asked = ReplayParams.of(REPLAY | {"until": NOON_MS + 1, "reason": "look again"})
    assert (asked.topic, asked.from_ms, asked.until_ms) == ("OrderEvents", NOON_MS, NOON_MS + 1)
    request = asked.request(RUN)
    assert (request.request_id, request.until_ms, request.reason) == (RUN.request_id, NOON_MS + 1, "look again")


def test_a_replay_without_topic_and_time_is_a_follow_up() -> None:
    asked = ReplayParams.of({"group": "orders-replay-0123456789", "topic": "", "from": None})
    assert (asked.topic, asked.from_ms) == (None, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group": ""}, "group is missing"),
        ({"topic": None}, "needs a topic and a time"),
        ({"from": ""}, "needs a topic and a time"),
        ({"until": NOON_MS}, "must be later than from"),
        ({"from": "noon"}, "from: invalid time"),
    ],
)
def test_a_replay_that_cannot_be_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        ReplayParams.of(REPLAY | change)


def test_another_attempt_of_a_replay_takes_its_group_and_a_reason_alone() -> None:
    again = ReplayParams.of({"group": "orders-replay-0123456789", "reprocess": "mended", "topic": None})
    assert (again.reprocess, again.topic, again.request(RUN).reason) == ("mended", None, "mended")
    with pytest.raises(WrongUse, match="reprocess is blank: leave it out"):
        ReplayParams.of({"group": "g", "reprocess": " "})
    for more in ({"topic": "T", "from": 0}, {"until": "0"}, {"max_messages": 5}):
        with pytest.raises(WrongUse, match="reads what the first one read"):
            ReplayParams.of({"group": "g", "reprocess": "mended"} | more)


def test_an_import_goes_to_the_shard_of_the_brokers_name_unless_another_is_given() -> None:
    asked = {"source": "/copies/a", "broker_name": "broker-a"}
    assert ImportParams.of(asked) == ImportParams("/copies/a", "broker-a", "broker-a", salvage=False, engine=None)
    assert ImportParams.of(asked | {"shard": "eu", "salvage": True, "engine": "local"}).shard == "eu"
    assert ImportParams.of(asked | {"max_body_bytes": 5}).max_body_bytes == 5
    with pytest.raises(WrongUse, match="max_body_bytes must be a whole number, 1 or more"):
        ImportParams.of(asked | {"max_body_bytes": 0})
    with pytest.raises(WrongUse, match="source is missing"):
        ImportParams.of(asked | {"source": ""})
    with pytest.raises(WrongUse, match=r"invalid engine .*: expected one of spark, local"):
        ImportParams.of(asked | {"engine": "flink"})


def test_a_run_id_that_ends_as_the_id_of_a_part_is_refused() -> None:
    run = Run("d", "w~2", "manual", datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(
        WrongUse, match="the request of the run '2026-01-01/d/w~2' ends with ~2, as the id of a part of another request"
    ):
        _ = run.request_id
    assert replace(run, run_id="w~2x").request_id == "2026-01-01/d/w~2x"


def test_the_name_of_a_groups_dag() -> None:
    assert dag_id_of("orders-eu_1") == "rmq_consume__orders-eu_1"
    assert dag_id_of("a%b|c") == "rmq_consume__a.25b.7cc"
    fits, longer = "%" * 79, "%" * 85
    assert dag_id_of(fits) == "rmq_consume__" + ".25" * 79
    cut = [dag_id_of(longer + end) for end in "xy"]
    assert [re.fullmatch(r"rmq_consume__(\.25){74,}\.\.[0-9a-f]{10}", one) is not None for one in cut] == [True, True]
    assert cut[0] != cut[1]
    assert max(map(len, cut)) <= 250


@pytest.mark.parametrize("given", ["true", "false", 1, 0, [], "no"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(given: object) -> None:
    """It would be read as the less safe one of them."""
    undo = {"group": "g", "reason": "r"}
    for read, name in (
        (lambda values: reset_request(RUN, RESET | values), "dry_run"),
        (lambda values: UndoParams.of(undo | values), "force"),
        (lambda values: redrive_request(RUN, REDRIVE | values), "all_or_nothing"),
        (lambda values: ImportParams.of({"source": "/a", "broker_name": "b"} | values), "salvage"),
    ):
        with pytest.raises(WrongUse, match=f"{name} must be True or False"):
            read({name: given})
        read({name: ""})
