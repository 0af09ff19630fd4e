"""The call of a listener: its code runs, and its answer becomes plain values before anything else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from traceback import clear_frames
from typing import Any, TypeAlias, TypeVar

from rmq_store.consumer.listener import ConsumeFailed, Listener, type_and_text
from rmq_store.consumer.listener_process import OwnProcess
from rmq_store.errors import ListenerError, is_stop, text_of
from rmq_store.message.message import MessageQueue
from rmq_store.utils.redaction import cleaned

Context = TypeVar("Context")
Result = TypeVar("Result")
Read: TypeAlias = Callable[[Any, int, Context, BaseException | None], Result]
"""``read(answer, n, context, error)`` of ``n`` messages: the listener's answer or error in plain values, like
``judge``."""


def call_listener(
    listener: Listener,
    begin: tuple[MessageQueue, int],
    messages: Any,
    context: Callable[[], Context],
    read: Read[Context, Result],
) -> Result:
    """Call the listener with a batch that begins at ``begin`` (queue, offset) and a new context, and ``read`` its
    answer.

    The listener's answer, exception and context may have methods of its own, even ``__del__``. So all of this happens
    in one ``OwnProcess``, and no object of the listener leaves it.

    Raises ListenerError, with listener, queue and offset, when ``read`` raises. What stops the run from outside
    (``is_stop``) is raised as it is; in a listener's own process nothing does.
    """
    with OwnProcess():
        try:
            return _answered(listener, messages, len(messages), context(), read)
        except BaseException as error:
            if is_stop(error):
                raise
            reason = (
                text_of(error) if type(error) is ListenerError else f"its answer cannot be read: {type_and_text(error)}"
            )
            reason = cleaned(reason, listener.secrets)
            _forget_frames(error)
    queue, offset = begin
    raise ListenerError(f"listener {listener.name}, {queue}, batch at offset {offset}: {reason}")


def _answered(
    listener: Listener,
    messages: Any,
    n: int,
    context: Context,
    read: Read[Context, Result],
) -> Result:
    answer, error = _call(listener, messages, n, context)
    try:
        return read(answer, n, context, error)
    finally:
        if error is not None:
            _forget_frames(error)
        del answer, error  # the traceback refers to this frame, too


def _forget_frames(error: BaseException | None) -> None:
    """Clear the frames of its traceback: a frame that refers to the exception would keep it until garbage
    collection."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _call(listener: Listener, messages: Any, n: int, context: Any) -> tuple[Any, BaseException | None]:
    """(what the listener answered, what it raised), whatever it raises, as RocketMQ catches Throwable.

    A listener that yields is run to its end; if it raises, the statuses so far are the answer, and the exception says
    at which message. A process that the listener has forked ends here, with its own exit code.
    """
    statuses: list[Any] | None = None
    try:
        with OwnProcess():
            answer = listener.call(messages, context)
            if not isinstance(answer, Iterator):
                return answer, None
            statuses = []
            for status in answer:
                statuses.append(status)
    except BaseException as error:
        if is_stop(error):
            raise
        if statuses is None or isinstance(error, ConsumeFailed) or len(statuses) >= n:
            return statuses, error
        return statuses, ConsumeFailed(len(statuses), error)
    return statuses, None
