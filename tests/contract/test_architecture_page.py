"""The walk of ``docs/architecture.md`` happens as the page says: its message, its offsets, its numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.rmq import ALL_DUE, Rmq

ROOT = Path(__file__).parents[2]
PAYMENT = "7F00000172565FFD2B2766992EFD0B24"
GROUP = "demo-payments"


@pytest.fixture
def walk(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> Rmq:
    """The commands of the page, on the broker store of the demo, after its import. Delays end at once."""
    settings = (ROOT / "demo" / "consumers.toml").read_text()
    (imported.folder / "consumers.toml").write_text(settings.replace('engine = "spark"', 'engine = "local"'))
    monkeypatch.syspath_prepend(str(ROOT))
    for _ in range(2):
        imported.json("consume", "--group", GROUP)
        imported.json("deliver", "--now", ALL_DUE)
    imported.json("consume", "--group", GROUP)
    return imported


def rows(rmq: Rmq, sql: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = rmq.json("sql", sql)
    return answer


@pytest.mark.slow
def test_the_walk_of_the_architecture_page(walk: Rmq) -> None:
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    copies = rows(walk, f"SELECT * FROM messages WHERE unique_key = '{PAYMENT}' ORDER BY reconsume_times, topic DESC")
    (first,) = (copy for copy in copies if copy["topic"] == "PaymentFlow")
    assert f"at byte {first['commit_log_offset']}, {first['store_size']} bytes" in page
    assert first["offset_msg_id"] in page
    hops = [f"{copy['topic']} {copy['queue_id']} : {copy['queue_offset']}" for copy in copies]
    places = [page.index(hop) for hop in hops]
    assert (len(hops), places) == (6, sorted(places))

    (window,) = rows(
        walk, "SELECT * FROM consumed_ranges WHERE topic = 'PaymentFlow' AND queue_id = 0 AND action = 'consume'"
    )
    assert f"PaymentFlow 0: [0, {window['end_offset']}), rule {window['start_rule']}" in page
    assert f"PaymentFlow 0: {window['acked']} acked, {window['retried']} retried" in page
    (retried,) = {row["retried"] for row in rows(walk, "SELECT retried FROM windows ORDER BY read_version LIMIT 1")}
    assert f"{retried} retry copies" in page
    (segment, *_) = rows(
        walk, "SELECT * FROM segments WHERE topic = 'PaymentFlow' AND queue_id = 0 ORDER BY base_offset"
    )
    assert f"[0, {segment['end_offset']}) is at row {segment['first_row']}" in page

    track = walk.json("track", PAYMENT)
    assert [hop["outcome"] for hop in track_hops(track)] == ["retried", "retried", "dead"]
    assert walk.json("audit")["audit"] == []


def track_hops(track: Any) -> list[dict[str, Any]]:
    return [hop for group in track["tracks"] if group["group"] == GROUP for hop in group["hops"]]
