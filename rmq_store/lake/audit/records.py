"""The record of a commit has the fields that its action has, and no others (``commit/ctl_fields.py``).

What is read are the rows as the file has them: a ``Ctl`` that is made of a row does not keep all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Action
from rmq_store.commit.ctl_fields import FIELDS, NULL_IN_ITEMS, PARAMETERS, TOGETHER, WITH_PASS, Actions
from rmq_store.commit.positions import Outcome
from rmq_store.lake.table import tables
from rmq_store.lake.table.tables import json_object
from rmq_store.message.message_const import retry_topic

Mask = npt.NDArray[np.bool_]
"""A value for each record."""


class WrongRecord(NamedTuple):
    """A record that no commit of its action has."""

    commit_id: str | None
    action: str
    group_name: str | None
    facts: str
    """What is wrong with it, in words."""


def wrong_records(rows: pa.Table, version: int | None = None) -> Iterator[WrongRecord]:
    """The records, of schema ``CTL`` or of an earlier version with fewer columns, that are not as their actions make them. One
    of an unknown action is none: it is not understood, which is a finding of another part.

    ``version``: that of the log's entry with their file, before which they were decided; None where it is not known."""
    rows = rows.combine_chunks()
    actions = _ActionsOf(_column(rows, "action"))
    wrong = [(fact, mask) for fact, mask in _facts(rows, actions, version) if mask.any()]
    every = reduce(np.logical_or, (mask for _, mask in wrong), np.zeros(rows.num_rows, np.bool_))
    for number in np.flatnonzero(every).tolist():
        commit_id, group, action = (
            _column(rows, name)[number].as_py() for name in ("commit_id", "group_name", "action")
        )
        yield WrongRecord(commit_id, action, group, ", ".join(fact for fact, mask in wrong if mask[number]))


class _ActionsOf:
    """The actions of some records. They are few different ones, and many facts ask for them."""

    def __init__(self, actions: pa.Array) -> None:
        encoded = actions.dictionary_encode("encode")
        self._codes = encoded.indices.to_numpy(zero_copy_only=False)
        self._names: list[str | None] = encoded.dictionary.to_pylist()

    def are_of(self, some: Actions) -> Mask:
        mask: Mask = np.array([name in some for name in self._names], np.bool_)[self._codes]
        return mask


def _facts(rows: pa.Table, actions: _ActionsOf, version: int | None) -> Iterator[tuple[str, Mask]]:
    known = actions.are_of(frozenset(Action))
    has = {name: _has(_column(rows, name)) for name in FIELDS}
    for name, rule in FIELDS.items():
        yield f"no {name}", actions.are_of(rule.always) & ~has[name]
        yield f"{name}, which it cannot have", known & ~actions.are_of(rule.possible) & has[name]
    for first, second in TOGETHER:
        only_one = actions.are_of(FIELDS[first].possible) & (has[first] != has[second])
        yield f"only one of {first} and {second}", only_one
    for name, nullable in NULL_IN_ITEMS.items():
        yield from _facts_of_items(name, rows, nullable, actions)
    yield from _missing_parameters(rows, actions)
    yield "copies in another topic than its to_topic", _redriven_elsewhere(rows, actions)
    if version is not None:  # the entry is in the place of another one
        is_later = _mask(pc.fill_null(pc.greater_equal(_column(rows, "read_version"), version), False))
        yield f"a read_version that is not before its version {version}", is_later


def _facts_of_items(
    name: str, rows: pa.Table, nullable: frozenset[str], actions: _ActionsOf
) -> Iterator[tuple[str, Mask]]:
    lists = _column(rows, name)
    items, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
    if not len(items):
        return

    def records(wrong: pa.Array) -> Mask:
        mask = np.zeros(len(lists), np.bool_)
        mask[parents.filter(pc.fill_null(wrong, False)).to_numpy(zero_copy_only=False)] = True
        return mask

    fields = {field.name: pc.struct_field(items, field.name) for field in items.type}
    for field, values in fields.items():
        if field not in nullable and values.null_count:
            yield f"no {name}.{field}", records(pc.is_null(values))
    if name == "moved":
        epochs = _column(rows, "epoch").take(parents)
        differing = records(pc.not_equal(fields["pass"], epochs))
        yield "a moved.pass other than its epoch", differing & actions.are_of(FIELDS["epoch"].possible)
    if name == "consumed":
        for outcome in (one for one in Outcome if one in fields):
            none_but_hash = pc.and_(pc.equal(fields[outcome], 0), pc.not_equal(fields[f"{outcome}_hash"], 0))
            yield f"{name}.{outcome}_hash without {outcome}", records(none_but_hash)
        yield f"a {name}.pass other than 0", records(pc.not_equal(fields["pass"], 0)) & ~actions.are_of(WITH_PASS)


def _missing_parameters(rows: pa.Table, actions: _ActionsOf) -> Iterator[tuple[str, Mask]]:
    """Parameters that are no JSON object are a finding of ``positions.py``."""
    missing: dict[str, Mask] = defaultdict(lambda: np.zeros(rows.num_rows, np.bool_))
    texts, names = _column(rows, "parameters"), _column(rows, "action")
    for number in np.flatnonzero(actions.are_of(frozenset(PARAMETERS))).tolist():
        parameters = json_object(texts[number].as_py())
        if parameters is not None:
            for name in sorted(PARAMETERS[names[number].as_py()]):
                missing[name][number] = parameters.get(name) is None
    yield from ((f"no parameter {name}", mask) for name, mask in missing.items())


def _redriven_elsewhere(rows: pa.Table, actions: _ActionsOf) -> Mask:
    """Redrives whose copies are not all in the topic that their parameters name, else in the retry topic of the group."""
    columns = [_column(rows, name) for name in ("group_name", "parameters", "produced")]
    elsewhere = actions.are_of(frozenset({Action.REDRIVE})) & _has(columns[-1])
    for number in np.flatnonzero(elsewhere).tolist():
        group, text, produced = (column[number].as_py() for column in columns)
        parameters = json_object(text)
        if parameters is None or group is None:  # another part, or another fact, says so
            elsewhere[number] = False
            continue
        topic = parameters.get("to_topic") or retry_topic(group)
        elsewhere[number] = any(segment["topic"] not in (topic, None) for segment in produced)
    return elsewhere


def _column(rows: pa.Table, name: str) -> pa.Array:
    """All null where the rows are of an earlier version without it."""
    type_ = tables.CTL.field(name).type
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, type_)
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _has(column: pa.Array) -> Mask:
    if pa.types.is_list(column.type):
        return _mask(pc.greater(pc.fill_null(pc.list_value_length(column), 0), 0))
    return _mask(pc.is_valid(column))


def _mask(values: pa.Array) -> Mask:
    mask: Mask = values.to_numpy(zero_copy_only=False)
    return mask
