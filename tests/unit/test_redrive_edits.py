"""Edits of dead letters, as vectors: a message and edits, and the message after them or why they do not apply."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.admin.json_edits import DoesNotApply, JsonBody, Pointer
from rmq_store.admin.redrive_edits import Content, MessageEdits, edited, edits_of_text
from rmq_store.errors import WrongUse
from rmq_store.utils.json_text import JsonText

PROPERTIES = {"UNIQ_KEY": "U1", "TAGS": "new", "region": "eu", "price": " +012 ", "vip": "TRUE", "name": "12 EUR"}
BODY = b'{ "price": "12.50", "items": [1, {"sku": "a"}, 3], "n": 1.0, "ok": true, "none": null, "a/b": {"~": 1} }'


def after(edits: dict[str, Any], body: bytes | None = BODY) -> Content:
    return edited(Content(PROPERTIES, body), MessageEdits.of(edits))


@pytest.mark.parametrize(
    ("edits", "changed"),
    [
        ({"set_property": {"region": "us", "new": "x"}}, {"region": "us", "new": "x"}),
        ({"set_property": {"TAGS": "old", "KEYS": "a b"}}, {"TAGS": "old", "KEYS": "a b"}),
        ({"remove_property": ["region", "TAGS"]}, {"region": None, "TAGS": None}),
        ({"cast_property": {"price": "int", "vip": "boolean"}}, {"price": "12", "vip": "true"}),
        ({"cast_property": {"price": "number"}}, {"price": "12"}),
        ({"remove_property": ["region"], "set_property": {"region": "us"}}, {"region": "us"}),
        ({"cast_property": {"price": "int"}, "set_property": {"price": "7"}}, {"price": "7"}),
    ],
)
def test_properties(edits: dict[str, Any], changed: dict[str, str | None]) -> None:
    expected = {name: value for name, value in {**PROPERTIES, **changed}.items() if value is not None}
    assert after(edits) == Content(expected, BODY)


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        (" 12 ", "int", "12"),
        ("-007", "int", "-7"),
        ("-0", "int", "0"),
        ("12.00", "int", "12"),
        ("12.5", "int", None),
        ("1e3", "int", None),
        ("1_000", "int", None),
        ("٣", "int", None),
        ("", "int", None),
        ("9" * 5000, "int", "9" * 5000),
        ("+0012.50", "number", "12.50"),
        ("-0.0", "number", "-0.0"),
        ("00", "number", "0"),
        ("1E+3", "number", "1E+3"),
        (".5", "number", None),
        ("NaN", "number", None),
        ("0x10", "number", None),
        (" False\n", "boolean", "false"),
        ("1", "boolean", None),
    ],
)
def test_texts_as_types(text: str, type_: str, value: str | None) -> None:
    message = Content({"p": text}, b"x")
    edits = MessageEdits(cast_property={"p": type_})
    if value is None:
        with pytest.raises(DoesNotApply, match=f"property p is no {type_}"):
            edited(message, edits)
    else:
        assert edited(message, edits).properties == {"p": value}


@pytest.mark.parametrize(
    ("edits", "body"),
    [
        ({"replace_body_text": {"12.50": "13"}}, BODY.replace(b"12.50", b"13")),
        ({"replace_body_text": {"1": "2", "2": "3"}}, BODY.replace(b"1", b"2").replace(b"2", b"3")),
        ({"set_json": {"/price": 13}}, BODY.replace(b'"12.50"', b"13")),
        ({"set_json": {"/items/1/sku": {"é": [None]}}}, BODY.replace(b'"a"', '{"é": [null]}'.encode(), 1)),
        ({"set_json": {"/items/-": 4}}, BODY.replace(b"3]", b"3,4]")),
        ({"set_json": {"/new": True}}, BODY.replace(b"1} }", b'1},"new":true }')),
        ({"set_json": {"/a~1b/~0": 2}}, BODY.replace(b'"~": 1', b'"~": 2')),
        ({"set_json": {"": []}}, b"[]"),
        ({"remove_json": ["/price"]}, BODY.replace(b'"price": "12.50", ', b"")),
        ({"remove_json": ["/none"]}, BODY.replace(b', "none": null', b"")),
        ({"remove_json": ["/items/0", "/items/0"[:-1] + "1"]}, BODY.replace(b'1, {"sku": "a"}, 3', b'{"sku": "a"}')),
        ({"remove_json": ["/a~1b/~0"]}, BODY.replace(b'"~": 1', b"")),
        ({"cast_json": {"/price": "number"}}, BODY.replace(b'"12.50"', b"12.50")),
        ({"cast_json": {"/n": "int"}}, BODY.replace(b"1.0", b"1")),
        ({"cast_json": {"/n": "string", "/ok": "string"}}, BODY.replace(b"1.0", b'"1.0"').replace(b"true", b'"true"')),
        ({"cast_json": {"/n": "number", "/ok": "boolean", "/price": "string"}}, BODY),
        (
            {"replace_body_text": {"1.0": "9" * 5000}, "cast_json": {"/n": "string"}},
            BODY.replace(b"1.0", b'"' + b"9" * 5000 + b'"'),
        ),
        (
            {"replace_body_text": {"12.50": "9"}, "cast_json": {"/price": "int"}, "remove_json": ["/n"]},
            BODY.replace(b'"12.50"', b"9").replace(b'"n": 1.0, ', b""),
        ),
    ],
)
def test_bodies(edits: dict[str, Any], body: bytes) -> None:
    content = after(edits)
    assert (content.properties, content.body) == (PROPERTIES, body)


@pytest.mark.parametrize(
    ("edits", "body", "reason"),
    [
        ({"remove_property": ["gone"]}, BODY, "there is no property gone"),
        ({"cast_property": {"name": "int"}}, BODY, "property name is no int: '12 EUR'"),
        ({"replace_body_text": {"zzz": ""}}, BODY, "the body does not contain 'zzz'"),
        ({"replace_body_text": {"a": "b"}}, b"\xff", "the body is not text in UTF-8"),
        ({"replace_body_text": {"a": "b"}}, None, "the body does not contain 'a'"),
        ({"replace_body_text": {"a": ""}}, b"a", "a message needs a body of at least one byte, this one has 0"),
        (
            {"replace_body_text": {"a": "b" * 10_000}},
            b"a" * 420,
            "a body of 4200000 bytes is above the limit of 4194304",
        ),
        ({"set_property": {"p": "x" * 10_000}}, BODY, None),
        ({"set_json": {"/a": 1}}, None, "the body is not JSON"),
        ({"set_json": {"/a": 1}}, b'{"a": NaN}', "the body is not JSON"),
        ({"set_json": {"/a": 1}}, b"[" * 100_000, "the body is nested more than 100 levels deep"),
        ({"set_json": {"/-": 1}}, b"[" * 101 + b"]" * 101, "the body is nested more than 100 levels deep"),
        ({"set_json": {"/a": 1}}, b'"' + b"[" * 101 + b'"', "the body has nothing at '/a'"),
        ({"set_json": {"/a": 1}}, b'"' + b"\\" * 101 + b"[" * 101, "the body is not JSON"),
        ({"set_json": {"/a": 1}}, b'{"a": 1} x', "the body is not JSON"),
        ({"set_json": {"/gone/x": 1}}, BODY, "the body has nothing at '/gone'"),
        ({"set_json": {"/items/3": 1}}, BODY, "the body has nothing at '/items/3'"),
        ({"set_json": {"/items/01": 1}}, BODY, "the body has nothing at '/items/01'"),
        ({"set_json": {"/n/x": 1}}, BODY, "the body has nothing at '/n/x'"),
        ({"remove_json": ["/items/-"]}, BODY, "the body has nothing at '/items/-'"),
        ({"remove_json": ["/x"]}, b'{"x": 1, "x": 2}', "the body has the name 'x' of '/x' twice in one object"),
        ({"cast_json": {"/none": "string"}}, BODY, "the value at /none is no string: null"),
        ({"cast_json": {"/ok": "int"}}, BODY, "the value at /ok is no int: true"),
        ({"cast_json": {"/n": "boolean"}}, BODY, "the value at /n is no boolean: 1.0"),
        ({"cast_json": {"/items": "string"}}, BODY, "the value at /items is no string: [1, {"),
        ({"cast_json": {"/price": "int"}}, BODY, 'the value at /price is no int: "12.50"'),
    ],
)
def test_edits_that_do_not_apply(edits: dict[str, Any], body: bytes | None, reason: str | None) -> None:
    if reason is None:
        assert after(edits, body).properties["p"] == "x" * 10_000
        return
    with pytest.raises(DoesNotApply) as error:
        after(edits, body)
    assert str(error.value).startswith(reason)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ({"set_property": {"ORIGIN_MESSAGE_ID": "x"}}, "ORIGIN_MESSAGE_ID belongs to RocketMQ and cannot be edited"),
        ({"remove_property": ["UNIQ_KEY"]}, "UNIQ_KEY belongs to RocketMQ"),
        ({"cast_property": {"RECONSUME_TIME": "int"}}, "RECONSUME_TIME belongs to RocketMQ"),
        ({"set_property": {"DELAY": "3"}}, "DELAY belongs to RocketMQ"),
        ({"set_property": {"a": " "}}, "can not be null or blank"),
        ({"set_property": {"TAGS": ""}}, "property TAGS cannot be blank"),
        ({"set_property": {"a\x01": "b"}}, "contains U\\+0001"),
        ({"set_property": {"a": "x" * 20_000}}, "the edits are 20,027 bytes as JSON; the limit is 16,384"),
        ({"set_json": {"/a": "\ud800"}}, "cannot be written as JSON in UTF-8"),
        ({"set_json": {"/a": float("nan")}}, "cannot be written as JSON"),
        ({"set_json": {"/a": Decimal("NaN")}}, "cannot be written as JSON"),
        ({"set_json": {"/a": {1: 2}}}, "the name 1 of a member is not text"),
        ({"set_json": {"/a": nested(101)}}, "the value for '/a' is nested more than 100 levels deep"),
        ({"set_json": {"/a": nested(5000)}}, "cannot be written as JSON"),
        ({"set_json": {"a": 1}}, "'a' is not a JSON pointer: it begins with a slash"),
        ({"remove_json": ["/a~2"]}, "write ~0 for a tilde"),
        ({"remove_json": [""]}, "the whole body, which cannot be removed"),
        ({"remove_json": ["/a", "/a"]}, "'/a' is removed twice"),
        ({"set_json": {"/a" * 101: 1}}, "more than 100 levels deep"),
        (
            {"cast_property": {"a": "string"}},
            "property 'a' cannot be cast to 'string'; known types: int, number, boolean",
        ),
        ({"cast_json": {"/a": "date"}}, "JSON pointer '/a' cannot be cast to 'date'"),
        ({"replace_body_text": {"": "x"}}, "the text to replace in a body is empty"),
        ({"set": {}}, "unknown kind of edit 'set'; known: remove_property, cast_property"),
        ({"remove_property": "a"}, "remove_property is a list of texts"),
        ({"set_property": ["a"]}, "set_property is a table"),
        ({"set_property": {"a": 1}}, "set_property: the value of 'a' must be text, not 1"),
        ([], "edits are a table by kind"),
    ],
)
def test_edits_that_are_refused(edits: Any, problem: str) -> None:
    with pytest.raises(WrongUse, match=problem):
        MessageEdits.of(edits)


def test_a_message_without_a_body_may_have_its_properties_edited() -> None:
    assert edited(Content({}, None), MessageEdits(set_property={"a": "b"})) == Content({"a": "b"}, None)


def test_the_checksum_of_another_body_is_removed() -> None:
    message = Content({"__CRC32#": "x", "a": "b"}, b"1")
    assert edited(message, MessageEdits(set_json={"": 2})) == Content({"a": "b"}, b"2")
    assert edited(message, MessageEdits(remove_property=("a",))).properties == {"__CRC32#": "x"}


def test_edits_are_recorded_as_they_are_given() -> None:
    given_edits = {"remove_property": ["a"], "set_json": {"/b": [1, {"c": None}]}, "cast_json": {"/d": "int"}}
    edits = MessageEdits.of(given_edits)
    assert (json.loads(edits.text), bool(edits), edits.of_body) == (given_edits, True, True)
    assert MessageEdits.of_parameter(edits.text) == MessageEdits.of_parameter(given_edits) == edits
    assert not MessageEdits.of({"set_property": {}})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, names: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The names of every value below the root."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    below = [(*names, str(name)) for name, _ in items]
    return below + [place for (_, item), own in zip(items, below, strict=True) for place in places(item, own)]


@given(VALUES, VALUES, st.sampled_from([None, 1]), st.randoms(use_true_random=False))
def test_a_text_that_is_edited_is_that_of_the_edited_value(
    value: Any, new: Any, indent: int | None, random: Any
) -> None:
    """Compared with Python's own parser and writer."""
    if not (all_places := places(value)):
        return
    names = random.choice(all_places)
    pointer = Pointer.parse("".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names))
    assert pointer.names == names
    for remove in (True, False):
        text = JsonBody(json.dumps(value, indent=indent))
        parsed = json.loads(text.text)
        parent = parsed
        for name in names[:-1]:
            parent = parent[int(name) if isinstance(parent, list) else name]
        key = int(names[-1]) if isinstance(parent, list) else names[-1]
        if remove:
            text.remove(pointer)
            del parent[key]
        else:
            text.set(pointer, json.dumps(new))
            parent[key] = new
        assert json.loads(text.text) == parsed


EXACT = (
    "123456789.123456789123456789",
    "12.50",
    "1E2",
    "-0",
    "1E400",
    "9" * 5000,
    '{"a":1.0,"a":2}',
    '[1.0, "\\u00e9"]',
    '{ "b": 0.10,\n "a": null }',
)


@pytest.mark.parametrize("text", EXACT)
def test_json_is_sent_and_recorded_as_it_was_written(text: str) -> None:
    edits = MessageEdits.of(edits_of_text(f'{{"set_json": {{"/n": {text} , "/m": "x"}}}}', is_json=True))
    assert edits == MessageEdits(set_json={"/n": JsonText.parse(f" {text}\n"), "/m": "x"})
    for one in (edits, MessageEdits.of_parameter(edits.text)):
        assert after_json(one) == f'{{"n":{text},"m":"x"}}'


def after_json(edits: MessageEdits) -> str:
    return (edited(Content({}, b"{}"), edits).body or b"").decode()


@pytest.mark.parametrize("number", ["12.50", "1e2", "-0.0", "123456789.123456789123456789"])
def test_a_float_of_toml_keeps_its_digits(number: str) -> None:
    edits = MessageEdits.of(edits_of_text(f"[set_json]\n'/n' = [{{ x = {number} }}]", is_json=False))
    assert after_json(edits) == f'{{"n":[{{"x": {number}}}]}}'


def test_a_float_of_toml_loses_only_what_json_does_not_have() -> None:
    edits = MessageEdits.of(edits_of_text("set_json = { '/n' = +1_000.50 }", is_json=False))
    assert after_json(edits) == '{"n":1000.50}'


def test_in_python_a_float_is_written_as_python_writes_it_and_a_decimal_with_its_digits() -> None:
    edits = MessageEdits(set_json={"/f": 12.50, "/d": {"x": Decimal("12.50"), "y": [Decimal("1E+2")]}})
    assert after_json(edits) == '{"f":12.5,"d":{"x": 12.50, "y": [1E+2]}}'


def test_edits_are_recorded_in_the_order_in_which_they_are_made() -> None:
    edits = MessageEdits(replace_body_text={"b": "c", "a": "b"}, set_json={"/z": {"y": 1, "x": 2}, "/w": 1})
    message = Content({}, b'{"a":"b"}')
    assert edited(message, MessageEdits.of_parameter(edits.text)) == edited(message, edits)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"set_json": {"/a": NaN}}', "not valid JSON: JSON has no NaN"),
        ('{"set_json": {"/a": "\\ud800"}}', "not valid JSON"),
        ('{"set_json": {"/a": 1, "/\\u0061": 2}}', "'/a' occurs twice"),
        ('{"set_property": {"a": "1", "a": "2"}}', "'a' occurs twice"),
        ('{"set_json": {"/a": 1}, "set_json": {}}', "'set_json' occurs twice"),
        ("[]", "edits are a table by kind"),
        ('{"set_json": [1.0]}', "set_json is a table"),
    ],
)
def test_a_json_file_of_edits_that_is_refused(text: str, problem: str) -> None:
    with pytest.raises(WrongUse, match=problem):
        edits_of_text(text, is_json=True)


@pytest.mark.parametrize("number", ["nan", "-inf"])
def test_toml_has_numbers_that_json_has_not(number: str) -> None:
    with pytest.raises(WrongUse, match="not valid TOML"):
        edits_of_text(f"set_json = {{ '/a' = {number} }}", is_json=False)


@pytest.mark.parametrize(("text", "is_json"), [("", False), ("# none yet\n", False), ("{}", True)])
def test_a_file_without_edits_is_refused(text: str, is_json: bool) -> None:
    with pytest.raises(WrongUse, match="no edits: every message would be sent as it is"):
        edits_of_text(text, is_json=is_json)
