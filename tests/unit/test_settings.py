from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import (
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    GroupRetryPolicyType,
)
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.consumer.start import ConsumeFromWhere, StartSwitches
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.settings.settings import GroupSettings, load_settings, read_settings

SMALL = """
[[group]]
name = "orders"
listener = "shop.listeners:Orders"

[[group.subscription]]
topic = "OrderEvents"
"""

FULL = """
[[group]]
name = "audit"
listener = "shop:audit.Trail"
subscription_version = 4
mode = "concurrently"
message_model = "CLUSTERING"
consume_message_batch_max_size = 1024
consume_timeout = 15
max_reconsume_times = 0
retry_queue_nums = 0
retry_policy = { type = "EXPONENTIAL", initial = 1000, max = 60_000, multiplier = 3 }
consume_from_where = "CONSUME_FROM_TIMESTAMP"
consume_timestamp = 2024-02-29T23:59:59+08:00
young_topic_starts_at_zero = true
later_queues_start_at_min = false
all_or_nothing = true
absorb_duplicates = { by = "property:orderId", horizon = "12h" }
on_offset_out_of_range = "skip"
max_messages = 5_000_000
max_bytes = 1_000_000_000
consumers = 8
allocate_strategy = "CONSISTENT_HASH"
engine = "auto"
schedule = ""
shards = ["broker-a", "b.2"]

[[group.subscription]]
topic = "AuditTrail"
expression = "TagA || TagB"
type = "TAG"

[[group.subscription]]
topic = "OrderEvents"
expression = "*"

[[group.subscription]]
topic = "StockTicks"
expression = "price > 100"
type = "SQL92"
"""


def problems(text: str) -> list[str]:
    """All that is wrong with a text, without the heading."""
    with pytest.raises(WrongUse) as caught:
        load_settings(dedent(text), "consumers.toml").check()
    heading, *listed = str(caught.value).splitlines()
    assert heading == f"consumers.toml has {len(listed)} problem(s):"
    return [line.removeprefix("- ") for line in listed]


def with_line(line: str) -> str:
    """The small file with one more line in its group."""
    return SMALL.replace("\n\n[[group.subscription]]", f"\n{line}\n\n[[group.subscription]]")


def test_what_is_not_said_is_rocketmqs_default_where_it_has_one() -> None:
    group = load_settings(SMALL, "consumers.toml").group("orders")
    assert group == GroupSettings("orders", "shop.listeners:Orders", (build_subscription_data("OrderEvents", None),))
    assert (group.consume_message_batch_max_size, group.max_reconsume_times, group.retry_queue_nums) == (1, -1, 1)
    assert group.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert group.message_model is MessageModel.CLUSTERING
    assert (group.consumers, group.shards, group.max_messages) == (None, None, None)
    assert (group.engine, group.schedule, group.on_offset_out_of_range) == ("auto", "*/5 * * * *", "stop")
    assert group.consume_timestamp_ms is None


def test_every_key_can_be_said() -> None:
    group = load_settings(FULL, "consumers.toml").group("audit")
    assert [(s.topic, s.expression, s.sub_version) for s in group.subscriptions] == [
        ("AuditTrail", "TagA || TagB", 4),
        ("OrderEvents", "*", 4),
        ("StockTicks", "price > 100", 4),
    ]
    assert group.subscriptions[0].tags == {"TagA", "TagB"}
    assert group.subscriptions[2] == build_subscription_data("StockTicks", "price > 100", "SQL92", version=4)
    assert group.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    assert group.consume_timestamp_ms == 1_709_222_399_000
    assert group.start_switches == StartSwitches(True, False)
    exponential = ExponentialRetryPolicy(1000, 60_000, 3)
    assert group.retry_policy == GroupRetryPolicy(GroupRetryPolicyType.EXPONENTIAL, exponential=exponential)
    assert group.absorb_duplicates == AbsorbRule("orderId", 12 * 3_600_000)
    assert (group.schedule, group.shards, group.engine) == (None, ("broker-a", "b.2"), "auto")
    assert (group.consume_timeout_ms, group.max_bytes) == (900_000, 1_000_000_000)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('mode = "orderly"\nconsume_timeout = 5', "consume_timeout applies only with mode concurrently"),
        ('message_model = "BROADCASTING"\nconsume_timeout = 5', "consume_timeout applies only with"),
        ('mode = "orderly"\nconsume_retries = true', "consume_retries applies only with mode concurrently"),
        ('message_model = "BROADCASTING"\nconsume_retries = true', "consume_retries applies only with"),
        (
            'max_minutes = 5\nabsorb_duplicates = { by = "KEYS", horizon = "1d" }',
            "max_minutes cannot be combined with absorb",
        ),
    ],
)
def test_what_would_have_no_effect_together_is_refused(lines: str, problem: str) -> None:
    (said,) = problems(with_line(lines))
    assert problem in said


@pytest.mark.parametrize(
    ("written", "delays_ms"),
    [
        ("{}", [10_000, 30_000, 60_000]),
        ('{ type = "CUSTOMIZED" }', [10_000, 30_000, 60_000]),
        ("{ next = [1, 2, 3, 4] }", [3, 4, 4]),
        ('{ type = "EXPONENTIAL" }', [5000, 10_000, 20_000]),
        ('{ type = "EXPONENTIAL", initial = 7, max = 20 }', [7, 14, 20]),
    ],
)
def test_a_retry_policy_has_rocketmqs_defaults_where_it_says_nothing(written: str, delays_ms: list[int]) -> None:
    (group,) = load_settings(with_line(f"retry_policy = {written}"), "x").groups
    assert group.retry_policy is not None
    assert [group.retry_policy.next_delay_ms(times) for times in range(3)] == delays_ms


def test_a_client_of_a_broadcasting_group_has_the_settings_of_its_group() -> None:
    text = FULL.replace('"CLUSTERING"', '"BROADCASTING"')
    settings = load_settings(text, "consumers.toml")
    assert settings.group("audit@10.0.0.1@DEFAULT") == replace(settings.group("audit"), name="audit@10.0.0.1@DEFAULT")
    for unknown in ("audit@", "audi@a", "audit2@a"):
        with pytest.raises(WrongUse):
            settings.group(unknown)
    with pytest.raises(WrongUse, match="no group 'audit@a'"):
        load_settings(FULL, "consumers.toml").group("audit@a")


# --- [planned] -------------------------------------------------------------------------------------------------------


def test_planned_groups_have_no_schedule_of_their_own() -> None:
    client = SMALL.replace("orders", "audit@a").replace("\n\n", '\nmessage_model = "BROADCASTING"\n\n', 1)
    text = with_line('schedule = "planned"') + client.replace("\n\n", '\nschedule = "planned"\n\n', 1)
    settings = load_settings(text + SMALL.replace('"orders"', '"own"'), "x")
    assert [group.name for group in settings.planned_groups] == ["orders", "audit@a"]
    assert [group.own_schedule for group in settings.groups] == [None, None, "*/5 * * * *"]


@pytest.mark.parametrize(
    ("table", "schedule"),
    [
        ("", "*/5 * * * *"),
        ("[planned]", "*/5 * * * *"),
        ('[planned]\nschedule = "@hourly"', "@hourly"),
        ('[planned]\nschedule = ""', None),
    ],
)
def test_planned_groups_share_a_schedule(table: str, schedule: str | None) -> None:
    assert load_settings(f"{table}\n{SMALL}", "x").planned_schedule == schedule


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("planned = 5", "planned must be a table [planned]"),
        ("[[planned]]", "planned must be a table [planned]"),
        ('[planned]\nschedul = ""', "[planned] has an unknown key 'schedul', did you mean 'schedule'?"),
        (
            '[planned]\nschedule = "planned"',
            '[planned] schedule: must be five cron fields like "*/5 * * * *", a preset',
        ),
        ("[planned]\nschedule = 5", "[planned] schedule: must be five cron fields"),
    ],
)
def test_a_wrong_table_of_the_planned_groups_is_refused(table: str, problem: str) -> None:
    (item,) = problems(f"{table}\n{SMALL}")
    assert problem in item


def test_an_unknown_group_is_answered_with_the_known_ones() -> None:
    settings = load_settings(SMALL + FULL, "consumers.toml")
    with pytest.raises(WrongUse, match="no group 'order', did you mean 'orders'\\?; known: orders, audit"):
        settings.group("order")
    with pytest.raises(WrongUse, match="group must be a text, it is of the type int"):
        settings.group(5)  # type: ignore[arg-type]  # as of a template of Airflow


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("retry_queue_num = 2", "it has an unknown key 'retry_queue_num', did you mean 'retry_queue_nums'?"),
        ("colour = 2", "it has an unknown key 'colour'"),
        (
            "consume_message_batch_max_size = 0",
            "consume_message_batch_max_size: must be a whole number from 1 to 1024, it is 0",
        ),
        ("consume_message_batch_max_size = 1025", "must be a whole number from 1 to 1024, it is 1025"),
        ("consume_message_batch_max_size = true", "must be a whole number from 1 to 1024, it is True"),
        ("max_reconsume_times = -2", "max_reconsume_times: must be a whole number from -1"),
        ("retry_queue_nums = -1", "retry_queue_nums: must be a whole number from 0"),
        ("absorb_duplicates = true", "absorb_duplicates: must be a table like { by ="),
        (
            'absorb_duplicates = { by = "TAGS", horizon = "week" }',
            "absorb_duplicates: by must be UNIQ_KEY, KEYS or property:NAME, it is 'TAGS'; horizon must be a time like",
        ),
        (
            'mode = "orderly"\nabsorb_duplicates = { by = "KEYS", horizon = "7d" }',
            "absorb_duplicates cannot be combined with mode orderly",
        ),
        ("retry_policy = 5", "retry_policy: must be a table like { type ="),
        (
            'retry_policy = { type = "LINEAR", steps = 3 }',
            "retry_policy: type must be EXPONENTIAL or CUSTOMIZED, it is 'LINEAR'; it has an unknown key 'steps'",
        ),
        (
            "retry_policy = { next = [] }",
            "retry_policy: next must be a list of delays in ms, like [1000, 5000], it is []",
        ),
        ("retry_policy = { next = [5, -1] }", "next has an item that must be milliseconds, a whole number from 0 to"),
        ("retry_policy = { initial = 5 }", "retry_policy: initial applies only with type EXPONENTIAL"),
        (
            'retry_policy = { type = "EXPONENTIAL", next = [5], max = 259200001, multiplier = 0 }',
            "retry_policy: next applies only with type CUSTOMIZED; max must be milliseconds, a whole number from 0 to 2",
        ),
        (
            'retry_policy = { type = "EXPONENTIAL", initial = 1.5, multiplier = 0 }',
            "it is 1.5; multiplier must be a whole number from 1 to 1000, it is 0",
        ),
        ("max_messages = 1.5", "max_messages: must be a whole number"),
        ("max_minutes = 1440", "max_minutes: must be a whole number from 1 to 1380"),
        ("consumers = 0", "consumers: must be a whole number from 1"),
        ('mode = "in order"', "mode: must be one of concurrently, orderly, it is 'in order'"),
        ("suspend_tries_per_window = 0", "suspend_tries_per_window: must be a whole number from 1 to 10000, it is 0"),
        ("suspend_tries_per_window = 5", "suspend_tries_per_window applies only with mode orderly"),
        ("listener_process = false\nlistener_timeout = 5", "listener_timeout applies only with listener_process true"),
        ("listener_process = false\nlistener_memory = 5", "listener_memory applies only with listener_process true"),
        ("listener_process = false\nlistener_cpu = 5", "listener_cpu applies only with listener_process true"),
        (
            'listener_process = false\nlistener_environment = ["A"]',
            "listener_environment applies only with listener_process true",
        ),
        ('listener_environment = ["A=B"]', """must be a list of names, like ["SHOP_URL"], it is ["A=B"]"""),
        ("shards = [1.5, true]", """must be a list of shard names, like ["broker-a"], it is [1.5, true]"""),
        ('mode = "orderly"\nall_or_nothing = true', "all_or_nothing applies only with mode concurrently"),
        ('message_model = "clustering"', "message_model: must be one of CLUSTERING, BROADCASTING, it is 'clustering'"),
        (
            'message_model = "BROADCASTING"\nmode = "orderly"',
            "mode orderly cannot be combined with message_model BROADCASTING",
        ),
        ('consume_from_where = "LAST"', "consume_from_where: must be one of CONSUME_FROM_LAST_OFFSET, "),
        ('consume_from_where = "CONSUME_FROM_TIMESTAMP"', "CONSUME_FROM_TIMESTAMP needs a consume_timestamp"),
        ('consume_timestamp = "20240229235959Z"', "consume_timestamp applies only with"),
        ('consume_timestamp = "20240230235959Z"', "consume_timestamp: invalid time: '20240230235959Z'"),
        ("consume_timestamp = 2024-02-29T23:59:59", "consume_timestamp: the time '2024-02-29T23:59:59' has no zone"),
        ("subscription_version = 2147483648", "subscription_version: must be a whole number from 1 to 2147483647"),
        ('all_or_nothing = "yes"', "all_or_nothing: must be true or false, it is 'yes'"),
        ('on_offset_out_of_range = "go"', "on_offset_out_of_range: must be one of stop, skip, it is 'go'"),
        ('allocate_strategy = "avg"', "allocate_strategy: unknown allocation strategy 'avg'; known are AVG, "),
        ('allocate_strategy = "MACHINE_ROOM"', "allocate_strategy: MACHINE_ROOM needs rooms"),
        ('engine = "flink"', "engine: must be one of spark, local, auto, it is 'flink'"),
        ('schedule = "every now and then"', "schedule: must be five cron fields like"),
        ("schedule = 5", "schedule: must be five cron fields like"),
        ('schedule = "plan"', 'a preset like "@hourly", "planned", or "" for none, it is \'plan\''),
        (
            'schedule = "planned"\nmessage_model = "BROADCASTING"',
            "schedule planned with message_model BROADCASTING needs a name with a client (GROUP@CLIENT)",
        ),
        ("shards = []", 'shards: must be a list of shard names, like ["broker-a"], it is []'),
        ('shards = "broker-a"', "shards: must be a list of shard names"),
        ('shards = ["../other"]', "shards: must be a list of shard names"),
    ],
)
def test_a_wrong_line_is_named_with_what_would_be_right(line: str, problem: str) -> None:
    said = problems(with_line(line))
    assert any(item.startswith("group orders: ") and problem in item for item in said), said


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('name = "orders"', "", "group number 1: name is missing"),
        ('name = "orders"', 'name = "or ders"', "group or ders: name: group 'or ders' has characters other than"),
        ('name = "orders"', "name = 5", "group number 1: name: must be text, it is 5"),
        (
            'name = "orders"',
            'name = "orders@a"',
            "group orders@a: a name with a client (GROUP@CLIENT) needs message_model",
        ),
        ('name = "orders"', 'name = "orders@"', "group orders@: name: client '' has characters other than"),
        ('name = "orders"', 'name = "DEFAULT_CONSUMER"', "is RocketMQ's placeholder"),
        (
            'name = "orders"',
            'name = "CID_RMQ_SYS_SCHEDULE"',
            "name: group CID_RMQ_SYS_SCHEDULE is that of 'rmq deliver'",
        ),
        (
            'name = "orders"',
            'name = "CID_RMQ_SYS_SCHEDULE@a"\nmessage_model = "BROADCASTING"',
            "name: group CID_RMQ_SYS_SCHEDULE is that of 'rmq deliver'",
        ),
        (
            'name = "orders"',
            'name = "orders-replay-0123456789"',
            "name is that of a replay of orders: retention would not wait for this group",
        ),
        ('listener = "shop.listeners:Orders"', "", "group orders: listener is missing"),
        ("shop.listeners:Orders", "shop.listeners", "listener: must be text like shop.listeners:Orders"),
        (
            "[[group.subscription]]",
            "[[group.subscriptions]]",
            "unknown key 'subscriptions', did you mean 'subscription'?",
        ),
        ("[[group.subscription]]", "[[group.subscriptions]]", "a [[group.subscription]] with a topic is missing"),
        ('topic = "OrderEvents"', "", "subscription 1: topic is missing"),
        (
            'topic = "OrderEvents"',
            'topic = "SCHEDULE_TOPIC_XXXX"',
            "topic SCHEDULE_TOPIC_XXXX holds delayed messages: no group reads it, and 'rmq deliver' delivers them",
        ),
        ('topic = "OrderEvents"', 'topic = "rmq_sys_wheel_timer"', "topic rmq_sys_wheel_timer holds delayed messages"),
        ('topic = "OrderEvents"', "topic = 7", "subscription 1: topic must be text, it is 7"),
        ('topic = "OrderEvents"', 'topic = "a b"', "subscription 1: topic 'a b' has characters other than"),
        (
            'topic = "OrderEvents"',
            'topic = "T"\nexpression = "||"',
            "subscription 1: topic T: the expression '||' names no tag",
        ),
        ('topic = "OrderEvents"', 'topic = "T"\nexpression = " "', "topic T: the expression ' ' matches nothing"),
        (
            'topic = "OrderEvents"',
            'topic = "T"\ntype = "SQL92"\nexpression = "a > 5 AND"',
            "subscription 1: topic T: the SQL92 expression 'a > 5 AND' is wrong at character 10: expected a property, ",
        ),
        (
            'topic = "OrderEvents"',
            'topic = "T"\nexpresion = "*"',
            "unknown key 'expresion', did you mean 'expression'?",
        ),
        ('topic = "OrderEvents"', 'topic = "%RETRY%orders"', "a group always reads its own retry topic"),
    ],
)
def test_a_wrong_part_is_named_with_its_place(old: str, new: str, problem: str) -> None:
    said = problems(SMALL.replace(old, new))
    assert any(problem in item for item in said), said


def test_a_topic_has_one_expression_in_a_group() -> None:
    more = '\n[[group.subscription]]\ntopic = "OrderEvents"\nexpression = "TagA"\n'
    assert problems(SMALL + more) == [
        "group orders: topic OrderEvents has 2 subscriptions; a group has one expression per topic"
    ]


def test_a_group_is_written_once() -> None:
    assert problems(SMALL + SMALL) == ["group orders: 2 groups have this name"]


def test_clients_of_one_group_have_one_subscription() -> None:
    client = SMALL.replace('name = "orders"', 'name = "orders@a"\nmessage_model = "BROADCASTING"')
    other = client.replace("orders@a", "orders@b")
    assert [group.name for group in load_settings(client + other, "x").groups] == ["orders@a", "orders@b"]
    must = "group orders@b: subscriptions and subscription_version must be those of orders@a: clients of one group share them"
    assert problems(client + other + 'expression = "TagA"') == [must]
    assert problems(client + other.replace("\nlistener", "\nsubscription_version = 2\nlistener")) == [must]


def test_all_problems_of_all_groups_are_told_at_once() -> None:
    text = """
    [store]
    root = "/data"

    [[group]]
    name = "a b"
    listener = "x"
    engine = "flink"
    consumers = "many"

    [[group]]
    listener = "shop:Other"
    mode = "in order"

    [[group.subscription]]
    topic = "T"
    expression = "||"
    """
    said = problems(text)
    assert [item.split(": ")[0] for item in said] == ["the file has an unknown key 'store'"] + ["group a b"] * 5 + [
        "group number 2"
    ] * 3


@pytest.mark.parametrize(
    "bad",
    [
        SMALL.replace("orders", "bad").replace('listener = "shop.listeners:Orders"', "colour = 2"),
        SMALL.replace("orders", "bad") * 2,
        '[[group]]\nname = "bad"\n',
    ],
)
def test_a_group_that_is_wrong_takes_no_other_with_it(bad: str) -> None:
    settings = load_settings(SMALL + bad + FULL, "consumers.toml")
    assert [group.name for group in settings.groups] == ["orders", "audit"]
    assert list(settings.wrong) == ["bad"]
    for name in ("bad", "bad@host-1"):
        with pytest.raises(WrongUse, match=r"^consumers.toml: group bad has \d problem\(s\):\n- ") as refused:
            settings.group(name)
        assert all(problem in str(refused.value) for problem in settings.wrong["bad"])


def test_of_clients_with_two_subscriptions_the_first_one_stays() -> None:
    client = SMALL.replace('name = "orders"', 'name = "orders@a"\nmessage_model = "BROADCASTING"')
    settings = load_settings(client + client.replace("orders@a", "orders@b") + 'expression = "TagA"', "x")
    assert ([group.name for group in settings.groups], list(settings.wrong)) == (["orders@a"], ["orders@b"])


def test_below_a_misspelled_group_nothing_is_added_to_the_group_above_it() -> None:
    misspelled = SMALL.replace("orders", "other").replace("[[group]]", "[[gruop]]").replace("OrderEvents", "Others")
    assert problems(SMALL + misspelled) == ["the file has an unknown key 'gruop', did you mean 'group'?"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no group"),
        ("group = []", "there is no group"),
        ("[planned]", "there is no group"),
        ('[group]\nname = "orders"', "group must be a table [[group]]"),
        ("group = 5", "group must be a table [[group]]"),
    ],
)
def test_a_file_without_groups_is_refused(text: str, problem: str) -> None:
    assert problem in problems(text)[0]


@pytest.mark.parametrize("text", ['[[retention]]\ntopic = "*"\nmax_age = "30d"', '[spark]\nmaster = "local[2]"'])
def test_a_file_without_groups_may_say_what_a_store_without_groups_needs(text: str) -> None:
    settings = load_settings(text, "tests")
    assert settings.groups == ()
    with pytest.raises(WrongUse, match="tests has no group 'orders'; known: none"):
        settings.group("orders")
    with pytest.raises(WrongUse, match=r"there is no group: add a \[\[group\]\]"):
        settings.need_any_group()


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "[" * 200 + "]" * 200,
        "a = " + "{ a = " * 5000,
        "[[group]]\nname." + ".".join("a" * 5000) + " = 1",
        "[" + ".".join("a" * 5000) + "]",
    ],
)
def test_what_is_nested_without_end_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="more than 20 levels deep"):
        load_settings(text, "consumers.toml")


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "9" * 4000, "-9223372036854775809"])
def test_a_number_without_end_is_refused(number: str) -> None:
    with pytest.raises(WrongUse, match="does not fit into 64 bits"):
        load_settings(f"[[group]]\nconsume_timeout = {number}", "consumers.toml")


def test_what_is_not_toml_is_refused_with_its_line() -> None:
    with pytest.raises(WrongUse, match=r"consumers.toml is not TOML: .*line 3"):
        load_settings('[[group]]\nname = "a"\nlistener = \nengine = "spark"', "consumers.toml")


def test_a_file_is_read_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "consumers.toml"
    path.write_text(SMALL, encoding="utf-8")
    assert read_settings(path).group("orders").name == "orders"
    path.write_text(SMALL, encoding="utf-8-sig")  # with a byte order mark
    assert read_settings(path).group("orders").name == "orders"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(WrongUse, match="cannot be read"):
        read_settings(path)
    with pytest.raises(WrongUse, match=r"no\.toml cannot be read"):
        read_settings(tmp_path / "no.toml")


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "flink"},
        {"consumers": 0},
        {"subscriptions": ()},
        {"name": ""},
        {"name": "CID_RMQ_SYS_SCHEDULE"},
        {"subscriptions": (build_subscription_data("SCHEDULE_TOPIC_XXXX", "*"),)},
    ],
)
def test_settings_made_in_code_are_held_to_the_same_rules(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"name": "g", "listener": "m:a", "subscriptions": (build_subscription_data("T", "*"),)}
    assert GroupSettings(**right).name == "g"
    with pytest.raises(WrongUse, match=r"has 1 problem\(s\)"):
        GroupSettings(**(right | wrong))
