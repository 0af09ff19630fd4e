"""``vectors/properties``: the text of a record's properties, and what a user may set (rules 1.5)."""

from __future__ import annotations

from rmq_store.errors import WrongUse
from rmq_store.message.message_const import RESERVED_PROPERTY_NAMES
from rmq_store.message.properties import check_user_property, parse_properties, properties_text
from tests.conformance.checks import Line, Outcomes, by_kind, refused, same


def _parse(line: Line) -> Outcomes:
    yield same(f"read {line['text']!r}", parse_properties(line["text"]), line["properties"])


def _write(line: Line) -> Outcomes:
    text = properties_text(dict(line["entries"]))
    yield same(f"written {line['entries']}", text, line["text"])
    yield same(f"read back {text!r}", parse_properties(text), line["back"])


def _reserved(line: Line) -> Outcomes:
    yield same("reserved names", sorted(RESERVED_PROPERTY_NAMES), sorted(line["names"]))


def _put(line: Line) -> Outcomes:
    def put() -> None:
        check_user_property(line["name"], line["value"])

    if line.get("ok"):
        put()
        yield None
    else:
        yield refused(f"put {line['name']!r}", WrongUse, put, line["error"].partition(": ")[2])


check = by_kind({"parse": _parse, "write": _write, "reserved": _reserved, "putUserProperty": _put})
