"""Export of offsets to a broker's files: the lake's offsets, compared with and merged into what a file has (rules 3.1).

A committed offset counts. Where nothing was committed, the broker's own offset counts as the newest import observed it, and
never lowers a broker's file. While the broker owns its groups its file is at least as new, so there it raises nothing either. A
file that knows more than the export is overwritten only with ``--overwrite``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path

from rmq_store.broker_files import config_files
from rmq_store.broker_files.config_files import (
    EMPTY_TABLE,
    ConfigFile,
    DataVersion,
    OffsetTable,
    chosen_config,
    is_lmq_key,
    parse_consumer_offsets,
    parse_data_version,
    parse_delay_offsets,
    parse_lmq_offsets,
    split_key,
    write_config,
)
from rmq_store.broker_files.config_texts import consumer_offsets_text, delay_offsets_text, lmq_offsets_text
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.utils.small_file import check_is_file, read_small_file
from rmq_store.utils.suggestions import listed


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The offsets that the lake knows; tables are key -> queue id -> next offset."""

    committed: OffsetTable = field(default_factory=dict)
    """Committed in the lake."""
    observed: OffsetTable = field(default_factory=dict)
    """Observed at the broker by its newest import."""
    gone: frozenset[str] = frozenset()
    """Groups that were deleted in the lake after the cut-over: their offsets are removed from the broker's file."""
    never_back: bool = False
    """Whether offsets only grow, so that a committed one does not lower a file either."""
    of_broker: bool = False
    """Whether the broker owns its groups: their offsets in its file are at least as new as those that were observed."""
    left_out: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By key the ids of the queues of which the broker may have no message, so that their offsets are those of deleted ones."""

    @property
    def table(self) -> OffsetTable:
        """All that is known."""
        return self.merged_into({})

    def merged_into(self, table: OffsetTable, how: How | None = None) -> OffsetTable:
        """The table of a file with what is known merged in: unknown keys stay as they are. ``how``: MERGE or UPDATE."""
        merged = {key: dict(queues) for key, queues in table.items() if not self._is_gone(key)}
        if how is How.UPDATE:
            for key, queue_ids in self.left_out.items():
                for queue_id in queue_ids:
                    merged.get(key, {}).pop(queue_id, None)
        for key, queues in self.observed.items():
            offsets = merged.setdefault(key, {})
            if how is How.UPDATE and not self.never_back:
                offsets.update(queues)
            elif how is How.MERGE and self.of_broker:
                merged[key] = {**queues, **offsets}
            else:
                _raise(offsets, queues)
        for key, queues in self.committed.items():
            offsets = merged.setdefault(key, {})
            if self.never_back:
                _raise(offsets, queues)
            else:
                offsets.update(queues)
        return merged

    def behind(self, table: OffsetTable) -> tuple[Change, ...]:
        """Where the table of a file is ahead of what is known."""
        return lowered_of(changes(table, self.table))

    def _is_gone(self, key: str) -> bool:
        pair = split_key(key)
        return pair is not None and pair[1] in self.gone


def _raise(table: dict[int, int], offsets: Mapping[int, int]) -> None:
    table.update({queue_id: max(offset, table.get(queue_id, offset)) for queue_id, offset in offsets.items()})


@dataclass(frozen=True, slots=True)
class Change:
    """An offset in a file, before and after; None: it is not in it."""

    key: str
    queue_id: int
    from_offset: int | None
    to_offset: int | None

    @property
    def loses(self) -> bool:
        """Whether the file knew more: the offset is removed or lowered."""
        return self.from_offset is not None and (self.to_offset is None or self.to_offset < self.from_offset)

    @property
    def lowers(self) -> bool:
        return self.loses and self.to_offset is not None

    def __str__(self) -> str:
        known = "not known here" if self.to_offset is None else f"{self.to_offset} here"
        return f"{self.key} queue {self.queue_id} at {self.from_offset} ({known})"


def changes(before: OffsetTable, after: OffsetTable) -> tuple[Change, ...]:
    """What differs, in the order of keys and queues."""
    old, new = _flat(before), _flat(after)
    places = sorted(place for place in old.keys() | new.keys() if old.get(place) != new.get(place))
    return tuple(Change(*place, old.get(place), new.get(place)) for place in places)


def lowered_of(changes: Iterable[Change]) -> tuple[Change, ...]:
    """The changes that lower an offset."""
    return tuple(change for change in changes if change.lowers)


def _flat(table: OffsetTable) -> dict[tuple[str, int], int]:
    return {(key, queue_id): offset for key, queues in table.items() for queue_id, offset in queues.items()}


class How(Enum):
    """How an existing file is treated: kept if it knows more, merged with, or overwritten."""

    KEEP = auto()
    MERGE = auto()
    """It is the broker's own."""
    UPDATE = auto()
    """Merged with, too; it is of an earlier export, so all that is known now is newer."""
    OVERWRITE = auto()


_MERGING = (How.MERGE, How.UPDATE)


@dataclass(frozen=True, slots=True)
class OffsetForm:
    """A file of offsets: its name at a broker, and its text."""

    name: str
    parse: Callable[[str], OffsetTable]
    text: Callable[[OffsetTable, DataVersion], str]


CONSUMER_OFFSETS = OffsetForm(
    config_files.CONSUMER_OFFSETS, lambda text: parse_consumer_offsets(text).offset_table, consumer_offsets_text
)


def _lmq_table_of(text: str) -> OffsetTable:
    """Both tables as one: an offset of an LMQ queue is that of queue 0, as the broker answers it."""
    offsets = parse_lmq_offsets(text)
    return {**offsets.offset_table, **{key: {0: offset} for key, offset in offsets.lmq_table.items()}}


def _lmq_text_of(table: OffsetTable, version: DataVersion) -> str:
    lmq = {key: queues[0] for key, queues in table.items() if is_lmq_key(key)}
    return lmq_offsets_text({key: queues for key, queues in table.items() if key not in lmq}, lmq, version)


LMQ_OFFSETS = OffsetForm(config_files.LMQ_OFFSETS, _lmq_table_of, _lmq_text_of)
"""What a broker with ``enableLmq=true`` reads in place of the file above."""

DELAY_OFFSETS = OffsetForm(
    "delayOffset.json",
    lambda text: {SCHEDULE_TOPIC: {level - 1: offset for level, offset in parse_delay_offsets(text).items()}},
    lambda table, version: delay_offsets_text(
        {queue_id + 1: offset for queue_id, offset in table.get(SCHEDULE_TOPIC, {}).items()}, version
    ),
)
"""Its table has one key: the level queues, and how far each of them is delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrite:
    """The planned write of a file."""

    path: Path
    text: str
    changes: tuple[Change, ...]
    changed: bool
    """Whether the file is missing or has other offsets."""
    notes: tuple[str, ...] = ()
    """What the operator should know of the present file."""
    keep_bak: bool = False
    """Whether the ``.bak`` stays, because the broker would read it."""

    @property
    def lowered(self) -> tuple[Change, ...]:
        """Offsets that were further on before."""
        return lowered_of(self.changes)

    def write(self) -> bool:
        """Write the file where it changes; the one before stays as ``.bak``. Raises WrongUse when it cannot be written."""
        if self.changed:
            try:
                write_config(self.path, self.text, keep_bak=self.keep_bak)
            except OSError as error:
                raise WrongUse(f"{self.path} cannot be written: {error.strerror or error}") from error
        return self.changed


def planned_writes(
    file: Path,
    offsets: KnownOffsets,
    delays: KnownOffsets,
    version: DataVersion,
    how: How,
    form: OffsetForm = CONSUMER_OFFSETS,
) -> tuple[OffsetWrite, OffsetWrite]:
    """A broker's file of offsets and the ``delayOffset.json`` beside it. Raises as ``planned_write``, for either, and WrongUse
    for a file of the other form, which the broker does not read.

    ``form``: of the file that the broker reads. A ``file`` of another name has its delay levels in ``delayOffset-<name>``, and
    a note says so: exports of several brokers in one folder do not share them.
    """
    if file.name == DELAY_OFFSETS.name:
        raise WrongUse(
            f"{file} is the file of the delay levels: give the path of {form.name}, they are written beside it"
        )
    if file.name in {CONSUMER_OFFSETS.name, LMQ_OFFSETS.name} - {form.name}:
        raise WrongUse(
            f"the broker had its groups' offsets in {form.name} at its last import, and would not read {file}: give the path "
            f"of {form.name}. If its setting enableLmq was changed since, import its store again first"
        )
    is_brokers = file.name == form.name
    beside = file.with_name(DELAY_OFFSETS.name if is_brokers else f"{Path(DELAY_OFFSETS.name).stem}-{file.name}")
    groups = planned_write(file, form, offsets, version, how)
    levels = planned_write(beside, DELAY_OFFSETS, delays, version, how)
    if not is_brokers:
        named = f"the delay levels are in {beside}: the broker reads the two as {form.name} and {DELAY_OFFSETS.name}"
        levels = replace(levels, notes=(*levels.notes, named))
    return groups, levels


def write_both(planned: Iterable[OffsetWrite]) -> list[bool]:
    """Write the files in order, and return whether each changed. Raises WrongUse, naming the files already written."""
    written: dict[Path, bool] = {}
    for one in planned:
        try:
            written[one.path] = one.write()
        except WrongUse as error:
            changed = [str(path) for path, is_changed in written.items() if is_changed]
            hint = f". {listed(changed)} was already written: fix this and export again" if changed else ""
            raise WrongUse(f"{error}{hint}") from error
    return list(written.values())


def planned_write(path: Path, form: OffsetForm, known: KnownOffsets, version: DataVersion, how: How) -> OffsetWrite:
    """What writing the file would do; reads only. The present content is what the broker would read: the file, or else
    its ``.bak``.

    Raises WrongUse for a file that knows more and is to be kept, or cannot be read; BadData when it is damaged.
    """
    present = _present(path, form, how)
    before, held_version = present.value
    after = known.merged_into(before, how) if how in _MERGING else known.table
    differing = changes(before, after)
    if how is How.KEEP and (lost := [str(change) for change in differing if change.loses]):
        raise WrongUse(
            f"{present.used} knows more than the export: {listed(lost, 5)}. Merge into it with --merge; --overwrite would "
            "discard that. Nothing was written."
        )
    from_bak = present.used not in (None, str(path))
    newer = replace(
        held_version,
        timestamp=max(held_version.timestamp, version.timestamp),
        counter=held_version.counter + 1,
    )
    changed = bool(differing) or present.used != str(path)
    if changed:
        check_writable(path)
    return OffsetWrite(
        path=path,
        text=form.text(after, newer if before else version),
        changes=differing,
        changed=changed,
        notes=(
            *((present.note,) if from_bak else ()),
            *(_notes_on_levels(path, known, before) if how in _MERGING and known.never_back else ()),
            *(_notes_on_other(path, known, before) if how is How.MERGE and known.of_broker else ()),
            *_notes_on_lowered(path, lowered_of(differing)),
        ),
        keep_bak=from_bak,
    )


def _notes_on_levels(path: Path, known: KnownOffsets, before: OffsetTable) -> tuple[str, ...]:
    """A note on delay levels that the broker has delivered further since the last import."""
    ahead = [
        f"level {one.queue_id + 1} is delivered up to {one.from_offset} there, {one.to_offset} here"
        for one in known.behind(before)
    ]
    return (f"{path}: {listed(ahead)}. The higher offset is kept, so that nothing is delivered twice",) if ahead else ()


def _notes_on_other(path: Path, known: KnownOffsets, before: OffsetTable) -> Iterator[str]:
    """Notes on offsets that the file of a broker that owns its groups lacks, or has lower than they were here."""
    others = [one for one in changes(before, known.table) if one.to_offset is not None and not one.loses]
    added = [f"{one.key} queue {one.queue_id} at {one.to_offset}" for one in others if one.from_offset is None]
    lower = [str(one) for one in others if one.from_offset is not None]
    since = "the last import or the hand-back"
    if added:
        yield (
            f"{path}: {len(added):,} offsets of {since} are added, which it lacks: {listed(added, 5)}. If the broker was "
            "running since then, import its store first: it may have deleted their topics"
        )
    if lower:
        yield (
            f"{path}: {len(lower):,} offsets are lower than at {since}: {listed(lower, 5)}. They stay, as the broker owns its "
            "groups: they were reset there, or their topic was made again, or no export was installed before the hand-back"
        )


def _notes_on_lowered(path: Path, lowered: Sequence[Change]) -> tuple[str, ...]:
    offsets = listed([str(change) for change in lowered], 5)
    note = f"{path}: {len(lowered):,} offsets are lowered, the broker consumes again from there: {offsets}"
    return (note,) if lowered else ()


def _present(path: Path, form: OffsetForm, how: How) -> ConfigFile[tuple[OffsetTable, DataVersion]]:
    """What the broker would read. Raises BadData for damaged files, unless they are to be overwritten."""
    try:
        present = chosen_config(
            str(path), _text_of, lambda text: (form.parse(text), parse_data_version(text)), "Nothing was written. "
        )
    except BadData:
        if how is not How.OVERWRITE:
            raise
        return ConfigFile(({}, DataVersion()), None, "")
    if present.used is None and how is not How.OVERWRITE and (_text_of(str(path)) or "").strip():
        end = "remove it and export again" if how in _MERGING else "give --overwrite"
        raise BadData(
            f"{present.note.removesuffix(EMPTY_TABLE)}. Nothing was written. Restore {form.name}; to discard what only it "
            f"knows, {end}."
        )
    return present


def check_writable(path: Path) -> None:
    """Raises WrongUse when the file or its ``.bak`` is not a regular file, or its folder is not writable."""
    for file in (path, path.with_name(f"{path.name}.bak")):
        place = Path(os.path.realpath(file))
        folder = next(folder for folder in place.parents if os.path.exists(folder))
        try:
            check_is_file(file)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise WrongUse(f"{file} cannot be written: {error.strerror or error}; nothing was written") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise WrongUse(f"{file} cannot be written: {folder} is not writable; nothing was written")


def _text_of(path: str) -> str | None:
    """None when it is not there. Raises WrongUse when it cannot be read."""
    try:
        return read_small_file(Path(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WrongUse(f"{path} cannot be read: {error.strerror or error}") from error
