"""``python -m tests.roundtrip``: a real broker and the lake take turns, and each message must be finished once.

In each turn of a RocketMQ 5.5.0 broker its producers send, its push consumers read a part and fail at some of it, and the
broker ends, once by SIGKILL while all of them run. Then the lake imports, cuts over, consumes another part and all its retries,
writes the offsets into the broker's own files, and hands back; with these files the broker is started again. At the end the
lake finishes what is left. Then the store of a 4.9.7 broker is taken over once.

Exit code 0: every message was finished, and none twice without a reason that the documentation names.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmq_store.utils.host import monotonic_ms
from tests.roundtrip.broker import RocketMQ, finish, rocketmq
from tests.roundtrip.lake import ALL, CHECKOUT, Lake
from tests.roundtrip.turns import TOPICS, Books, broker_turn, consumers, lake_turn, ledger_of, trim

FOLDER = CHECKOUT / "var" / "roundtrip"
NEWEST, OLD = "5.5.0", "4.9.7"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.roundtrip", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--messages", type=int, default=120, metavar="N", help="of each kind in a turn; default: 120")
    parser.add_argument("--only", choices=(NEWEST, OLD), help="one version of RocketMQ")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the JSON report to FILE")
    options = parser.parse_args(arguments)
    shutil.rmtree(FOLDER, ignore_errors=True)
    began = monotonic_ms()
    report: dict[str, Any] = {"messages": options.messages, "versions": {}}
    for version, story in ((NEWEST, three_rounds), (OLD, one_import)):
        if options.only in (None, version):
            with rocketmq(version, FOLDER / version) as broker:
                report["versions"][version] = story(broker, options.messages)
    report["seconds"] = (monotonic_ms() - began) // 1000
    text = json.dumps(report, indent=1) + "\n"
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    print(text)
    for version, result in report["versions"].items():
        print(
            f"{version}: " + ", ".join(f"{name} {result[name]}" for name in ("lost", "doubled", "unexpected", "tried"))
        )
    return 0 if all(result["sound"] for result in report["versions"].values()) else 1


def three_rounds(broker: RocketMQ, count: int) -> dict[str, Any]:
    books, lake = Books(), Lake(broker.folder / "lake")
    for number, killed in ((1, False), (2, True), (3, False)):
        broker.start(*TOPICS)
        broker_turn(broker, number, count, count, kill=killed)
        # The second turn finishes every message, so that the broker may delete its files.
        lake_turn(broker, lake, books, ALL if number == 2 else count // 2, killed=killed)
        if number == 2:
            print(f"the broker deletes {trim(broker)} log files", flush=True)
    broker.start()
    broker.run("produce", 4, count)
    finish(consumers(broker, ALL))
    broker.stop()
    lake.take_over(broker.store)
    lake.consume(ALL)
    lake.check()
    return report_of(broker, lake, books)


def one_import(broker: RocketMQ, count: int) -> dict[str, Any]:
    books, lake = Books(), Lake(broker.folder / "lake")
    broker.start(*TOPICS)
    broker_turn(broker, 1, count, count, kill=False)
    lake_turn(broker, lake, books, ALL, killed=False)
    return report_of(broker, lake, books)


def report_of(broker: RocketMQ, lake: Lake, books: Books) -> dict[str, Any]:
    written = ledger_of(broker)
    result = books.close(written, lake)
    return {
        "sound": result.sound,
        "tried": result.tried,
        "sends_that_were_cut": len(written.unsure),
        "lost": len(result.lost),
        "doubled": len(result.doubled),
        "repeated_after_a_kill": len(result.repeated),
        "unexpected": len(result.unexpected),
        "examples": [list(one) for one in (*result.lost[:5], *result.doubled[:5], *result.unexpected[:5])],
        "turns": books.turns,
    }


if __name__ == "__main__":
    sys.exit(main())
