"""What a user may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a user may do, as the host of the application decides it."""

    dependency: Callable[..., Any]
    """A dependency of FastAPI. It raises HTTPException with status 401 without a login, and 403 for a user without access."""
    may_edit: Callable[[Request, str], bool]
    """Whether the user of a request may trigger runs of the DAG."""
