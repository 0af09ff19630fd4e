"""How a listener is asked: its code runs, and what it says becomes plain values, before anything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from traceback import clear_frames
from typing import Any, TypeAlias, TypeVar

from rmq_store.consumer.listener import ConsumeFailed, Listener, named
from rmq_store.consumer.own_process import OwnProcess
from rmq_store.errors import ListenerError, is_stop, text_of
from rmq_store.message.message import MessageQueue
from rmq_store.utils.redaction import cleaned

Context = TypeVar("Context")
Told = TypeVar("Told")
Read: TypeAlias = Callable[[Any, int, Context, BaseException | None], Told]


def ask(
    listener: Listener,
    begin: tuple[MessageQueue, int],
    messages: Any,
    context: Callable[[], Context],
    read: Read[Context, Told],
) -> Told:
    """Ask the listener about a batch that begins at ``begin`` (queue, offset), with a context of its own, and read what it
    says: ``read(answer, n, context, error)`` of ``n`` messages, like ``judge``, in plain values.

    An answer, an exception and a context may have methods of the listener's own, ``__del__`` too. So all of this is one
    ``OwnProcess``, and no object of the listener's leaves it.

    Raises ListenerError, with listener, queue and offset, when ``read`` raises; else what stops the run from outside
    (``is_stop``).
    """
    with OwnProcess():
        try:
            return _heard(listener, messages, len(messages), context(), read)
        except BaseException as error:
            if is_stop(error):
                raise
            said = text_of(error) if type(error) is ListenerError else f"its answer cannot be read: {named(error)}"
            said = cleaned(said, listener.secrets)
            _forget_frames(error)
    queue, offset = begin
    raise ListenerError(f"listener {listener.name}, {queue}, batch at offset {offset}: {said}")


def _heard(
    listener: Listener,
    messages: Any,
    n: int,
    context: Context,
    read: Read[Context, Told],
) -> Told:
    answer, error = _call(listener, messages, n, context)
    try:
        return read(answer, n, context, error)
    finally:
        if error is not None:
            _forget_frames(error)
        del answer, error  # this frame is behind those of its traceback


def _forget_frames(error: BaseException | None) -> None:
    """Empty the frames of its traceback: one that holds the exception would keep it until garbage is collected."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _call(listener: Listener, messages: Any, n: int, context: Any) -> tuple[Any, BaseException | None]:
    """(what the listener answered, what it raised), whatever that is, as RocketMQ catches Throwable.

    A listener that yields is run to its end; if it raises, the statuses so far are the answer and the exception says
    at which message. A process that it has forked ends here, with its own exit code.
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
