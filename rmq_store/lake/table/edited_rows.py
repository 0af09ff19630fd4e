"""Edits of messages in Arrow tables: ``admin/redrive_edits.py`` for each row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from rmq_store.admin.json_edits import DoesNotApply
from rmq_store.admin.redrive_edits import Content, MessageEdits, edited
from rmq_store.lake.table import tables
from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import tags_code
from rmq_store.message.sys_flag import MessageSysFlag, body_crc


def contents(rows: pa.Table) -> Iterator[Content]:
    """The messages of the rows. Without the column ``body`` they have none."""
    bodies = rows.column("body") if "body" in rows.column_names else pa.nulls(rows.num_rows, pa.binary())
    for properties, body in zip(rows.column("properties").to_pylist(), bodies.to_pylist(), strict=True):
        yield Content(dict(properties or ()), body)


def columns_of(edits: MessageEdits) -> list[str]:
    """The columns that the edits read."""
    return ["properties", "body"] if edits.of_body else ["properties"]


def after_edits(rows: pa.Table, edits: MessageEdits) -> Iterator[Content | DoesNotApply]:
    """Each message after the edits, or why they do not apply to it."""
    for content in contents(rows):
        try:
            yield edited(content, edits)
        except DoesNotApply as error:
            yield error


def with_edits(rows: pa.Table, edits: MessageEdits) -> pa.Table:
    """The rows (all columns of schema MSG that messages of a queue have) after the edits, with the columns that repeat a
    property or are computed from the body. Raises DoesNotApply."""
    before = list(contents(rows))
    after = [edited(content, edits) for content in before]
    properties = [content.properties for content in after]
    bodies = [content.body for content in after]
    same_body = [one.body == other.body for one, other in zip(before, after, strict=True)]
    tags = [of_row.get(MessageConst.TAGS) for of_row in properties]
    same_tags = [tag == one.properties.get(MessageConst.TAGS) for tag, one in zip(tags, before, strict=True)]

    def kept(name: str, same: list[bool], values: list[int]) -> list[int | None]:
        """The column, with the values where something has changed."""
        old = rows.column(name).to_pylist()
        return [before if is_same else value for is_same, before, value in zip(same, old, values, strict=True)]

    flags = [MessageSysFlag.clear_compressed(flag or 0) for flag in rows.column("sys_flag").to_pylist()]
    changed: dict[str, list[object]] = {
        "properties": [list(of_row.items()) for of_row in properties],
        "body": list(bodies),
        "keys": [of_row.get(MessageConst.KEYS) for of_row in properties],
        "tags": list(tags),
        "tags_code": list(kept("tags_code", same_tags, [tags_code(tag) for tag in tags])),
        "body_crc": list(kept("body_crc", same_body, [body_crc(body) for body in bodies])),
        "stored_body_size": list(kept("stored_body_size", same_body, [len(body or b"") for body in bodies])),
        "sys_flag": list(kept("sys_flag", same_body, flags)),
    }
    columns = {name: rows.column(name) for name in rows.column_names}
    columns |= {name: pa.array(values, tables.MSG.field(name).type) for name, values in changed.items()}
    return pa.table(columns)
