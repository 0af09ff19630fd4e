"""What this project says of a Delta table when it makes one: its columns, its partitions, and what has statistics."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The same in each version of this project, but for further columns."""

    schema: pa.Schema
    """With the partition columns."""
    partition_by: tuple[str, ...]
    stats: tuple[str, ...]
    """The columns with statistics (``delta.dataSkippingStatsColumns``). A file of another tool may have none."""
