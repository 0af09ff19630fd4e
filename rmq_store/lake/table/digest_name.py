"""The names of files with the records of commits end with a digest of their bytes.

A record lists the digests of its commit's data files, and cannot have its own (docs/decisions/0018-digests.md).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_CHARACTERS = 32
"""Of 64 hexadecimal ones: 128 bits."""
_NAMED = re.compile(rf"kind=ctl/.*-([0-9a-f]{{{_CHARACTERS}}})\.parquet")


def with_digest(name: str, sha256: str) -> str:
    """A file name, without its ending, that has the digest."""
    return f"{name}-{sha256[:_CHARACTERS]}"


def named_digest(path: str) -> str | None:
    """The first characters of the SHA-256 that the name says; None for a file without, as of an earlier version."""
    match = _NAMED.fullmatch(path)
    return match[1] if match else None


def named_digests(paths: Iterable[str]) -> dict[str, str]:
    """``named_digest`` of those of the files that have one, by path."""
    return {path: digest for path in paths if (digest := named_digest(path))}


def change_of(path: str, content: bytes) -> str | None:
    """What has changed since the file was written, in words; None for nothing, and for a name without a digest."""
    named, sha256 = named_digest(path), hashlib.sha256(content).hexdigest()
    return f"SHA-256 {sha256}, by its name {named}..." if named and not sha256.startswith(named) else None
