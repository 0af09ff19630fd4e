"""``docs/settings.md`` says what can be written into a settings file: the same keys, defaults and ranges."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import ExpressionType
from rmq_store.settings.ignored_settings import WITHOUT_EFFECT, snake_case
from rmq_store.settings.settings import GroupSettings, Settings, load_settings
from rmq_store.settings.settings_values import CHECKS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
WITH_DEFAULT = [f for f in fields(GroupSettings) if f.default is not MISSING]
GROUP = '[[group]]\nname = "orders"\nlistener = "shop:Orders"\n{}\n[[group.subscription]]\ntopic = "T"\n{}\n'


def rows_of(columns: int) -> list[list[str]]:
    """The cells of the tables that have so many columns, without their heads."""
    lines = re.findall(r"^\| `.*\|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [[row[0].strip("`"), *row[1:]] for row in cells if len(row) == columns]


KEYS = {row[0]: row[1:] for row in rows_of(5)}
OF_SUBSCRIPTION = ("topic", "expression", "type")


def test_every_key_is_on_the_page_and_no_other() -> None:
    assert sorted(KEYS) == sorted([*CHECKS, *OF_SUBSCRIPTION])
    assert len(rows_of(5)) == len(KEYS)


def test_every_field_of_a_group_is_a_key() -> None:
    assert {f.name for f in fields(GroupSettings)} == {*CHECKS, "subscriptions"}


@pytest.mark.parametrize("key", sorted(CHECKS))
def test_the_default_on_the_page_is_the_one_that_counts(key: str) -> None:
    defaults = {f.name: f.default for f in WITH_DEFAULT}
    shown = {None: "none", True: "true", False: "false"}
    value = defaults.get(key, "required")
    assert KEYS[key][1] == (shown[value] if value is None or isinstance(value, bool) else str(value))


@pytest.mark.parametrize("key", [key for key, row in KEYS.items() if re.fullmatch(r"-?\d+ to \d+", row[2])])
def test_the_range_on_the_page_is_the_one_that_counts(key: str) -> None:
    least, most = map(int, KEYS[key][2].split(" to "))
    assert [CHECKS[key](value) for value in (least, most)] == ["", ""]
    assert all(CHECKS[key](value) for value in (least - 1, most + 1))


@pytest.mark.parametrize("key", ["mode", "message_model", "engine", "on_offset_out_of_range"])
def test_the_names_on_the_page_are_those_that_are_taken(key: str) -> None:
    said = CHECKS[key]("no such name")
    known = re.split(r"one of |known are ", said)[1].removesuffix(", it is 'no such name'")
    assert KEYS[key][2] == known
    assert all(CHECKS[key](name) == "" for name in known.split(", "))


@pytest.mark.parametrize("key", [key for key, check in CHECKS.items() if "true or false" in check(5)])
def test_what_is_true_or_false_says_so(key: str) -> None:
    assert KEYS[key][2] == "true, false"


def test_the_languages_of_expressions_are_named() -> None:
    assert KEYS["type"][2].split(", ") == list(ExpressionType)


def test_the_examples_of_values_are_taken() -> None:
    for key in ("retry_policy", "absorb_duplicates", "allocate_strategy"):
        examples = re.findall(r"`(\{.*?\})`", KEYS[key][2])
        assert examples
        for example in examples:
            assert load_settings(GROUP.format(f"{key} = {example}", ""), "x").groups
    for moment in re.findall(r"`(.*?)`", KEYS["consume_timestamp"][2]):
        line = f'consume_from_where = "CONSUME_FROM_TIMESTAMP"\nconsume_timestamp = "{moment}"'
        assert load_settings(GROUP.format(line, ""), "x").groups


def test_the_planned_groups_have_one_key_with_the_default_of_the_page() -> None:
    ((key, default, _),) = rows_of(3)
    assert (key, default) == ("schedule", Settings("x", ()).planned_schedule)
    assert load_settings(
        f'[planned]\n{key} = "{default}"\n' + GROUP.format('schedule = "planned"', ""), "x"
    ).planned_groups


# --- RocketMQ's others -----------------------------------------------------------------------------------------------


def test_the_settings_without_effect_are_those_of_the_table() -> None:
    assert rows_of(4) == [[key, *row] for key, row in WITHOUT_EFFECT.items()]
    assert not set(WITHOUT_EFFECT) & set(CHECKS)


@pytest.mark.parametrize("key", sorted(WITHOUT_EFFECT))
def test_a_setting_without_effect_is_refused_with_its_reason_in_either_spelling(key: str) -> None:
    setting = WITHOUT_EFFECT[key]
    for written in (key, setting.rocketmq):
        with pytest.raises(WrongUse) as caught:
            load_settings(GROUP.format(f"{written} = 1", ""), "consumers.toml").check()
        assert f"it has a key {written!r}, which has no effect in a window: {setting.why}" in str(caught.value)


@pytest.mark.parametrize("key", sorted(set(KEYS) - set(OF_SUBSCRIPTION)))
def test_rocketmqs_spelling_of_a_key_is_answered_with_ours(key: str) -> None:
    head, *tail = key.split("_")
    theirs = head + "".join(word.capitalize() for word in tail)
    assert snake_case(theirs) == key
    if theirs != key:
        with pytest.raises(WrongUse, match=f"unknown key '{theirs}', did you mean '{key}'"):
            load_settings(GROUP.format(f"{theirs} = 1", ""), "x").check()


# --- RocketMQ's versions ---------------------------------------------------------------------------------------------


def test_a_switch_between_versions_is_a_key() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").partition("## What differs between versions")[2].splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")][1:]
    switches = [row[-1].strip(" |`") for row in rows]
    assert (len(rows), {len(row) for row in rows}) == (12, {6})
    assert {switch for switch in switches if switch != "none"} <= set(CHECKS)
