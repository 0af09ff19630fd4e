"""Run a command of ``rmq`` in this process; then write its CPU seconds and its peak memory in bytes to a file, as JSON.

``python -m benchmarks.measured_command FILE COMMAND...``. A process of its own, since a peak is that of a whole process, and
read from ``/proc``: what ``getrusage`` says of a child begins with the memory of its parent.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from rmq_store.cli import main

_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def run(file: Path) -> None:
    try:
        main()
    finally:
        peak = _PEAK.search(Path("/proc/self/status").read_text())
        assert peak is not None
        file.write_text(json.dumps({"cpu_s": time.process_time(), "peak_bytes": int(peak[1]) << 10}))


if __name__ == "__main__":
    _, path, *sys.argv[1:] = sys.argv
    run(Path(path))
