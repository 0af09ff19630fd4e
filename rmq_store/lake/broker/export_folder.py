"""Where the DAGs export offsets to: a folder or ``s3://bucket/prefix``, with a folder for each shard and broker.

The rules of broker_files/offsets_to_broker.py work on files. For an S3 prefix they work on copies of the objects, and what
they change is written back: the previous file as ``.bak`` first, each object as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from rmq_store.broker_files.export_lock import one_export
from rmq_store.broker_files.offsets_to_broker import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    LMQ_OFFSETS,
    How,
    OffsetWrite,
    planned_writes,
    write_both,
)
from rmq_store.errors import BadData, HeldByAnother, StaleAttempt, WrongUse
from rmq_store.lake.broker.export import OffsetsExport
from rmq_store.lake.table.object_store import Root

_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedExport:
    """What a merge did to the two files of a broker."""

    export: OffsetsExport
    """What was merged."""
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
    read: Callable[[], OffsetsExport],
    *,
    root_of: Callable[[str], Root] = Root.parse,
) -> MergedExport:
    """Merge the offsets into ``consumerOffset.json`` and ``delayOffset.json`` of a broker below ``folder``, and write those
    that change; the file before stays as ``.bak``.

    ``read`` reads the offsets from the store. Of exports at once none puts older offsets over newer ones: in a folder one runs
    at a time, and in S3 the offsets are read again where the objects were replaced meanwhile. ``root_of``: the prefix of an
    address, with the keys to use.

    Raises WrongUse and BadData as ``planned_writes`` and ``write_both``, StoreUnusable for a prefix that cannot be used,
    HeldByAnother where another export to the files runs, or others replaced the objects each time.
    """
    place = f"{folder.rstrip('/')}/{shard_name}/{_folder_of(broker_name)}"
    if not place.startswith("s3://"):
        with one_export(Path(place, CONSUMER_OFFSETS.name)):
            return _merged(Path(place), read(), str)
    root = root_of(place)
    for _ in range(_TRIES):
        with suppress(StaleAttempt):
            return _merged_objects(root, place, read)
    raise HeldByAnother(
        f"other exports replaced the files in {place} while this one ran, {_TRIES} times: wait until they have ended, and "
        "export again. Nothing was written"
    )


def _merged_objects(root: Root, place: str, read: Callable[[], OffsetsExport]) -> MergedExport:
    """Raises StaleAttempt when the objects were replaced while this export ran."""
    with TemporaryDirectory(prefix="rmq-export-") as scratch:
        copy = Path(scratch)

        def named(text: object) -> str:
            return str(text).replace(scratch, place)

        before = {name: root.look_at(name)[0] for name in _OBJECTS}
        for name, content in before.items():
            if content is not None:
                (copy / name).write_bytes(content)
        export = read()
        try:
            merged = _merged(copy, export, named)
        except (BadData, WrongUse) as error:
            _write_back(root, copy, before)  # what was changed before the error
            raise type(error)(named(error)) from error
        _write_back(root, copy, before)
        return merged


def _merged(folder: Path, export: OffsetsExport, named: Callable[[object], str]) -> MergedExport:
    """``named``: the text for a user, who knows the folder under another name."""
    file = folder / export.form.name
    writes: tuple[OffsetWrite, ...] = planned_writes(
        file, export.offsets, export.delays, export.version, How.UPDATE, export.form
    )
    return MergedExport(
        export=export,
        file=named(file),
        changed=any(write_both(writes)),
        lowered=sum(len(write.lowered) for write in writes),
        notes=tuple(named(note) for write in writes for note in write.notes),
    )


_OBJECTS = tuple(f"{form.name}{end}" for form in (CONSUMER_OFFSETS, LMQ_OFFSETS, DELAY_OFFSETS) for end in (".bak", ""))
"""In the order of the writes."""


def _write_back(root: Root, copy: Path, before: Mapping[str, bytes | None]) -> None:
    """Write the files in ``copy`` that have changed. Raises StaleAttempt when an object is not the one from ``before``."""
    files = {name: copy / name for name in _OBJECTS}
    after = {name: file.read_bytes() for name, file in files.items() if file.exists()}
    changed = {name: content for name, content in after.items() if content != before[name]}
    if changed and any(root.look_at(name)[0] != content for name, content in before.items()):
        raise StaleAttempt(f"the objects in {root.location} were replaced meanwhile; nothing was written")
    for name, content in changed.items():
        root.replace(name, content)


def _folder_of(broker_name: str) -> str:
    """The broker's folder among the exports. A name of dots only would be another folder."""
    name = quote(broker_name, safe="")
    return name if name.strip(".") else name.replace(".", "%2E")
