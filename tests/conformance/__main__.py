"""``python -m tests.conformance DIR``: hold the code against a set of files that RocketMQ itself made.

Exit code 0: every file was checked and nothing failed. 1: something failed, is unknown, or is not checked yet. 2: wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.conformance.runner import run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("dir", type=Path, metavar="DIR", help="with vectors/, stores/, expected/ and behaviour/")
    parser.add_argument("--only", default="*", metavar="GLOB", help="files by name, such as 'expected/*.pull'")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if not options.dir.is_dir():
        parser.error(f"{options.dir} is no folder")
    began = time.perf_counter()
    reports = []
    for report in run(options.dir, options.only):
        reports.append(report)
        if not options.json:
            print(*report.lines(), sep="\n", flush=True)
    if not reports:
        parser.error(f"{options.dir} has no file named {options.only}")
    seconds = time.perf_counter() - began
    passed, failed = sum(report.passed for report in reports), sum(report.failed for report in reports)
    ok = all(report.ok for report in reports)
    if options.json:
        files = [report.document() for report in reports]
        total = {"ok": ok, "passed": passed, "failed": failed, "seconds": round(seconds, 3), "files": files}
        print(json.dumps(total, indent=2, ensure_ascii=False))
    else:
        left = sum(report.not_checked.total() for report in reports)
        unknown = sum(report.unknown for report in reports)
        also = "".join(
            f", {count} {what}" for count, what in ((left, "not checked yet"), (unknown, "unknown files")) if count
        )
        print(f"{len(reports)} files: {passed} passed, {failed} failed{also}, {seconds:.0f} s")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
