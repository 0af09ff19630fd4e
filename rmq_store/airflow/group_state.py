"""What sensors and notifiers read of a group, by the views of ``docs/sql.md``, in this process and without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_store.errors import WrongUse
from rmq_store.utils.arguments import check_types

if TYPE_CHECKING:
    from rmq_store.lake.table.store import LakeStore

_LAG = "SELECT CAST(sum(lag) AS BIGINT) AS lag FROM lag WHERE group_name = $group"


def lag_of(store: LakeStore, group: str) -> int | None:
    """The messages that the group has not consumed yet, retries included, as ``consumerProgress`` counts them; None for a group
    that has no offset yet."""
    (row,) = rows_of(store, _LAG, group)
    lag: int | None = row["lag"]
    return lag


def check_at_most(at_most: int) -> None:
    """Raise WrongUse for what is no lag, and for a lag that no group can get down to."""
    check_types(int, at_most=at_most)
    if at_most < 0:
        raise WrongUse(f"at_most is {at_most}: a lag is 0 or more")


def rows_of(store: LakeStore, text: str, group: str) -> list[dict[str, Any]]:
    """The rows of a SELECT with the parameter ``$group``."""
    from rmq_store.lake.sql.sql import query

    rows: list[dict[str, Any]] = query(store, text, values={"group": group}, group=group).to_pylist()
    return rows
