"""The user's code: how it is loaded, what it may answer, and what an answer means for each message
(``ConsumeMessageConcurrentlyService#processConsumeResult``, rules 9.1). ``ask`` asks it.

A listener has one of two shapes, and the first may answer in several ways:

- ``consume_message(msgs, context) -> ConsumeConcurrentlyStatus``: RocketMQ's own form, with ``context.ack_index`` and
  ``context.delay_level_when_next_consume``;
- ``consume_message(msgs, context) -> one status per message``, as a list or by ``yield``: only what failed is retried;
- in order (rules 9.2) ``consume_message(msgs, context) -> ConsumeOrderlyStatus`` with a ``ConsumeOrderlyContext``: one
  status stands for its batch, None and an exception suspend the queue (``consume_orderly``);
- ``consume_batch(batch[, context])`` over an Arrow record batch; its attribute ``columns`` names the columns that it
  reads.

After an exception at message k, the messages 0..k-1 keep their result; k and those behind it are retried. k is known
when the listener yields, or raises ``ConsumeFailed(k, cause)``; with any other exception it is 0, which is RocketMQ's
all-or-nothing (always so with ``all_or_nothing=True``). External effects of a listener are at-least-once:
``context.idempotency_key(message)`` is the same for all retries of a message.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from rmq_store.consumer.listener_process import OwnProcess
from rmq_store.consumer.retry import origin_message_id
from rmq_store.errors import ListenerError, WrongUse, is_stop, text_of
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values

INT_MIN, INT_MAX = -2_147_483_648, 2_147_483_647
_MOST_VERSION = 100
"""Characters of a version."""


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
    """What a listener can set for its batch."""

    message_queue: MessageQueue
    group: str = ""
    ack_index: int = INT_MAX
    """Position of the last message that succeeded, -1 for none; used only with CONSUME_SUCCESS."""
    delay_level_when_next_consume: int = 0
    """For failed messages: negative means dead letter at once, 0 level 3 + the retries so far, above 0 that level."""

    def idempotency_key(self, message: MessageExt) -> str:
        """A key of the message in this group, the same at its first delivery and at every retry."""
        return f"{self.group}:{origin_message_id(message)}"


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """What an orderly listener can set for its batch."""

    message_queue: MessageQueue
    group: str = ""
    auto_commit: bool = True
    suspend_current_queue_time_millis: int = -1
    """-1: the consumer's own setting (rules 9.3)."""

    def idempotency_key(self, message: MessageExt) -> str:
        """As in ``ConsumeConcurrentlyContext``."""
        return f"{self.group}:{origin_message_id(message)}"


class ConsumeFailed(Exception):
    """A listener raises it to say that messages before ``index`` succeeded and the one at ``index`` did not."""

    def __init__(self, index: int, cause: BaseException | str = "") -> None:
        super().__init__(text_of(cause) if isinstance(cause, BaseException) else str(cause))
        self.index = index
        self.cause = cause


# --- loading ---------------------------------------------------------------------------------------------------------


class ListenerKind(StrEnum):
    MESSAGE = "consume_message"
    BATCH = "consume_batch"


@dataclass(frozen=True, slots=True)
class Listener:
    """A loaded listener."""

    kind: ListenerKind
    call: Callable[[Any, Any], Any]
    """The user's code, called with (messages, context) or (batch, context)."""
    columns: tuple[str, ...] | None
    """The columns that a batch listener reads, None for all."""
    name: str
    """``module:attribute``."""
    version: str = ""
    """The listener's attribute ``version``; without one ``sha256:`` and 32 hex digits of its module's file; "" if it has
    no file."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values of its environment that no error text may contain."""


def load_listener(name: str, env: Mapping[str, str] | None = None) -> Listener:
    """Import "module:attribute".

    The attribute is a function, or an object or a class (called without arguments) with one of the two methods. A
    function takes Arrow batches if its name is ``consume_batch`` or it has an attribute ``columns``, else messages.

    ``env``: the environment with its secrets, also those that it sets itself; by default that of this process.

    Raises ListenerError, also when the module or the class tries to end the process.
    """
    env = os.environ if env is None else env
    try:
        with OwnProcess():
            return replace(_loaded(name), secrets=secret_values(env))
    except BaseException as error:
        if is_stop(error):
            raise
        reason = (
            str(error) if type(error) is ListenerError else f"listener {name} cannot be loaded: {type_and_text(error)}"
        )
        raise ListenerError(cleaned(reason, secret_values(env))) from error


def refuse_unlisted(name: str, packages: Sequence[str]) -> None:
    """Raise ListenerError unless the listener's module is in one of the packages. Without packages each is allowed."""
    module = name.partition(":")[0]
    if packages and not any(module == package or module.startswith(f"{package}.") for package in packages):
        raise ListenerError(
            f"listener {name} is not allowed here: RMQ_LISTENER_PACKAGES has {', '.join(packages)}. Nothing of it was imported"
        )


def listener_name(listener: str | Callable[..., Any]) -> str:
    """The name with which ``load_listener`` finds a function or a class of a module; a name is returned as it is.

    Raises WrongUse for what has no such name: a lambda, a function inside another one, an object.
    """
    if isinstance(listener, str):
        return listener
    module, path = getattr(listener, "__module__", None), getattr(listener, "__qualname__", "")
    attribute: Any = sys.modules.get(module or "")
    for part in path.split("."):
        attribute = getattr(attribute, part, None)
    if attribute is not listener:
        raise WrongUse(
            f"the listener {quoted(listener)} cannot be found by a name: give a function or a class of a module, or "
            "its name, like shop.listeners:Orders"
        )
    return f"{module}:{path}"


def _loaded(name: str) -> Listener:
    attribute = _attribute(name)
    if inspect.isclass(attribute):
        try:
            attribute = attribute()
        except Exception as error:
            raise ListenerError(f"listener {name}: {attribute.__name__}() fails: {type_and_text(error)}") from error
    kind, function = _shape(name, attribute)
    return Listener(
        kind, _with_context(name, kind, function), _columns(name, attribute), name, _version(name, attribute)
    )


def _version(name: str, attribute: Any) -> str:
    """Which version of the listener this is, with letters, digits, and ``. _ + : -`` only."""
    if (version := getattr(attribute, "version", None)) is not None and not callable(version):
        return re.sub(r"[^\w.+:-]", "_", str(version), flags=re.ASCII)[:_MOST_VERSION]
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    try:
        return f"sha256:{sha256(Path(file).read_bytes()).hexdigest()[:32]}" if file else ""
    except OSError:  # in an archive, or deleted since
        return ""


def _attribute(name: str) -> Any:
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ListenerError(f"listener {name!r}: write it as module:attribute, like shop.listeners:Orders")
    try:
        attribute = importlib.import_module(module_name)
    except Exception as error:
        raise ListenerError(
            f"listener {name}: module {module_name} cannot be imported: {type_and_text(error)}"
        ) from error
    for part in path.split("."):
        if not hasattr(attribute, part):
            raise ListenerError(f"listener {name}: {module_name} has no attribute {path}")
        attribute = getattr(attribute, part)
    return attribute


def _shape(name: str, attribute: Any) -> tuple[ListenerKind, Callable[..., Any]]:
    methods = {kind: getattr(attribute, kind) for kind in ListenerKind if hasattr(attribute, kind)}
    if len(methods) == 2:
        raise ListenerError(f"listener {name} has both consume_message and consume_batch; keep one of them")
    if methods:
        kind, method = methods.popitem()
        if not callable(method):
            raise ListenerError(f"listener {name}: its {kind} is a {type(method).__name__} and cannot be called")
        return kind, method
    if not callable(attribute):
        raise ListenerError(
            f"listener {name} is a {type(attribute).__name__}: neither a function nor an object with consume_message "
            "or consume_batch"
        )
    on_batches = getattr(attribute, "__name__", "") == ListenerKind.BATCH or hasattr(attribute, "columns")
    return (ListenerKind.BATCH if on_batches else ListenerKind.MESSAGE), attribute


def _with_context(name: str, kind: ListenerKind, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The function with two parameters; a batch listener may leave out the context."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C, without a signature
        return function
    if _takes(signature, 2):
        return function
    if kind is ListenerKind.BATCH and _takes(signature, 1):
        return lambda batch, context: function(batch)
    parameters, advice = "(batch) or (batch, context)", ""
    if kind is ListenerKind.MESSAGE:
        parameters = "(msgs, context)"
        advice = ". A batch listener is named consume_batch, or has the attribute columns"
    raise ListenerError(f"listener {name}: {kind} must take {parameters}, it takes {signature}{advice}")


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _columns(name: str, attribute: Any) -> tuple[str, ...] | None:
    columns = getattr(attribute, "columns", None)
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ListenerError(f"listener {name}: columns must be a tuple of column names, it is {columns!r}")
    chosen = tuple(columns)
    if not chosen or not all(isinstance(column, str) for column in chosen):
        raise ListenerError(f"listener {name}: columns must name at least one column by text, it is {columns!r}")
    names = tuple(str.__str__(column) for column in chosen)
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise ListenerError(
            f"listener {name}: columns must name each column once, it names {', '.join(twice)} more often: it is {names}"
        )
    return names


# --- what the answer means -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What the listener's answer means for one message."""

    acked: bool
    delay_level: int = 0
    """Of the retry, if the message was not acked."""
    error_type: str | None = None
    """At most 256 bytes of UTF-8, ``cleaned``; None when the listener did not raise."""
    error_text: str | None = None
    """At most 4 KiB of UTF-8, ``cleaned``; None when the listener did not raise."""


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

    - an exception: everything from the failed message on is retried;
    - None means RECONSUME_LATER, also among several statuses;
    - one status: with RECONSUME_LATER all fail; with CONSUME_SUCCESS the messages behind ``context.ack_index``;
    - several statuses: one for each message, and ``ack_index`` is not used.

    Raises ListenerError for an answer that is no status, too many or too few of them, an ``ack_index`` below -1 unless
    the batch is empty (an IndexOutOfBoundsException that stops RocketMQ's queue), a number of the context that is no
    Java ``int``, or the index of a ConsumeFailed outside the batch.
    """
    level = java_int("delay_level_when_next_consume", context.delay_level_when_next_consume)
    later = Answer(False, level)
    if error is not None:
        return _judge_error(answer, n, failure(error, level, secrets), error, all_or_nothing)
    if answer is None or isinstance(answer, str):
        if status_of(answer) is ConsumeConcurrentlyStatus.RECONSUME_LATER:
            return (later,) * n
        ack_index = java_int("ack_index", context.ack_index)
        if ack_index < -1 and n:
            raise ListenerError(
                f"ack_index {ack_index} on {context.message_queue}: it must be -1 (nothing succeeded) or more"
            )
        acked = min(max(ack_index + 1, 0), n)
        return (ACKED,) * acked + (later,) * (n - acked)
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
    """The status of a member or its name, None for any other value. No ``__eq__`` of the listener is called."""
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


def _judge_error(answer: Any, n: int, failed: Answer, error: BaseException, all_or_nothing: bool) -> tuple[Answer, ...]:
    if not isinstance(error, ConsumeFailed):
        return (failed,) * n
    k = java_int("the index of ConsumeFailed", error.index)
    if not 0 <= k < n:
        raise ListenerError(f"ConsumeFailed names message {k} of a batch of {n}") from error
    if all_or_nothing:
        return (failed,) * n
    later = Answer(False, failed.delay_level)
    known = list(answer or ())[:k]
    before = [ACKED if ok else later for ok in _statuses(known, len(known))] + [ACKED] * (k - len(known))
    behind = Answer(
        False, failed.delay_level, NOT_REACHED, f"message {k} of the batch failed first: {failed.error_type}"
    )
    return (*before, failed, *(behind,) * (n - k - 1))


def failure(error: BaseException, level: int = 0, secrets: Sequence[str] = ()) -> Answer:
    """The answer for a message that failed with an exception; for a ConsumeFailed with its cause."""
    cause = error.cause if isinstance(error, ConsumeFailed) and isinstance(error.cause, BaseException) else error
    kind = type(cause).__name__.replace("\n", " ")
    return Answer(False, level, cleaned(kind, secrets, NAME_BYTES), cleaned(text_of(cause), secrets))


_MOST_QUOTED = 200


def quoted(value: Any) -> str:
    """``repr`` of a value, cut to ``_MOST_QUOTED`` characters."""
    try:
        text = repr(value)
        return text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 3]}..."
    except BaseException as error:
        if is_stop(error):
            raise
        return f"a {type(value).__name__} that cannot be shown"


def java_int(what: str, value: Any) -> int:
    """The value as a Java ``int``. Raises ListenerError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ListenerError(f"{what} must be a whole number, it is {quoted(value)}")
    number = int.__index__(value)
    if not INT_MIN <= number <= INT_MAX:
        raise ListenerError(f"{what} must be a number in [{INT_MIN}, {INT_MAX}], it is {quoted(value)}")
    return number


def type_and_text(error: BaseException) -> str:
    """``type: text`` of an exception."""
    return f"{type(error).__name__:.{NAME_BYTES}}: {text_of(error)}"
