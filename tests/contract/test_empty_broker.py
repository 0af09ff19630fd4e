"""A broker without a message and without a topic, whose groups have offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.rmq import Rmq
from tests.contract.test_import_store import store_of

BROKER = ("--broker", "broker-a")


@pytest.fixture
def imported(rmq: Rmq) -> Rmq:
    broker = Path(store_of(rmq.folder / "broker"))
    (broker / "config").mkdir(exist_ok=True)
    (broker / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"T@g": {"0": 0}}}))
    rmq.json("init")
    assert rmq.json("import-store", str(broker), *BROKER)["messages"] == 0
    return rmq


def test_a_broker_of_which_an_import_found_no_message_is_known(imported: Rmq) -> None:
    assert imported.json("offsets", "export", *BROKER, str(imported.folder / "out.json"))["status"] == "done"
    assert imported.json("cutover", *BROKER, "--reason", "switched off")["status"] == "committed"
    assert imported.json("hand-back", *BROKER, "--reason", "on again")["status"] == "committed"
    assert imported.json("audit")["audit"] == []
