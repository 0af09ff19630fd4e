"""Edits of dead letters that are sent again: what is changed in the copy. The dead letter itself stays as it is.

``edited`` is a pure function of the message and the edits, so that an audit can repeat it
(``docs/decisions/0020-edited-redrives.md``). The edits are made in this order, those of a kind in the order given:

| kind | given as | changes |
|---|---|---|
| ``remove_property`` | names | removes the property |
| ``cast_property`` | type by name | writes the value as this type does: `` +07 `` as int is ``7`` |
| ``set_property`` | value by name | sets the property, whether it is there or not |
| ``replace_body_text`` | new by old text | replaces each occurrence in the body, which must be UTF-8 |
| ``remove_json`` | JSON pointers | removes the value (RFC 6901) |
| ``cast_json`` | type by pointer | replaces a value by the same value of another type: ``"12"`` as int is ``12`` |
| ``set_json`` | value by pointer | sets a member, or an element that is there; ``-`` is behind the last element |

An edit that has nothing to act on does not apply: the property or the value is not there, the text does not occur, the body is
not JSON, the value is not of the type. What no edit names in a JSON body stays as it is, byte by byte, and a value
that is set is sent as it was written, digit by digit.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from rmq_store.admin.json_edits import MOST_NESTED, DoesNotApply, JsonBody, Pointer, is_deep
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import check_user_property
from rmq_store.message.validators import check_body, check_properties
from rmq_store.utils.json_text import JsonText, items

MAX_BYTES = 16_384
"""The size of the edits as JSON, which the commits of the redrive record."""

PROPERTY_TYPES = ("int", "number", "boolean")
JSON_TYPES = (*PROPERTY_TYPES, "string")

_SET_BY_USERS = (MessageConst.TAGS, MessageConst.KEYS, MessageConst.SHARDING_KEY)
"""Names of RocketMQ whose values are the producer's."""
OWNED = frozenset(
    value for name, value in vars(MessageConst).items() if name.isupper() and isinstance(value, str)
) - frozenset(_SET_BY_USERS)
"""The properties that RocketMQ, and the stages of a message here, set and remove. A copy has all others of its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEdits:
    """What to change in each message. Raises WrongUse for edits that can be made in no message."""

    remove_property: tuple[str, ...] = ()
    cast_property: Mapping[str, str] = field(default_factory=dict)
    set_property: Mapping[str, str] = field(default_factory=dict)
    replace_body_text: Mapping[str, str] = field(default_factory=dict)
    remove_json: tuple[str, ...] = ()
    cast_json: Mapping[str, str] = field(default_factory=dict)
    set_json: Mapping[str, Any] = field(default_factory=dict)
    """By pointer, what ``JsonText.of`` takes: a float is sent as Python writes it (12.50 as 12.5), a Decimal with all its
    digits."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_shape(one.name, getattr(self, one.name), tuple)
        for name in (*self.remove_property, *self.cast_property, *self.set_property):
            _check_name(name)
        for name, value in self.set_property.items():
            _check_value(name, value)
        for names in (self.remove_property, self.remove_json):
            _check_once(names)
        _check_types("property", self.cast_property, PROPERTY_TYPES)
        _check_types("JSON pointer", self.cast_json, JSON_TYPES)
        if "" in self.replace_body_text:
            raise WrongUse("the text to replace in a body is empty")
        for pointer in (*self.remove_json, *self.cast_json, *self.set_json):
            Pointer.parse(pointer)
        if "" in self.remove_json:
            raise WrongUse("the pointer '' is the whole body, which cannot be removed: a message needs a body")
        try:
            texts = {pointer: JsonText.of(value) for pointer, value in self.set_json.items()}
            object.__setattr__(self, "set_json", texts)  # it is frozen
            size = len(self.text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise WrongUse(f"the edits cannot be written as JSON in UTF-8: {error}") from None
        if deep := [pointer for pointer, value in texts.items() if is_deep(value.text)]:
            raise WrongUse(f"the value for {deep[0]!r:.100} is nested more than {MOST_NESTED} levels deep")
        if size > MAX_BYTES:
            raise WrongUse(f"the edits are {size:,} bytes as JSON; the limit is {MAX_BYTES:,}, as commits record them")

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))

    @property
    def of_body(self) -> bool:
        """Whether the body may change."""
        return bool(self.replace_body_text or self.remove_json or self.cast_json or self.set_json)

    @property
    def text(self) -> str:
        """The edits that are given, as JSON by kind, in their order: what commits record, and a file may hold."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return JsonText.of({name: value for name, value in values.items() if value}).text

    @classmethod
    def of_parameter(cls, value: object) -> MessageEdits:
        """From the parameter ``edits`` of a DAG or of a commit: a text of JSON, whose numbers keep their digits, or an object,
        as in older commits. None, a blank text and an empty object are no edits. Raises WrongUse, also for a kind of edit that
        this version does not know."""
        if isinstance(value, str):
            value = edits_of_text(value, is_json=True) if value.strip() else None
        return cls.of(value or {})

    @classmethod
    def of(cls, values: object) -> MessageEdits:
        """From an object by kind. Raises WrongUse, which names what is wrong."""
        if not isinstance(values, Mapping):
            raise WrongUse('edits are a table by kind, such as set_property = { region = "eu" }')
        kinds = [one.name for one in fields(cls)]
        for kind, value in values.items():
            if kind not in kinds:
                raise WrongUse(f"unknown kind of edit {kind!r}; known: {', '.join(kinds)}")
            _check_shape(kind, value, list)
        by_kind: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else dict(v) for k, v in values.items()}
        return cls(**by_kind)


def edits_of_text(text: str, *, is_json: bool) -> dict[str, Any]:
    """The edits by kind of a text in JSON or TOML, as ``MessageEdits.of`` takes them. Raises WrongUse."""
    try:
        values = _of_json_text(text) if is_json else tomllib.loads(text, parse_float=_toml_number)
    except (ValueError, RecursionError) as error:
        raise WrongUse(f"the edits are not valid {'JSON' if is_json else 'TOML'}: {error}") from None
    MessageEdits.of(values)
    if not values:
        raise WrongUse("these are no edits: every message would be sent as it is")
    return dict(values)


def _of_json_text(text: str) -> Any:
    """The values of ``set_json`` are kept as text. Raises ValueError for a text that is not JSON, or names a place twice."""
    text = JsonText.parse(text).text
    if not text.startswith("{"):
        return json.loads(text)
    return {kind: _of_kind(kind, of_kind) for kind, of_kind in _members(text).items()}


def _of_kind(kind: str, text: str) -> Any:
    members = _members(text) if text.startswith("{") else {}
    if kind == "set_json" and text.startswith("{"):
        return {pointer: JsonText(value) for pointer, value in members.items()}
    return json.loads(text)


def _members(text: str) -> dict[str, str]:
    """The texts of an object's values by name. Raises ValueError for a name that occurs twice."""
    texts: dict[str, str] = {}
    for member in items(text):
        if member.name in texts:
            raise ValueError(f"{member.name!r:.100} occurs twice")
        texts[member.name] = text[member.at : member.end]
    return texts


def _toml_number(text: str) -> JsonText:
    """A float of TOML, with its digits. Raises ValueError for inf and nan, which JSON does not have."""
    return JsonText.parse(text.replace("_", "").removeprefix("+"))


def with_more(values: Mapping[str, Any], more: Mapping[str, Any]) -> MessageEdits:
    """The edits by kind of a file, and behind them those of options. Raises WrongUse, also for one that is in both."""
    together: dict[str, Any] = dict(values)
    for kind, of_kind in more.items():
        present = together.get(kind) or type(of_kind)()
        if twice := [name for name in of_kind if name in present]:
            raise WrongUse(f"the edit {kind} of {twice[0]!r} is in the file and among the options: give it once")
        together[kind] = [*present, *of_kind] if isinstance(of_kind, list) else {**present, **of_kind}
    return MessageEdits.of(together)


@dataclass(frozen=True, slots=True)
class Content:
    """What edits can change of a message."""

    properties: Mapping[str, str]
    body: bytes | None


def edited(message: Content, edits: MessageEdits) -> Content:
    """The message with the edits.

    Raises DoesNotApply, with the reason as its text, when one of them has nothing to act on, or the message would be larger
    than RocketMQ allows.
    """
    properties, body = dict(message.properties), message.body
    for name in edits.remove_property:
        _need(properties, name)
        del properties[name]
    for name, type_ in edits.cast_property.items():
        properties[name] = _of_property(name, _need(properties, name), type_)
    properties |= edits.set_property
    if edits.of_body:
        properties.pop(MessageConst.CRC32, None)  # of the body before
        body = _edited_body(body, edits)
    try:
        if properties != message.properties:
            check_properties(properties)
        if body != message.body:
            check_body(body)
    except WrongUse as error:
        raise DoesNotApply(str(error)) from None
    return Content(properties, body)


def _edited_body(body: bytes | None, edits: MessageEdits) -> bytes:
    text = _text(body)
    for old, new in edits.replace_body_text.items():
        if old not in text:
            raise DoesNotApply(f"the body does not contain {old!r:.100}")
        text = text.replace(old, new)
    if edits.remove_json or edits.cast_json or edits.set_json:
        json_body = JsonBody(text)
        for pointer in edits.remove_json:
            json_body.remove(Pointer.parse(pointer))
        for pointer, type_ in edits.cast_json.items():
            json_body.replace(Pointer.parse(pointer), partial(_of_json, pointer=pointer, type_=type_))
        for pointer, value in edits.set_json.items():
            json_body.set(Pointer.parse(pointer), value.text)
        text = json_body.text
    return text.encode()


def _text(body: bytes | None) -> str:
    try:
        return (body or b"").decode()
    except UnicodeDecodeError:
        raise DoesNotApply("the body is not text in UTF-8") from None


def _need(properties: Mapping[str, str], name: str) -> str:
    if name not in properties:
        raise DoesNotApply(f"there is no property {name}")
    return properties[name]


# --- what a dry run shows ----------------------------------------------------------------------------------------------

MOST_SHOWN = 300
"""Characters of a value that a preview shows at most."""


@dataclass(frozen=True, slots=True)
class Change:
    """A property, or the body, before and after; None where there is none."""

    name: str
    """The property; "" is the body."""
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What the edits change in a dead letter."""

    queue: MessageQueue
    offset: int
    changes: tuple[Change, ...]


def changes(before: Content, after: Content) -> tuple[Change, ...]:
    """What differs, by the name of the property; the body is last. Long values are cut, and bodies are shown as text."""
    names = sorted({*before.properties, *after.properties})
    values = [(name, before.properties.get(name), after.properties.get(name)) for name in names]
    values.append(("", _shown(before.body), _shown(after.body)))
    differing = [value for value in values[:-1] if value[1] != value[2]]
    if before.body != after.body:
        differing.append(values[-1])
    return tuple(Change(name, *(None if v is None else v[:MOST_SHOWN] for v in two)) for name, *two in differing)


def _shown(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")


# --- types -----------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"([+-]?)0*([0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_BLANKS = " \t\r\n"


def _number(text: str) -> str | None:
    """A number as JSON writes it, without blanks, plus and leading zeros; the other digits stay. None: it is none."""
    match = _NUMBER.fullmatch(text.strip(_BLANKS))
    if match is None:
        return None
    sign, whole, *rest = match.groups(default="")
    return f"{sign.removeprefix('+')}{whole}{''.join(rest)}"


def _int(text: str) -> str | None:
    number = _number(text)
    whole = None if number is None else re.sub(r"\.0+$", "", number)
    return None if whole is None or not re.fullmatch("-?[0-9]+", whole) else "0" if whole == "-0" else whole


def _boolean(text: str) -> str | None:
    name = text.strip(_BLANKS).lower()
    return name if name in ("true", "false") else None


_CASTS: Mapping[str, Callable[[str], str | None]] = {"int": _int, "number": _number, "boolean": _boolean}


def _of_property(name: str, text: str, type_: str) -> str:
    value = _CASTS[type_](text)
    if value is None:
        raise DoesNotApply(f"property {name} is no {type_}: {text!r:.100}")
    return value


def _of_json(text: str, *, pointer: str, type_: str) -> str:
    """A JSON value, as text, as another type."""
    # The type of a number is enough: Python refuses to convert one of very many digits.
    value = json.loads(text, parse_int=lambda digits: 0, parse_float=lambda digits: 0)
    result: str | None = None
    if isinstance(value, dict | list) or value is None:
        pass
    elif type_ == "string":
        result = text if isinstance(value, str) else f'"{text}"'
    elif isinstance(value, bool):
        result = text if type_ == "boolean" else None
    elif isinstance(value, str) or type_ != "boolean":
        result = _CASTS[type_](value if isinstance(value, str) else text)
    if result is None:
        raise DoesNotApply(f"the value at {pointer} is no {type_}: {text:.100}")
    return result


# --- what is refused -------------------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if name in OWNED:
        raise WrongUse(
            f"property {name} belongs to RocketMQ and cannot be edited; of its own only {', '.join(_SET_BY_USERS)} can"
        )
    _check_value(name, "x")


def _check_value(name: str, value: str) -> None:
    if name not in _SET_BY_USERS:
        check_user_property(name, value)
    elif not value.strip():
        raise WrongUse(f"property {name} cannot be blank; it can be removed")
    if {"\x01", "\x02"} & {*name, *value}:
        raise WrongUse(f"property {name!r} contains U+0001 or U+0002, which end a property in the stored form")


def _check_once(names: Iterable[str]) -> None:
    names = list(names)
    for name in names:
        if names.count(name) > 1:
            raise WrongUse(f"{name!r} is removed twice")


def _check_types(what: str, types: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name, type_ in types.items():
        if type_ not in known:
            raise WrongUse(f"{what} {name!r} cannot be cast to {type_!r}; known types: {', '.join(known)}")


def _check_shape(kind: str, value: object, sequence: type[list[str]] | type[tuple[str, ...]]) -> None:
    """``sequence``: what names are given as; the characters of a text would be names."""
    if kind in ("remove_property", "remove_json"):
        if not isinstance(value, sequence) or not all(isinstance(name, str) for name in value):
            raise WrongUse(f"{kind} is a {sequence.__name__} of texts")
        return
    if not isinstance(value, Mapping):
        raise WrongUse(f"{kind} is a table: name = value")
    for name, of_name in value.items():
        if not isinstance(name, str) or (kind != "set_json" and not isinstance(of_name, str)):
            raise WrongUse(f"{kind}: the value of {name!r} must be text, not {of_name!r:.100}")
