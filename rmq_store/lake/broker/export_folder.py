"""Where the DAGs export offsets to: a folder or ``s3://bucket/prefix``, with a folder for each shard and broker.

The rules of broker_files/offsets_to_broker.py work on files. For an S3 prefix they work on copies of the objects, and what
they change is written back: the previous file as ``.bak`` first, each object as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from rmq_store.broker_files.offsets_to_broker import (
    DELAY_OFFSETS,
    How,
    OffsetForm,
    OffsetWrite,
    planned_writes,
    write_both,
)
from rmq_store.errors import BadData, WrongUse
from rmq_store.lake.broker.export import OffsetsExport
from rmq_store.lake.table.object_store import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedExport:
    """What a merge did to the two files of a broker."""

    file: str
    """The path or address of ``consumerOffset.json``, or of the file that the broker reads in its place."""
    changed: bool
    lowered: int
    """Offsets that were further on before."""
    notes: tuple[str, ...]


def merge_export(
    folder: str,
    shard_name: str,
    broker_name: str,
    export: OffsetsExport,
    *,
    root_of: Callable[[str], Root] = Root.parse,
) -> MergedExport:
    """Merge the offsets into ``consumerOffset.json`` and ``delayOffset.json`` of a broker below ``folder``, and write those
    that change; the file before stays as ``.bak``.

    ``root_of``: the prefix of an address, with the keys to use.

    Raises WrongUse and BadData as ``planned_writes`` and ``write_both``, StoreUnusable for a prefix that cannot be used.
    """
    place = f"{folder.rstrip('/')}/{shard_name}/{_folder_of(broker_name)}"
    if not place.startswith("s3://"):
        return _merged(Path(place), export, str)
    root = root_of(place)
    with TemporaryDirectory(prefix="rmq-export-") as scratch:
        copy = Path(scratch)

        def named(text: object) -> str:
            return str(text).replace(scratch, place)

        with _written_back(root, copy, (export.form, DELAY_OFFSETS)):
            try:
                return _merged(copy, export, named)
            except (BadData, WrongUse) as error:
                raise type(error)(named(error)) from error


def _merged(folder: Path, export: OffsetsExport, named: Callable[[object], str]) -> MergedExport:
    """``named``: the text for a user, who knows the folder under another name."""
    file = folder / export.form.name
    writes: tuple[OffsetWrite, ...] = planned_writes(
        file, export.offsets, export.delays, export.version, How.UPDATE, export.form
    )
    return MergedExport(
        file=named(file),
        changed=any(write_both(writes)),
        lowered=sum(len(write.lowered) for write in writes),
        notes=tuple(named(note) for write in writes for note in write.notes),
    )


@contextmanager
def _written_back(root: Root, copy: Path, forms: Iterable[OffsetForm]) -> Iterator[None]:
    """The broker's objects as files in ``copy``. At the end of the block, also after an error, those that changed are
    written back."""
    before: dict[str, bytes | None] = {}
    for form in forms:
        for name in (f"{form.name}.bak", form.name):  # in the order of the writes
            before[name], _ = root.look_at(name)
            if (content := before[name]) is not None:
                (copy / name).write_bytes(content)
    try:
        yield
    finally:
        for name, content in before.items():
            file = copy / name
            if file.exists() and (now := file.read_bytes()) != content:
                root.replace(name, now)


def _folder_of(broker_name: str) -> str:
    """The broker's folder among the exports. A name of dots only would be another folder."""
    name = quote(broker_name, safe="")
    return name if name.strip(".") else name.replace(".", "%2E")
