"""What columns a listener may name."""

from __future__ import annotations

import pytest

from rmq_store.consumer.listener import Listener, ListenerKind
from rmq_store.errors import ListenerError
from rmq_store.lake.listener.task_listener import refuse_unknown_columns
from rmq_store.lake.table import tables


def naming(*columns: str, kind: ListenerKind = ListenerKind.BATCH) -> Listener:
    return Listener(kind, lambda *_: None, columns or None, "shop:Fast")


@pytest.mark.parametrize("kind", ListenerKind)
def test_a_column_that_no_message_has_is_refused_with_the_known_ones(kind: ListenerKind) -> None:
    with pytest.raises(ListenerError) as told:
        refuse_unknown_columns(naming("body", "nope", "neither", kind=kind))
    said = "listener shop:Fast: unknown columns nope, neither; known columns are topic, broker_name, "
    assert str(told.value).startswith(said)
    assert str(told.value).endswith("properties, body")


def test_every_column_of_a_message_row_may_be_named() -> None:
    refuse_unknown_columns(naming(*tables.MSG.names))
    refuse_unknown_columns(naming())
