"""Every field of the record of a commit has a rule for every action, and the audit finds a record that breaks one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.commit.ctl import Action
from rmq_store.commit.ctl_fields import FIELDS, NULL_IN_ITEMS, PARAMETERS
from rmq_store.commit.positions import Outcome
from rmq_store.lake.audit.records import WrongRecord, wrong_records
from rmq_store.lake.table.tables import CTL

Row = dict[str, Any]

LISTS = [field for field in CTL if pa.types.is_list(field.type)]
ITEM_FIELDS = [(field.name, item.name) for field in LISTS for item in field.type.value_type]


def value_of(type_: pa.DataType) -> Any:
    """A value; of a list one item with all its fields. Numbers are 0, as a range's pass and the counts of most outcomes are."""
    if pa.types.is_list(type_):
        return [value_of(type_.value_type)]
    if pa.types.is_struct(type_):
        return {field.name: value_of(field.type) for field in type_}
    if pa.types.is_string(type_):
        return "x"
    return False if pa.types.is_boolean(type_) else 0


def full_record(action: Action) -> Row:
    """All that a record of the action may have."""
    has = {name for name, rule in FIELDS.items() if action in rule.possible}
    return {field.name: value_of(field.type) if field.name in has else None for field in CTL} | {"action": str(action)}


def facts(*rows: Row) -> list[str]:
    return [wrong.facts for wrong in wrong_records(pa.Table.from_pylist(list(rows), CTL))]


def test_every_field_of_a_record_has_a_rule() -> None:
    assert list(FIELDS) == CTL.names
    assert list(NULL_IN_ITEMS) == [field.name for field in LISTS]
    of_items = {field.name: {item.name for item in field.type.value_type} for field in LISTS}
    assert all(nullable <= of_items[name] for name, nullable in NULL_IN_ITEMS.items())


@pytest.mark.parametrize("action", Action)
def test_a_field_that_an_action_has_not_or_lacks_is_found(action: Action) -> None:
    record = full_record(action)
    assert facts(record) == []
    for field in CTL:
        rule = FIELDS[field.name]
        if action not in rule.possible:
            assert facts(record | {field.name: value_of(field.type)}) == [f"{field.name}, which it cannot have"]
        elif action in rule.always and field.name != "action":
            assert facts(record | {field.name: None}) == [f"no {field.name}"]
    least = {name: record[name] for name, rule in FIELDS.items() if action in rule.always}
    assert facts(least) == []
    assert facts({"files": [], "moved": []} | least) == []


@pytest.mark.parametrize(("name", "item"), ITEM_FIELDS)
def test_a_field_of_an_item_that_is_null_is_found(name: str, item: str) -> None:
    rule = FIELDS[name]
    record = full_record(next(action for action in Action if action in rule.possible))
    first = record[name][0]
    expected = [] if item in NULL_IN_ITEMS[name] else [f"no {name}.{item}"]
    assert facts(record | {name: [first, first | {item: None}]}) == expected


@pytest.mark.parametrize("outcome", Outcome)
def test_a_hash_sum_without_messages_is_found(outcome: Outcome) -> None:
    record = full_record(Action.CONSUME)
    (range_,) = record["consumed"]
    assert facts(record | {"consumed": [range_ | {f"{outcome}_hash": 5}]}) == [
        f"consumed.{outcome}_hash without {outcome}"
    ]
    assert facts(record | {"consumed": [range_ | {outcome: 1, f"{outcome}_hash": 5}]}) == []


def test_only_a_window_has_ranges_of_another_pass() -> None:
    for action, expected in (
        (Action.CONSUME, []),
        (Action.DELIVER, ["a consumed.pass other than 0"]),
        (Action.REDRIVE, ["a consumed.pass other than 0"]),
    ):
        record = full_record(action)
        (range_,) = record["consumed"]
        assert facts(record | {"consumed": [range_ | {"pass": 1}]}) == expected


@pytest.mark.parametrize("action", sorted(FIELDS["moved"].possible & FIELDS["epoch"].possible))
def test_a_move_begins_the_pass_of_its_epoch(action: Action) -> None:
    record = full_record(action) | {"epoch": 2}
    (move,) = record["moved"]
    assert facts(record | {"moved": [move | {"pass": 2}] * 2}) == []
    said = ["a moved.pass other than its epoch"]
    assert facts(record | {"moved": [move | {"pass": 2}, move | {"pass": 1}]}) == said
    assert facts(record | {"epoch": 1, "moved": [move | {"pass": 2}]}) == said


def test_a_move_of_a_record_without_an_epoch_has_the_pass_of_its_group() -> None:
    record = full_record(Action.CUTOVER)
    (move,) = record["moved"]
    assert facts(record | {"moved": [move | {"pass": 7}]}) == []


@pytest.mark.parametrize(
    ("group", "to_topic", "topic", "is_sound"),
    [
        ("g", None, "%RETRY%g", True),
        ("g", None, "Orders", False),
        ("g", "Orders", "Orders", True),
        ("g", "Orders", "%RETRY%g", False),
        ("g", "Orders", None, True),
        (None, None, "Orders", True),
    ],
)
def test_copies_of_a_redrive_are_in_the_topic_that_it_names(
    group: str | None, to_topic: str | None, topic: str | None, is_sound: bool
) -> None:
    """What is null is another fact."""
    record = full_record(Action.REDRIVE) | {"group_name": group, "parameters": json.dumps({"to_topic": to_topic})}
    (segment,) = record["produced"]
    said = "copies in another topic than its to_topic"
    assert (said in ", ".join(facts(record | {"produced": [segment | {"topic": topic}]}))) is not is_sound


@pytest.mark.parametrize("action", PARAMETERS)
def test_a_parameter_that_all_records_of_an_action_have_is_found_missing(action: Action) -> None:
    every = dict.fromkeys(PARAMETERS[action], 0)
    assert facts(full_record(action) | {"parameters": json.dumps(every)}) == []
    for name in every:
        for parameters in ({k: v for k, v in every.items() if k != name}, every | {name: None}):
            assert facts(full_record(action) | {"parameters": json.dumps(parameters)}) == [f"no parameter {name}"]


def test_a_subscription_has_a_version() -> None:
    said = ["only one of subscription and subscription_version"]
    assert facts(full_record(Action.CONSUME) | {"subscription": None}) == said
    assert facts(full_record(Action.CONSUME) | {"subscription_version": None}) == said


def test_a_record_is_decided_on_a_version_before_its_own() -> None:
    rows = pa.Table.from_pylist([full_record(Action.CONSUME) | {"read_version": 76}], CTL)
    assert list(wrong_records(rows, version=77)) == list(wrong_records(rows)) == []
    (wrong,) = wrong_records(rows, version=76)
    assert wrong.facts == "a read_version that is not before its version 76"


def test_a_finding_names_the_record_among_others() -> None:
    rows = [full_record(action) | {"commit_id": str(action)} for action in Action]
    rows[3] |= {"epoch": 4, "reason": None}
    wrong = list(wrong_records(pa.Table.from_pylist(rows, CTL)))
    said = "epoch, which it cannot have, no reason"
    assert wrong == [WrongRecord(rows[3]["commit_id"], rows[3]["action"], rows[3]["group_name"], said)]


def test_a_record_of_an_earlier_version_lacks_columns_and_one_of_an_unknown_action_is_of_another_part() -> None:
    rows = pa.Table.from_pylist([full_record(Action.CONSUME)], CTL)
    assert list(wrong_records(rows.drop_columns(["files", "blocked"]))) == []
    assert facts(full_record(Action.VACUUM) | {"action": "unknown", "epoch": 3}) == []
    assert facts(full_record(Action.VACUUM) | {"action": None, "epoch": 3}) == []
