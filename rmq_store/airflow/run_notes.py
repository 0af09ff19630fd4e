"""Airflow plugin, by the entry point ``airflow.plugins``: the note of a run says what its tasks did.

A task cannot write a note in Airflow 3.3, so each leaves a sentence as its XCom ``rmq_note``, and the scheduler copies them
when the run ends. It has the run in its own database session, so no login and no token is needed.

Every process of Airflow imports this module, so it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from rmq_store.settings.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

MARK = "RocketMQ "
LONGEST = 1000
"""The most characters of a note."""
_LEAST = 60
"""A sentence is not cut below this length: if there are very many, the last ones are left out."""
_BETWEEN = "\n\n"


def new_note(note: str | None, sentences: Mapping[str, str]) -> str:
    """The note that a run has, which a person may have written, with the sentences of its tasks, each a paragraph of Markdown
    that shows it as it is. Those of an earlier try are replaced.

    Where they are longer than a note, the longest sentences are cut, so that each task has its own; what a person wrote is cut
    to what is left, but not below half of a note.
    """
    from rmq_store.utils.redaction import plain_markdown, shortened

    kept = _BETWEEN.join(part for part in (note or "").split(_BETWEEN) if part and not part.startswith(MARK))
    paragraphs = [plain_markdown(f"{MARK}{task}: {sentence}") for task, sentence in sentences.items()]
    room = LONGEST - min(len(kept), LONGEST // 2) - len(_BETWEEN) * len(paragraphs)
    most = _longest_of_each([len(sentence) for sentence in paragraphs], room)
    text = _BETWEEN.join(_cut(sentence, most) for sentence in paragraphs)
    if kept:
        kept = shortened(kept, max(LONGEST - len(_BETWEEN + text), LONGEST // 2) if text else LONGEST)
    return shortened(_BETWEEN.join(part for part in (kept, text) if part), LONGEST)


def _longest_of_each(lengths: Sequence[int], room: int) -> int:
    """How long each of several texts may be so that all are in ``room``: the short ones leave their room to the others."""
    for number, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - number)
        if length > share:
            return max(share, _LEAST)
        room -= length
    return LONGEST


def _cut(text: str, most: int) -> str:
    """The Markdown text in at most ``most`` characters. It does not end in half an escape."""
    return text if len(text) <= most else text[: most - 1].rstrip("\\") + "…"


def write_note(dag_run: DagRun) -> None:
    """Write the sentences of the run's tasks into its note; in the scheduler it is committed with the run's state."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is not None:
        _write_note(dag_run, session)
        return
    with create_session() as session:  # of dag.test(), where the run is in no session
        stored = session.get(DagRun, dag_run.id)
        if stored is not None:
            _write_note(stored, session)


def _write_note(dag_run: DagRun, session: Session) -> None:
    """Only those of tasks that have run since they were cleared: Airflow keeps what a task said until it runs again, which one
    that is skipped now, or is taken out of the run, does not. A task that fails before it says something has deleted what it
    said before."""
    from airflow.models.xcom import XComModel
    from airflow.utils.state import TaskInstanceState

    from rmq_store.airflow.task import NOTE

    ended = dag_run.get_task_instances(state=[TaskInstanceState.SUCCESS, TaskInstanceState.FAILED], session=session)
    ran = {(task.task_id, task.map_index) for task in ended}
    query = XComModel.get_many(run_id=dag_run.run_id, key=NOTE, dag_ids=dag_run.dag_id)
    stored: Any = session.scalars(query)  # rows of XComModel: Airflow's annotation says tuples
    rows = sorted(stored, key=lambda row: (row.timestamp, row.task_id, row.map_index))
    sentences = {
        row.task_id if row.map_index < 0 else f"{row.task_id} {row.map_index}": str(XComModel.deserialize_value(row))
        for row in rows
        if (row.task_id, row.map_index) in ran
    }
    if rows or MARK in (dag_run.note or ""):
        dag_run.note = new_note(dag_run.note, sentences)


class RunNotes:
    """The listener."""

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun) -> None:
        write_note(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun) -> None:
        write_note(dag_run)


class RmqRunNotes(AirflowPlugin):
    """Adds the listener to Airflow, unless ``RMQ_RUN_NOTES=0``."""

    name = "rmq_run_notes"
    listeners = [RunNotes()] if Environment.read().run_notes else []
