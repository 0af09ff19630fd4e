"""Request ids and actors of commands and jobs, and the combined status of a request's parts."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from datetime import date
from enum import StrEnum
from typing import Any

from rmq_store.commit.ctl import Actor
from rmq_store.errors import WrongUse
from rmq_store.utils.arguments import check_types
from rmq_store.utils.host import Host, day_of
from rmq_store.utils.redaction import secret_values, without_secrets
from rmq_store.utils.times import format_time


class Status(StrEnum):
    """What became of a request: the ``status`` of every report, and of what a command answers as JSON."""

    COMMITTED = "committed"
    """At least one commit was made now."""
    ALREADY_COMMITTED = "already_committed"
    """The same request was committed before; nothing was done now."""
    EMPTY = "empty"
    """There was nothing to do; no commit was made."""
    DRY_RUN = "dry_run"
    """Only the plan was made."""
    UNCHANGED = "unchanged"
    """An import found nothing new in the broker's files."""


_REQUEST_ID = re.compile(r"(\d{4}-\d\d-\d\d)(?!\d).*", re.ASCII | re.DOTALL)
_NOT_ALLOWED = re.compile(r"[^\x20-\x7e]")
_LONGEST_REQUEST_ID = 250
_PART = re.compile(r"~\d+\Z", re.ASCII)
"""The end of a ``part_id``."""


def request_id_of(given: str | None, verb: str, host: Host) -> str:
    """The request's id: ``given``, which must begin with its UTC date and be printable ASCII, else a new one,
    ``YYYY-MM-DD-verb-random``.

    The log is searched for earlier attempts from about that date on, so a date in the future is refused: it is a typing
    error or a wrong clock. So is the id of a part (``part_id``), because its request would take this one for that part.
    Raises WrongUse.
    """
    today = day_of(host.now_ms())
    if given is None:
        return f"{today}-{verb}-{host.entropy(8).hex()}"
    matched = _REQUEST_ID.fullmatch(given)
    example = f"for example {today}-{verb}-1"
    if len(given) > _LONGEST_REQUEST_ID:
        raise WrongUse(f"the request id has {len(given)} characters; it may have {_LONGEST_REQUEST_ID}, {example}")
    if not matched or not _is_date(matched[1]):
        raise WrongUse(f"the request id {given!r} must begin with its UTC date, YYYY-MM-DD, {example}")
    if wrong := _NOT_ALLOWED.search(given):
        raise WrongUse(
            f"the request id {given!r} contains {wrong[0]!r}: it may have ASCII letters, digits, punctuation and spaces only, "
            f"{example}"
        )
    if matched[1] > today:
        raise WrongUse(f"the request id {given!r} begins with a date in the future; today is {today} in UTC, {example}")
    refuse_part("the request id", given)
    return given


def refuse_part(what: str, given: str) -> None:
    """Raise WrongUse for an id that ends as the id of a part (``part_id``): another request would take its commit for that
    part. ``what``: whose id it is, for the error."""
    if part := _PART.search(given):
        raise WrongUse(
            f"{what} {given!r} ends with {part[0]}, as the id of a part of another request does: choose one that ends otherwise"
        )


def refuse_other_request(request_id: str, committed: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Raise WrongUse when the parameters ``requested`` now differ from those ``committed`` under this request id.

    Without it the caller would get the report of the other request. Only names in ``requested`` are compared:
    ``committed`` also has facts that were found while the request ran.
    """
    if different := differences(committed, requested):
        raise WrongUse(
            f"request id {request_id} was already used with different parameters ({different}). "
            "Nothing was changed; use a new id."
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs of the names in ``now``, in words: "topic a; now topic b". Empty: nothing. Values are those of JSON."""
    differing = [name for name, value in now.items() if before.get(name) != value]
    sides = (", ".join(_shown(name, side.get(name)) for name in differing) for side in (before, now))
    return "; now ".join(sides) if differing else ""


def _shown(name: str, value: Any) -> str:
    """A parameter in an error; ``until_ms`` and the like as a time."""
    if value is None or value == []:
        return f"no {name.removesuffix('_ms')}"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return f"{name[:-3]} {format_time(value)}" if name.endswith("_ms") else f"{name} {value}"


def part_id(request_id: str, number: int) -> str:
    """The id of the commit with this number, from 1, of a request that needs several."""
    return request_id if number == 1 else f"{request_id}~{number}"


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def client_ids_of(text: str | None) -> tuple[str, ...]:
    """``c1,c2,c3``: the ids of the consumers that share a group's work; none for None. Raises WrongUse."""
    if text is None:
        return ()
    client_ids = tuple(client_id.strip() for client_id in text.split(","))
    if "" in client_ids or len(set(client_ids)) < len(client_ids):
        raise WrongUse(f"invalid list of client ids {text!r}: write each id once, separated by commas, like c1,c2,c3")
    return client_ids


def reason_of(given: str, dry_run: bool) -> str:
    """The operator's reason, without the secrets of the environment. A dry run may leave it out. Raises WrongUse for a text
    that cannot be recorded."""
    check_types(str, reason=given)
    return without_secrets(given, secret_values(os.environ)) or ("dry run" if dry_run else "")


def actor_of(given: str | None = None) -> Actor:
    """The OS user, or the ``given`` name, which is not verified. Raises WrongUse for a name that says nothing, or cannot be
    recorded."""
    check_types(str | None, actor=given)
    if given is not None:
        if not given.strip():
            raise WrongUse("the actor is blank: leave it out, or name who makes the request")
        return Actor(given, "unverified")
    user_id = os.getuid()
    try:
        return Actor(pwd.getpwuid(user_id).pw_name, "os")
    except KeyError:  # a container's user without an entry
        return Actor(f"uid-{user_id}", "os")


def overall(statuses: Iterable[str]) -> Status:
    """The combined status of a request's parts: dry_run, else committed, else already_committed, else empty."""
    present, order = set(statuses), (Status.DRY_RUN, Status.COMMITTED, Status.ALREADY_COMMITTED)
    return next((status for status in order if status in present), Status.EMPTY)
