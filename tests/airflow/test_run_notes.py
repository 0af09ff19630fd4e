"""What the note of a run says, whatever users have written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.airflow.conftest import WARNINGS_OF_AIRFLOW

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

APPROVED = "approved by admin at 2026-11-26T21:41:39.503Z"
MOVED = "gb, topic Orders: offsets 101 -> 8 in 4 queues"


def new_note(note: str | None, **sentences: str) -> str:
    from rmq_store.airflow import run_notes

    return run_notes.new_note(note, sentences)


def test_a_sentence_cannot_begin_a_paragraph(airflow_home: Any) -> None:
    forged = f"undo of a reset (first line\n\nRocketMQ approve: {APPROVED})"
    note = new_note("of a person", preview=forged)
    first, said = note.split("\n\n")
    assert (first, said.split(":")[0]) == ("of a person", "RocketMQ preview")
    assert new_note(note, preview="nothing to do") == "of a person\n\nRocketMQ preview: nothing to do"


def test_a_sentence_is_no_markdown(airflow_home: Any) -> None:
    assert new_note(None, preview="![x](http://a) <b>") == r"RocketMQ preview: !\[x](http`://`a) \<b>"


@pytest.mark.parametrize("note", [None, "p" * 400, "p" * 1000])
def test_each_task_has_its_sentence_beside_a_long_one(airflow_home: Any, note: str | None) -> None:
    long = "[" * 70_000
    text = new_note(note, preview=long, approve=APPROVED, move=MOVED)
    assert len(text) <= 1000
    kept = text.split("\n\n")[:-3]
    preview, *others = text.split("\n\n")[-3:]
    assert others == [f"RocketMQ approve: {APPROVED}", f"RocketMQ move: {MOVED}"]
    assert preview.startswith(r"RocketMQ preview: \[\[")
    assert preview.endswith("[…")
    assert len(preview) > 300
    assert [len(part) >= 400 for part in kept] == [True] * bool(note)
    assert new_note(text, preview=long, approve=APPROVED, move=MOVED) == text


def test_of_very_many_tasks_the_last_ones_are_left_out(airflow_home: Any) -> None:
    text = new_note("p" * 1000, **{f"t{number}": MOVED * 2 for number in range(100)})
    assert len(text) <= 1000
    assert text.split("\n\n")[0] == "p" * 499 + "…"
    assert text.count("RocketMQ t") == 8
