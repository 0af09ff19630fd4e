"""The user's code: how it is loaded, what it may answer, and what an answer means for each message
(``ConsumeMessageConcurrentlyService#processConsumeResult``, rules 9.1). ``ask`` asks it.

A listener has one of two shapes, and the first may answer in several ways:

- ``consume_message(msgs, context) -> ConsumeConcurrentlyStatus``: word for word RocketMQ, with ``context.ack_index``
  and ``context.delay_level_when_next_consume``;
- ``consume_message(msgs, context) -> one status per message``, as a list or by ``yield``: only what failed is retried;
- in order (rules 9.2) ``consume_message(msgs, context) -> ConsumeOrderlyStatus`` with a ``ConsumeOrderlyContext``: one
  status stands for its batch, None and an exception suspend the queue (``consume_orderly``);
- ``consume_batch(batch[, context])`` over an Arrow record batch; an attribute ``columns`` names what it reads.

An exception at message k leaves 0..k-1 their result and retries k and what follows. k is known when the listener
yields, or raises ``ConsumeFailed(k, cause)``; any other exception counts from message 0, which is RocketMQ's
all-or-nothing (``all_or_nothing=True`` asks for that always). Outside effects of a listener are at-least-once:
``context.idempotency_key(message)`` stays the same along all retries of a message.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from rmq_store.consumer.own_process import OwnProcess
from rmq_store.consumer.retry import origin_message_id
from rmq_store.errors import ListenerError, WrongUse, is_stop, text_of
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values

INT_MIN, INT_MAX = -2_147_483_648, 2_147_483_647


class ConsumeConcurrentlyStatus(StrEnum):
    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(StrEnum):
    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


Status = TypeVar("Status", ConsumeConcurrentlyStatus, ConsumeOrderlyStatus)


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """What a listener may tell about its batch.

    ``ack_index``: position of the last message that succeeded, -1 for none; counts only with CONSUME_SUCCESS.
    ``delay_level_when_next_consume``: for what failed: negative is the dead letter queue at once, 0 is 3 + the number
    of retries so far, above 0 is that level.
    """

    message_queue: MessageQueue
    group: str = ""
    ack_index: int = INT_MAX
    delay_level_when_next_consume: int = 0

    def idempotency_key(self, message: MessageExt) -> str:
        """A key that one message has in this group at its first delivery and at every retry."""
        return f"{self.group}:{origin_message_id(message)}"


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """``suspend_current_queue_time_millis`` -1: the consumer's own setting (rules 9.3)."""

    message_queue: MessageQueue
    group: str = ""
    auto_commit: bool = True
    suspend_current_queue_time_millis: int = -1

    def idempotency_key(self, message: MessageExt) -> str:
        """As in ``ConsumeConcurrentlyContext``."""
        return f"{self.group}:{origin_message_id(message)}"


class ConsumeFailed(Exception):
    """A listener raises it to say that messages before ``index`` succeeded and the one at ``index`` did not."""

    def __init__(self, index: int, cause: BaseException | str = "") -> None:
        super().__init__(text_of(cause) if isinstance(cause, BaseException) else str(cause))
        self.index = index
        self.cause = cause


# --- finding it ------------------------------------------------------------------------------------------------------


class ListenerKind(StrEnum):
    MESSAGE = "consume_message"
    BATCH = "consume_batch"


@dataclass(frozen=True, slots=True)
class Listener:
    """A loaded listener. ``call`` takes (messages, context) or (batch, context) and returns what the user's code does.

    ``columns``: what a batch listener reads, None for all. ``name``: "module:attribute". ``version``: the listener's
    own attribute of that name, "" without one. ``secrets``: of its environment, which none of its errors may say.
    """

    kind: ListenerKind
    call: Callable[[Any, Any], Any]
    columns: tuple[str, ...] | None
    name: str
    version: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)


def load_listener(name: str, env: Mapping[str, str] | None = None) -> Listener:
    """Import "module:attribute" and see which shape it has.

    The attribute is an object or a class (made without arguments) with one of the two methods, or a function. A
    function works on Arrow batches if it is called ``consume_batch`` or has an attribute ``columns``, else on messages.

    ``env``: where its secrets are, those that it sets itself included; by default this process's.

    Raises ListenerError, with what was found instead; also when the module or the class ends the process.
    """
    env = os.environ if env is None else env
    try:
        with OwnProcess():
            return replace(_loaded(name), secrets=secret_values(env))
    except BaseException as error:
        if is_stop(error):
            raise
        said = str(error) if type(error) is ListenerError else f"listener {name} cannot be loaded: {named(error)}"
        raise ListenerError(cleaned(said, secret_values(env))) from error


def listener_name(listener: str | Callable[..., Any]) -> str:
    """The name with which ``load_listener`` finds a function or a class of a module; a name is returned as it is.

    Raises WrongUse for what has no such name: a lambda, a function inside another one, an object.
    """
    if isinstance(listener, str):
        return listener
    module, path = getattr(listener, "__module__", None), getattr(listener, "__qualname__", "")
    found: Any = sys.modules.get(module or "")
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not listener:
        raise WrongUse(
            f"the listener {quoted(listener)} cannot be found by a name: give a function or a class of a module, or its "
            "name, like shop.listeners:Orders"
        )
    return f"{module}:{path}"


def _loaded(name: str) -> Listener:
    found = _attribute(name)
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:
            raise ListenerError(f"listener {name}: {found.__name__}() fails: {named(error)}") from error
    kind, function = _shape(name, found)
    call, version = _with_context(name, kind, function), str(getattr(found, "version", ""))
    return Listener(kind, call, _columns(name, found), name, version)


def _attribute(name: str) -> Any:
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ListenerError(f"listener {name!r}: write it as module:attribute, like shop.listeners:Orders")
    try:
        found = importlib.import_module(module_name)
    except Exception as error:
        raise ListenerError(f"listener {name}: module {module_name} cannot be imported: {named(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ListenerError(f"listener {name}: {module_name} has no attribute {path}")
        found = getattr(found, part)
    return found


def _shape(name: str, found: Any) -> tuple[ListenerKind, Callable[..., Any]]:
    methods = {kind: getattr(found, kind) for kind in ListenerKind if hasattr(found, kind)}
    if len(methods) == 2:
        raise ListenerError(f"listener {name} has both consume_message and consume_batch; keep one of them")
    if methods:
        kind, method = methods.popitem()
        if not callable(method):
            raise ListenerError(f"listener {name}: its {kind} is a {type(method).__name__} and cannot be called")
        return kind, method
    if not callable(found):
        raise ListenerError(
            f"listener {name} is a {type(found).__name__}: neither a function nor an object with consume_message "
            "or consume_batch"
        )
    on_batches = getattr(found, "__name__", "") == ListenerKind.BATCH or hasattr(found, "columns")
    return (ListenerKind.BATCH if on_batches else ListenerKind.MESSAGE), found


def _with_context(name: str, kind: ListenerKind, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The function as one of two arguments; a batch listener may leave the context out."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: nothing to look at
        return function
    if _takes(signature, 2):
        return function
    if kind is ListenerKind.BATCH and _takes(signature, 1):
        return lambda batch, context: function(batch)
    wanted = "(msgs, context)" if kind is ListenerKind.MESSAGE else "(batch) or (batch, context)"
    raise ListenerError(f"listener {name}: {kind} must take {wanted}, it takes {signature}")


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _columns(name: str, found: Any) -> tuple[str, ...] | None:
    columns = getattr(found, "columns", None)
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ListenerError(f"listener {name}: columns must be a tuple of column names, it is {columns!r}")
    chosen = tuple(columns)
    if not chosen or not all(isinstance(column, str) for column in chosen):
        raise ListenerError(f"listener {name}: columns must name at least one column by text, it is {columns!r}")
    return tuple(str.__str__(column) for column in chosen)


# --- what the answer means -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one message in the listener.

    ``delay_level`` counts only when it was not acked. ``error_type`` (at most 256 bytes of UTF-8) and ``error_text`` (4
    KiB) are ``cleaned``, and None when the listener asked for a retry without raising.
    """

    acked: bool
    delay_level: int = 0
    error_type: str | None = None
    error_text: str | None = None


ACKED = Answer(True)
NOT_REACHED = "NotReached"


def judge(
    answer: Any,
    n: int,
    context: ConsumeConcurrentlyContext,
    error: BaseException | None = None,
    *,
    all_or_nothing: bool = False,
    secrets: Sequence[str] = (),
) -> tuple[Answer, ...]:
    """One Answer per message of a batch of ``n``, from what the listener returned or raised (rules 9.1).

    ``secrets``: values that no error text may contain.

    - raised: everything from the failing message on is retried;
    - None: RECONSUME_LATER, and so is a None among several statuses;
    - one status: RECONSUME_LATER fails all; CONSUME_SUCCESS fails what lies behind ``context.ack_index``;
    - several: one for each message, ``ack_index`` does not count.

    Raises ListenerError for an answer that is no status, too many or too few of them, an ``ack_index`` below -1 (an
    IndexOutOfBoundsException that stops RocketMQ's queue, but for an empty batch), a number of the context that is no
    ``int`` of Java, or a failing index outside the batch.
    """
    level = java_int("delay_level_when_next_consume", context.delay_level_when_next_consume)
    later = Answer(False, level)
    if error is not None:
        return _judge_error(answer, n, level, error, all_or_nothing, secrets)
    if answer is None or isinstance(answer, str):
        if status_of(answer) is ConsumeConcurrentlyStatus.RECONSUME_LATER:
            return (later,) * n
        ack_index = java_int("ack_index", context.ack_index)
        if ack_index < -1 and n:
            raise ListenerError(f"ack_index {ack_index} on {context.message_queue}: the least is -1, nothing succeeded")
        done = min(max(ack_index + 1, 0), n)
        return (ACKED,) * done + (later,) * (n - done)
    return tuple(ACKED if ok else later for ok in _statuses(answer, n))


def status_of(value: Any) -> ConsumeConcurrentlyStatus:
    """A status from its enum member, its name or None (RECONSUME_LATER). Raises ListenerError for anything else."""
    if value is None:
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    status = status_in(ConsumeConcurrentlyStatus, value)
    if status is None:
        known = ", ".join(ConsumeConcurrentlyStatus)
        raise ListenerError(f"the listener answered {quoted(value)}; known are {known}, alone or one for each message")
    return status


def status_in(known: type[Status], value: Any) -> Status | None:
    """The status that a member or a text names, None for any other value. No ``==`` of the listener's own is asked."""
    if type(value) is known:
        return value
    text = str.__str__(value) if isinstance(value, str) else None
    return next((status for status in known if status.value == text), None)


def _statuses(answer: Any, n: int) -> list[bool]:
    if not isinstance(answer, Sequence) or isinstance(answer, bytes | bytearray):
        status_of(answer)  # raises: neither a status nor a list of them
    statuses = list(islice(answer, n))
    if len(answer) != n or len(statuses) != n:
        raise ListenerError(f"the listener answered {len(answer)} statuses for {n} messages")
    return [status_of(status) is ConsumeConcurrentlyStatus.CONSUME_SUCCESS for status in statuses]


def _judge_error(
    answer: Any, n: int, level: int, error: BaseException, all_or_nothing: bool, secrets: Sequence[str]
) -> tuple[Answer, ...]:
    failed = failure(error, level, secrets)
    if not isinstance(error, ConsumeFailed):
        return (failed,) * n
    k = java_int("the index of ConsumeFailed", error.index)
    if not 0 <= k < n:
        raise ListenerError(f"ConsumeFailed names message {k} of a batch of {n}") from error
    if all_or_nothing:
        return (failed,) * n
    later = Answer(False, level)
    known = list(answer or ())[:k]
    before = [ACKED if ok else later for ok in _statuses(known, len(known))] + [ACKED] * (k - len(known))
    behind = Answer(False, level, NOT_REACHED, f"message {k} of the batch failed first: {failed.error_type}")
    return (*before, failed, *(behind,) * (n - k - 1))


def failure(error: BaseException, level: int = 0, secrets: Sequence[str] = ()) -> Answer:
    """What an exception says of the message that it failed; of a ConsumeFailed its cause does."""
    cause = error.cause if isinstance(error, ConsumeFailed) and isinstance(error.cause, BaseException) else error
    kind = type(cause).__name__.replace("\n", " ")
    return Answer(False, level, cleaned(kind, secrets, NAME_BYTES), cleaned(text_of(cause), secrets))


def quoted(value: Any) -> str:
    """How a value looks, at most 200 characters."""
    try:
        return f"{value!r:.200}"
    except BaseException as error:
        if is_stop(error):
            raise
        return f"a {type(value).__name__} that cannot be shown"


def java_int(what: str, value: Any) -> int:
    """A whole number that is an ``int`` of Java. Raises ListenerError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ListenerError(f"{what} must be a whole number, it is {quoted(value)}")
    number = int.__index__(value)
    if not INT_MIN <= number <= INT_MAX:
        raise ListenerError(f"{what} must be a number in [{INT_MIN}, {INT_MAX}], it is {quoted(value)}")
    return number


def named(error: BaseException) -> str:
    """Its type and text."""
    return f"{type(error).__name__:.{NAME_BYTES}}: {text_of(error)}"
