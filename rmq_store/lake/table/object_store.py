"""Roots: a folder or ``s3://bucket/prefix``, read and written by the same calls.

A ``Root`` is a value: it can be hashed, compared and sent to a worker. It gives delta-rs and pyarrow what they need
to work below it, and does itself what neither can: create an object only if it is not there yet, and read the store's own
clock.

Names are relative to the root and use ``/``. An object that is not there is a FileNotFoundError; a root that cannot
be used as it is (folder not writable, bucket missing, wrong credentials, endpoint silent) is a StoreUnusable. What is in
the place of an object of a folder and is no file, such as a FIFO, is a MissingFile, before it is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

from rmq_store.commit.append import PutAnswer
from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.table import local_files, s3
from rmq_store.lake.table.range_file import RangeFile
from rmq_store.lake.table.store_errors import explained, is_damage
from rmq_store.maintain.orphans import is_temporary
from rmq_store.settings.private_files import umask_of
from rmq_store.utils.host import Host, epoch_ms, random_name
from rmq_store.utils.small_file import check_is_file

_S3 = "s3://"

TAIL_BYTES = 64 << 10
"""So many bytes at the end of a data file are read first, in one request. A file that has no more is in memory then."""


@dataclass(frozen=True, slots=True)
class Put:
    """The answer to one attempt to create an object."""

    answer: PutAnswer
    at_ms: int = 0
    """The time of the answer by the store's clock, UTC ms; 0 without an answer."""
    error: Exception | None = None


def _is_name(text: str) -> bool:
    """Whether the operating system has a name of it: not of an empty text, U+0000, or half a character."""
    try:
        return b"\0" not in (os.fsencode(text) or b"\0")
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class Root:
    """Where a store or a broker's files live. Make one with ``Root.parse``.

    ``location`` is an absolute folder, or ``s3://bucket[/prefix]`` without a slash at the end.
    """

    location: str
    _options: s3.Options = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str, env: Mapping[str, str] | None = None) -> Root:
        """A root from a user's text; S3 settings come from the usual ``AWS_*`` variables of ``env``.

        Raises WrongUse for a text that can name nothing, another scheme, credentials in it, a part ``.`` or ``..`` in S3, or
        a relative folder where the current one was deleted; StoreUnusable when S3's region is not known.
        """
        if not _is_name(text) or ("://" in text and not text.startswith(_S3)):
            raise WrongUse(f"root {text!r} is neither a folder nor s3://bucket/prefix: give one of the two")
        if not text.startswith(_S3):
            try:
                return cls(os.path.abspath(Path(text).expanduser()))
            except RuntimeError as error:
                raise WrongUse(
                    f"root {text!r} begins with ~, and there is no such user's folder: give an absolute path"
                ) from error
            except FileNotFoundError as error:
                raise WrongUse(
                    f"root {text!r} is relative to the current folder, which was deleted: give an absolute path"
                ) from error
        bucket, _, prefix = text.removeprefix(_S3).partition("/")
        if not {":", "@"}.isdisjoint(bucket):  # the message must not contain the secret
            raise WrongUse(
                "the root's bucket must not contain ':' or '@': write s3://bucket/prefix, and give the keys with "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if not bucket:
            raise WrongUse(f"root {text!r} has no bucket: write s3://bucket/prefix")
        if not {".", ".."}.isdisjoint([bucket, *prefix.split("/")]):
            raise WrongUse(
                f"root {text!r} has a part '.' or '..', which some S3 servers resolve and others take for a name: give the "
                "prefix without it"
            )
        location = "/".join(filter(None, [_S3 + bucket, prefix.strip("/")]))
        return cls(location, s3.options_from(os.environ if env is None else env))

    def check_utf8(self) -> None:
        """Raises WrongUse for a folder whose path is not UTF-8: a dataset of pyarrow cannot open its files."""
        try:
            self.location.encode()
        except UnicodeEncodeError as error:
            raise WrongUse(
                f"the path {self.location!r} is not UTF-8, or the locale of this process is not: rename the folder, or set "
                "LC_ALL=C.UTF-8"
            ) from error

    # --- for delta-rs and DuckDB ---

    @property
    def is_local(self) -> bool:
        return not self.location.startswith(_S3)

    @property
    def storage_options(self) -> dict[str, str]:
        """delta-rs options; empty for a folder. Conditional put, which a commit needs, is delta-rs's default."""
        return dict(self._options)

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """pyarrow's file system and the path of this root in it, for a dataset that reads files by itself."""
        if self.is_local:
            return pyarrow.fs.LocalFileSystem(), self.location
        return s3.arrow_filesystem(self._options), self.location.removeprefix(_S3)

    def uri_of(self, relative: str) -> str:
        """Address of an object or table, as delta-rs takes it."""
        return "/".join(filter(None, [self.location, _clean(relative)]))

    # --- reading ---

    def read(self, relative: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes ``[begin, end)``, to the last one when ``end`` is None; fewer when the object ends before."""
        with self._explained(f"read {relative}"):
            if end is not None and end <= begin:
                return b""
            if self.is_local:
                return local_files.read(self._path(relative), begin, end)
            return s3.get(self._options, self._bucket, self._key(relative), begin, end)

    def tail(self, relative: str, most: int) -> tuple[bytes, int]:
        """The last ``most`` bytes, or all where there are fewer, and the size in bytes. One request in S3."""
        with self._explained(f"read the end of {relative}"):
            if self.is_local:
                path = self._path(relative)
                size = path.stat().st_size
                return local_files.read(path, max(size - most, 0), size), size
            return s3.tail(self._options, self._bucket, self._key(relative), most)

    def open_file(self, relative: str, size: int | None = None) -> pa.NativeFile:
        """A data file, to be read in parts, inside ``reading``. ``size``: in bytes; where S3 has to be asked for it, the answer
        has the end of the file as well. Raises FileNotFoundError and StoreUnusable."""
        if self.is_local:
            with self._explained(f"read {relative}"):
                path = self._path(relative)
                check_is_file(path)  # opening a FIFO waits for its writer
                return pyarrow.fs.LocalFileSystem().open_input_file(os.fsencode(path))  # its name need not be UTF-8
        tail = b""
        if size is None:
            tail, size = self.tail(relative, TAIL_BYTES)
        if len(tail) == size:
            return pa.BufferReader(tail)
        return pa.PythonFile(RangeFile(partial(self.read, relative), size, tail), mode="r")

    def check_files(self, names: Iterable[str]) -> None:
        """Before a library opens local files by itself: raises MissingFile for one that is none, such as a FIFO, whose
        writer it would wait for. Whoever opens a file that is not there sees that. S3 has objects only, and is not asked."""
        if not self.is_local:
            return
        for name in names:
            try:
                check_is_file(f"{self.location}/{name}")
            except FileNotFoundError:
                continue
            except OSError:
                with self._explained(f"read {name}"):
                    raise

    @contextmanager
    def reading(self, relative: str) -> Iterator[None]:
        """Around what reads a file of ``open_file``: raises StoreUnusable for an error of the operating system. An error of the
        file's content (``is_damage``) stays as it is."""
        try:
            yield
        except OSError as error:
            if is_damage(error):
                raise
            with self._explained(f"read {relative}"):
                raise

    def size(self, relative: str) -> int:
        """Size in bytes."""
        with self._explained(f"read the size of {relative}"):
            if self.is_local:
                return self._path(relative).stat().st_size
            return int(s3.head(self._options, self._bucket, self._key(relative))["ContentLength"])

    def exists(self, relative: str) -> bool:
        try:
            self.size(relative)
        except FileNotFoundError:
            return False
        return True

    def names(self, most: int) -> list[str]:
        """Up to ``most`` names of objects and folders directly below the root, sorted; in a local folder all."""
        below = f"{self._key('')}/".lstrip("/")
        with self._explained("list the top level"):
            if self.is_local:
                return sorted(os.listdir(self.location)) if os.path.exists(self.location) else []
            keys = s3.names(self._options, self._bucket, below, most)
        return sorted(key.removeprefix(below).rstrip("/") for key in keys)

    def list(self, folder: str = "") -> list[tuple[str, int]]:
        """Names (relative to the root) and sizes in bytes of all objects below ``folder``, sorted; none if it is missing."""
        return [(name, size) for name, size, _ in self.list_dated(folder) if not is_temporary(name)]

    def list_dated(self, folder: str = "") -> Sequence[tuple[str, int, int]]:
        """As ``list``, with the times at which they were written, by the store's clock, UTC ms; and in a folder with what
        interrupted writes left."""
        with self._explained(f"list {folder or 'everything'}"):
            return sorted(self._list_local(folder) if self.is_local else self._list_s3(folder))

    # --- writing ---

    def create_exclusively(self, relative: str, content: bytes) -> bool:
        """Create the object unless it is there: of any number of racing callers exactly one gets True.

        The object appears with its whole content. Raises CommitOutcomeUnknown when the store did not answer, so that it is
        not known whether the object was created, and StoreUnusable when S3 says that it is there, and then that it is not.
        """
        with self._explained(f"create {relative}"):
            if self.is_local:
                return local_files.create(self._path(relative), content)
            return s3.create(self._options, self._bucket, self._key(relative), content)

    def make_private(self) -> None:
        """Make the folder of a new local root, which only its user may open unless ``RMQ_UMASK`` says otherwise. A folder that
        is there keeps its permissions."""
        if not self.is_local or os.path.exists(self.location):
            return
        folder = Path(self.location)
        with self._explained("create the folder"), local_files.making(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o777 & ~umask_of()
            try:
                folder.mkdir(mode)
            except FileExistsError:  # by another process meanwhile
                return
            folder.chmod(mode)  # whatever the umask of this process is

    def replace(self, relative: str, content: bytes) -> None:
        """Write the object, also over an older one. It always has its old or its new content, as a whole."""
        with self._explained(f"write {relative}"):
            if self.is_local:
                local_files.replace(self._path(relative), content)
            else:
                s3.put(self._options, self._bucket, self._key(relative), content)

    def write_file(self, relative: str, content: pa.Buffer) -> None:
        """Write a data file under a new name. Raises StoreUnusable, in a folder OSError; no part of the file is there then, but
        a late one of S3's."""
        if self.is_local:
            local_files.write(Path(self.location), self._path(relative), memoryview(content))
            return
        with self._explained(f"write {relative}"):
            s3.put_file(self._options, self._bucket, self._key(relative), content)

    # --- the log: with the store's time of each answer, UTC ms ---

    def look_at(self, relative: str) -> tuple[bytes | None, int]:
        """The content of the object, None when it is absent, and the time of the answer."""
        with self._explained(f"read {relative}"):
            if not self.is_local:
                return s3.look_at(self._options, self._bucket, self._key(relative))
            try:
                content = local_files.read(self._path(relative), 0, None)
            except (FileNotFoundError, NotADirectoryError):
                content = None
            return content, self.local_time_ms()

    def put_once(self, relative: str, content: bytes) -> Put:
        """Create the object, only if it is absent, in one request that is not repeated. Raises nothing of the store: an
        error is part of the answer."""
        if self.is_local:
            answer, refusal = local_files.create_once(self._path(relative), content)
            return Put(answer, self.local_time_ms(), refusal)
        answer, at_ms, error = s3.put_once(self._options, self._bucket, self._key(relative), content)
        if error is None:
            return Put(answer, at_ms)
        try:
            with self._explained(f"create {relative}"):
                raise error
        except (StoreUnusable, FileNotFoundError) as refusal:
            return Put(answer, at_ms, refusal)

    def names_in(self, folder: str, after: str = "") -> tuple[Sequence[str], int]:
        """The names of the objects directly in ``folder`` that are greater than ``after``, sorted, and the time of the
        answer. No names when the folder is missing."""
        with self._explained(f"list {folder}"):
            if not self.is_local:
                return s3.names_in(self._options, self._bucket, f"{self._key(folder)}/", after)
            at_ms = self.local_time_ms()
            try:
                names = os.listdir(self._path(folder))
            except (FileNotFoundError, NotADirectoryError):
                names = []
            return sorted(name for name in names if name > after), at_ms

    def modified_ms(self, relative: str) -> int:
        """When the object was written, by the store's clock."""
        with self._explained(f"read the age of {relative}"):
            if self.is_local:
                return int(self._path(relative).stat().st_mtime * 1000)
            answer = s3.head(self._options, self._bucket, self._key(relative))
            return int(answer["LastModified"].timestamp() * 1000)

    @staticmethod
    def local_time_ms() -> int:
        """The clock for a folder."""
        return epoch_ms()

    # --- the rest ---

    def delete(self, relative: str) -> None:
        """Delete the object, if it is there."""
        with self._explained(f"delete {relative}"):
            if self.is_local:
                self._path(relative).unlink(missing_ok=True)
            else:
                s3.delete_all(self._options, self._bucket, [self._key(relative)])

    def delete_all(self, names: Sequence[str]) -> None:
        """Delete objects, in this order, those that are there."""
        if self.is_local:
            for name in names:
                self.delete(name)
            return
        with self._explained("delete objects"):
            s3.delete_all(self._options, self._bucket, [self._key(name) for name in names])

    # --- the store itself ---

    def server_time_ms(self, host: Host) -> int:
        """The clock of the store, UTC ms: of the S3 server (whole seconds; from an answer of the last minute if there is
        one), of ``host`` for a folder."""
        if self.is_local:
            return host.now_ms()
        return self.recent_time_ms() or self._s3_time_ms()

    def recent_time_ms(self) -> int | None:
        """The clock of the store, UTC ms, without a request; None when it has not answered within the last minute."""
        return self.local_time_ms() if self.is_local else s3.recent_time_ms(self._options)

    def check_reachable(self) -> None:
        """Raises StoreUnusable when the root cannot be reached or the credentials are refused. Writes nothing."""
        if not self.is_local:
            self._s3_time_ms()
        elif os.path.exists(self.location) and not os.path.isdir(self.location):
            raise StoreUnusable(f"{self.location} is a file, not a folder: choose another root")

    def check_exclusive_create(self) -> None:
        """Raises StoreUnusable unless this root can be written and of two creates of one name exactly one succeeds.

        Every commit needs that, and some S3-compatible stores ignore the condition.
        """
        self.check_reachable()
        probe = f"_probe/{random_name()}"
        answers = [self.create_exclusively(probe, content) for content in (b"first", b"second")]
        stored = self.read(probe)
        self.delete(probe)
        if answers != [True, False] or stored != b"first":
            raise StoreUnusable(
                f"{self.location} does not support 'create only if absent': two creates of one name answered {answers} "
                f"and left {stored!r}. Concurrent commits would overwrite each other there; use a store that supports "
                "If-None-Match."
            )

    # --- inside ---

    def _s3_time_ms(self) -> int:
        with self._explained("ask for the time"):
            return s3.time_ms(self._options, self._bucket)

    @property
    def _bucket(self) -> str:
        return self.location.removeprefix(_S3).partition("/")[0]

    def _key(self, relative: str) -> str:
        prefix = self.location.removeprefix(_S3).partition("/")[2]
        return "/".join(filter(None, [prefix, _clean(relative)]))

    def _path(self, relative: str) -> Path:
        return Path(self.location, _clean(relative))

    def _list_local(self, folder: str) -> Iterator[tuple[str, int, int]]:
        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):  # missing, or removed meanwhile
                raise error

        for parent, _, names in os.walk(self._path(folder), onerror=refuse):
            for name in names:
                path = Path(parent, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # removed meanwhile
                yield path.relative_to(self.location).as_posix(), status.st_size, int(status.st_mtime * 1000)

    def _list_s3(self, folder: str) -> Iterator[tuple[str, int, int]]:
        own, below = (f"{key}/" if key else "" for key in (self._key(""), self._key(folder)))
        for key, size, at_ms in s3.list_dated(self._options, self._bucket, below):
            yield key.removeprefix(own), size, at_ms

    def _explained(self, doing: str) -> AbstractContextManager[None]:
        return explained(f"cannot {doing} at {self.location}", self._options)


def _clean(relative: str) -> str:
    """The name, refused when it would leave the root."""
    if relative.startswith("/") or ".." in relative.split("/"):
        raise ValueError(f"{relative!r} is not a name below a root")
    return relative.rstrip("/")
