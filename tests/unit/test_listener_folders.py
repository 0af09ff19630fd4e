"""Which modules of listeners are found, without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.settings.environment import Environment
from rmq_store.settings.listener_folders import has_module


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        ("demo.listener:Payments", True),
        ("demo.listeners:Payments", False),
        ("shop:Orders", True),
        ("shop.orders:Orders", True),
        ("shop.other:Orders", False),
        ("shop.orders.deeper:Orders", False),
        ("no_such_shop.orders:Orders", False),
        ("sys:exit", True),
        ("collections.abc:Callable", True),
        ("", False),
        (":Orders", False),
        ("shop..orders:Orders", False),
    ],
)
def test_a_module_is_found_and_not_imported(tmp_path: Path, listener: str, expected: bool) -> None:
    (tmp_path / "shop").mkdir()
    for name in ("__init__.py", "orders.py"):
        (tmp_path / "shop" / name).write_text("raise RuntimeError('imported')")
    environment = Environment.read({"RMQ_LISTENER_PATH": f"{tmp_path}, {tmp_path / 'missing'}"})
    assert has_module(listener, environment) is expected
