"""The archives of this repository: a broker's store directory, or a store of an earlier version, as a compressed tar file."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive into a folder, which is made where it is missing, and return the folder."""
    with tarfile.open(archive) as files:
        # Python 3.11.2, which Debian 12 has, does not know tarfile's filters.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(folder)
    return folder
