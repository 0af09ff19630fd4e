"""A store that stays open across requests: its tables are brought up to date for each answer, not opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, LifoQueue
from typing import Any, Final

from rmq_store.console.listing import MOST_CSV_ROWS, Listing, Page, Question, document, without_total
from rmq_store.errors import WrongUse
from rmq_store.lake.sql.query_limits import QueryLimits
from rmq_store.lake.sql.sql import queries
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore

LIMITS: Final = QueryLimits(timeout_ms=20_000, memory_bytes=512 << 20, spill_bytes=1 << 30)
"""Of one query of a page. The api-server has other work."""
READERS = 4
"""So many requests read at the same time; more wait. Each has shards of its own, as a shard is for one thread."""
_WAIT_S = 30

OpenStore = Callable[[], LakeStore]


class TooManyReaders(Exception):
    """All readers were in use for ``_WAIT_S`` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptStore(LakeStore):
    """A store whose shards stay open. A shard that is added later is opened when it is there."""

    opened: dict[str, Shard]

    def shards(self, name: str | None = None) -> list[Shard]:
        return [self.opened.setdefault(shard.name, shard) for shard in super(_KeptStore, self).shards(name)]


@dataclass(slots=True)
class _Slot:
    """What one reader keeps."""

    store_id: str = ""
    opened: dict[str, Shard] = field(default_factory=dict)


class StoreReader:
    """Answers the questions of pages. Threads may share it."""

    def __init__(self, open_store: OpenStore, readers: int = READERS) -> None:
        self.open_store = open_store
        self._slots: LifoQueue[_Slot] = LifoQueue()  # the last one used is the most up to date
        for _ in range(readers):
            self._slots.put(_Slot())

    @contextmanager
    def store(self) -> Iterator[LakeStore]:
        """The store, for this thread. Raises StoreUnusable where there is none, and TooManyReaders."""
        try:
            slot = self._slots.get(timeout=_WAIT_S)
        except Empty:
            raise TooManyReaders from None
        try:
            store = self.open_store()
            is_same = store.store_id == slot.store_id and all(shard.is_as_read() for shard in slot.opened.values())
            if not is_same:  # made again at the same place, or restored there
                slot.store_id, slot.opened = store.store_id, {}
            yield _KeptStore(store.root, store.store_id, store.levels, opened=slot.opened)
        except WrongUse:
            raise
        except BaseException:
            slot.opened = {}  # what failed may be what is open
            raise
        finally:
            self._slots.put(slot)

    @contextmanager
    def current(self) -> Iterator[LakeStore]:
        """``store``, with its tables of messages brought up to date, for readers that do not do that themselves."""
        with self.store() as store:
            for shard in store.shards():
                shard.refresh("consumequeue")  # first: it may be behind the log, never ahead of it
                shard.refresh("commitlog")
            yield store

    def rows(self, *questions: Question) -> list[list[dict[str, Any]]]:
        """The rows of each question, over one snapshot. Parameters of the same name have the same value."""
        values: dict[str, object] = {}
        for question in questions:
            values |= question.values
        with self.store() as store:
            tables = queries(store, [question.text for question in questions], values=values, limits=LIMITS)
        return [table.to_pylist(maps_as_pydicts="lossy") for table in tables]

    def listing(self, listing: Listing, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of a list. Raises WrongUse for a query that the list does not understand."""
        page = Page.of(query)
        (rows,) = self.rows(listing.question(page))
        total = rows[0]["total"] if rows else 0
        if not rows and page.offset:
            ((count,),) = self.rows(listing.count(page))
            total = count["total"]
        return document(listing, page, without_total(rows), total)

    def all_rows(self, listing: Listing, query: Mapping[str, str]) -> Sequence[dict[str, Any]]:
        """The rows of all pages, at most ``MOST_CSV_ROWS``."""
        page = Page.of({**query, "limit": str(MOST_CSV_ROWS), "offset": "0"}, MOST_CSV_ROWS)
        (rows,) = self.rows(listing.question(page))
        return without_total(rows)
