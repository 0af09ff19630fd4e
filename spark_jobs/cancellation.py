"""The rows of a job, whose end need not be waited for: who stops this process stops the job too.

pyspark waits for the end of a job whatever is raised meanwhile, and then raises the error of the job in its place
(``PandasConversionMixin._collect_as_arrow``). A listener may run for hours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_store.errors import STOPPED, Terminated
from rmq_store.utils.daemon_call import in_daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_ANSWER_S = 15.0
"""So long a driver is asked to cancel a job, or to end a session, before it counts as gone."""
_LOOK_EVERY_S = 0.5


def collected(session: SparkSession, frame: DataFrame) -> pa.Table:
    """The rows of the frame. Its job runs in a thread of its own, with the settings of this one, and is cancelled when this
    thread is interrupted, or another one by a signal that stops the process."""
    tag = f"rmq-{os.urandom(8).hex()}"
    mark, cancel = _tags_of(session)

    def rows() -> pa.Table:
        mark(tag)
        return frame.toArrow()

    job: Future[pa.Table] = Future()
    try:
        in_daemon(_with_settings_of_this_thread(session, rows), "spark-job", job)
        while not _has_ended(job):
            if STOPPED.is_set():
                raise Terminated
    except BaseException:
        without_retries(session)
        with suppress(RuntimeError):  # there is no thread
            _cancel(job, partial(cancel, tag))
        raise
    return job.result()


def _cancel(job: Future[pa.Table], cancel: Callable[[], object]) -> None:
    """Cancel the job, and wait for its end, as long as Spark answers. Again and again: a job that has not begun yet has nothing
    to cancel. A driver that is gone or does not answer is not waited for: what its tasks still write is in no commit."""
    answered, attempt = time.monotonic(), in_daemon(cancel, "cancel-job")
    while not _has_ended(job) and time.monotonic() - answered < NO_ANSWER_S:
        if attempt.done():
            answered = answered if attempt.exception() else time.monotonic()
            attempt = in_daemon(cancel, "cancel-job")


def without_retries(session: SparkSession) -> None:
    """From now on a Connect server that does not answer is asked once: pyspark would ask it for ten minutes."""
    if not is_classic(session):
        session.client.set_retry_policies([])


def _has_ended(job: Future[pa.Table]) -> bool:
    return bool(wait([job], _LOOK_EVERY_S).done)


def _tags_of(session: SparkSession) -> tuple[Callable[[str], object], Callable[[str], object]]:
    """What gives a tag to the jobs of a thread, and what cancels the jobs with a tag. In a classic session these are of the
    context: ``SparkSession.interruptTag`` does not find the job of ``toArrow`` (pyspark 4.2.0)."""
    if is_classic(session):
        return session.sparkContext.addJobTag, session.sparkContext.cancelJobsWithTag
    return session.addTag, session.interruptTag


def _with_settings_of_this_thread(session: SparkSession, run: Callable[[], pa.Table]) -> Callable[[], pa.Table]:
    """Such as the pool of the scheduler. Connect has none."""
    if not is_classic(session):
        return run
    from pyspark.util import inheritable_thread_target

    inheriting: Callable[[], pa.Table] = inheritable_thread_target(session)(run)
    return inheriting


def is_classic(session: SparkSession) -> bool:
    """Whether it is a session of a JVM of this process; else it is one of a Connect server."""
    return hasattr(session, "sparkContext")
