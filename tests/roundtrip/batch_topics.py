"""``python -m tests.roundtrip.batch_topics FOLDER``: makes the files of ``tests/data/rocketmq-batch`` with a real broker.

FOLDER must not exist. It gets the broker's store and ``seen.jsonl``, what its client pulled (``BatchTopics.java``).
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.roundtrip.broker import rocketmq


def main(folder: Path) -> None:
    with rocketmq("5.5.0", folder) as broker:
        broker.start(mapperFileSizeBatchConsumeQueue=46 * 20, mappedFileSizeConsumeQueue=20 * 50)
        broker.java("BatchTopics", broker.name_server, broker.address, folder / "seen.jsonl")
        broker.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
