"""A folder whose calls fail: the calls of Python to the operating system, counted, and one of them refused.

Files that pyarrow opens for ``Root.open_file`` count too. What the Delta library and DuckDB read by themselves does not.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.lake.table.object_store import Root

CHANGES = frozenset({"link", "rename", "mkdir", "unlink", "write", "fsync", "create"})
"""Calls that change the folder; the others read."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call, and its number, from 0 on."""

    number: int
    name: str
    path: str
    """Below the folder."""

    @property
    def changes(self) -> bool:
        return self.name in CHANGES

    def __str__(self) -> str:
        return f"{self.number} {self.name} {self.path or '.'}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A call raises OSError. ``after``: when it has taken effect; of a write before it, a half has."""

    number: int
    after: bool = False


Decide = Callable[[Call], Failure | None]


def nth(number: int, error: int, *, after: bool = False) -> Decide:
    """Only this call fails."""
    return lambda call: Failure(error, after) if call.number == number else None


def changes_from(number: int, error: int) -> Decide:
    """This call fails, and each change behind it."""
    return lambda call: Failure(error) if call.number == number or (call.number > number and call.changes) else None


class FaultyFolder:
    """While ``installed``, ``calls`` has the calls below ``folder``."""

    def __init__(self, folder: Path, decide: Decide = lambda call: None) -> None:
        self.calls: list[Call] = []
        self._folder = os.fspath(folder)
        self._decide = decide

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            real_open, real_os_open, real_fsync, readlink = io.open, os.open, os.fsync, os.readlink
            for name in ("stat", "unlink", "rename", "mkdir", "listdir", "scandir"):
                patch.setattr(os, name, self._wrapped(name, getattr(os, name), 0))
            patch.setattr(os, "link", self._wrapped("link", os.link, 1))

            def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
                path = self._below(file)
                if path is None:
                    return real_open(file, mode, *arguments, **options)
                name = "create" if {"w", "x", "a", "+"} & set(mode) else "open"
                handle = self._called(name, path, lambda: real_open(file, mode, *arguments, **options))
                return _File(self, path, handle)

            def os_opened(file: Any, flags: int, *arguments: Any, **options: Any) -> int:
                path = self._below(file)
                if path is None:
                    return real_os_open(file, flags, *arguments, **options)
                name = "create" if flags & os.O_CREAT else "open"
                descriptor: int = self._called(name, path, lambda: real_os_open(file, flags, *arguments, **options))
                return descriptor

            def synced(descriptor: int) -> None:
                path = self._below(readlink(f"/proc/self/fd/{descriptor}"))
                if path is None:
                    real_fsync(descriptor)
                else:
                    self._called("fsync", path, lambda: real_fsync(descriptor))

            def open_file(root: Root, relative: str, size: int | None = None) -> pa.NativeFile:
                return pa.PythonFile(opened(Path(root.location, relative), "rb"), mode="r")

            patch.setattr(io, "open", opened)
            patch.setattr(builtins, "open", opened)
            patch.setattr(os, "open", os_opened)
            patch.setattr(os, "fsync", synced)
            patch.setattr(Root, "open_file", open_file)
            yield

    def _wrapped(self, name: str, real: Callable[..., Any], position: int) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            path = self._below(arguments[position]) if len(arguments) > position else None
            if path is None:
                return real(*arguments, **options)
            return self._called(name, path, lambda: real(*arguments, **options))

        return called

    def _below(self, file: Any) -> str | None:
        """The path below the folder; None for another file."""
        if not isinstance(file, str | os.PathLike):
            return None
        path = os.fspath(file)
        if path != self._folder and not path.startswith(f"{self._folder}/"):
            return None
        return path[len(self._folder) + 1 :]

    def _called(self, name: str, path: str, do: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        call = Call(len(self.calls), name, path)
        self.calls.append(call)
        failure = self._decide(call)
        if failure is None:
            return do()
        if failure.after:
            result = do()
            if name in ("open", "create"):
                os.close(result) if isinstance(result, int) else result.close()
        elif half is not None:
            half()
        raise OSError(failure.number, os.strerror(failure.number), os.path.join(self._folder, path))


class _File:
    """An open file whose reads and writes are calls too."""

    def __init__(self, folder: FaultyFolder, path: str, real: Any) -> None:
        self._folder = folder
        self._path = path
        self._real = real

    def read(self, *arguments: Any) -> Any:
        return self._folder._called("read", self._path, lambda: self._real.read(*arguments))

    def write(self, content: Any) -> Any:
        half = lambda: self._real.write(content[: len(content) // 2])  # noqa: E731
        return self._folder._called("write", self._path, lambda: self._real.write(content), half)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __del__(self) -> None:
        self._real.close()  # pyarrow's PythonFile does not

    def __iter__(self) -> Any:
        return iter(self._real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
