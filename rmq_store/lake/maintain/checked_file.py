"""A file with joined rows, read back before a commit names it: the files that it replaces will be deleted."""

from __future__ import annotations

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.stage import NewFile, stage


def stage_checked(table: LakeTable, file: NewFile) -> StagedFile:
    """Stage the file in the table's folder and read it back.

    Raises StoreUnusable when it cannot be written, or is read back with other rows than it was written with.
    """
    staged = stage(table.root, table.path, file)
    names = file.rows.schema.names
    (stored,) = table.read_each([staged.path], names)
    stored = stored.select(names)
    if not stored.equals(file.rows.cast(stored.schema)):
        raise StoreUnusable(
            f"{table.path}/{staged.path} was written with {file.rows.num_rows} rows and read back with {stored.num_rows}, "
            "which are not the same. No file was replaced: try again, and if it happens again, check the disk or the storage"
        )
    return staged
