"""The names of ``import rmq_store``: what they are, that they cost nothing until they are used, and what they check."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rmq_store
from rmq_store.consumer.listener import load_listener
from rmq_store.errors import WrongUse
from rmq_store.settings.settings import load_settings

FACE = Path(rmq_store.__file__)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import json, sys; before = set(sys.modules); import rmq_store; print(json.dumps([*set(sys.modules) - before]))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert [name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names] == ["rmq_store"]


def test_a_name_is_the_one_that_type_checkers_see_and_comes_from_where_it_is_defined() -> None:
    (block,) = [node for node in ast.parse(FACE.read_text()).body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    assert sorted(seen, key=str) == rmq_store.__all__
    assert set(rmq_store.__all__) <= set(dir(rmq_store))
    for name, module in seen.items():
        value = getattr(rmq_store, str(name))
        assert value is getattr(importlib.import_module(str(module)), str(name))
        assert getattr(value, "__module__", module) == module, f"{name} is only imported there"


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rmq_store' has no attribute 'Producer'"):
        rmq_store.Producer  # noqa: B018


def consume_message(msgs: object, context: object) -> str:
    return "CONSUME_SUCCESS"


class Orders:
    def consume_message(self, msgs: object, context: object) -> str:
        return "CONSUME_SUCCESS"


FILE = """
[[group]]
name = "orders"
listener = "shop.listeners:Orders"
retry_policy = {type = "CUSTOMIZED", next = [1000, 5000]}
[[group.subscription]]
topic = "Orders"
expression = "new || paid"
[[group.subscription]]
topic = "Prices"
expression = "price > 100"
type = "SQL92"
"""


def test_a_group_in_python_is_the_group_of_a_file() -> None:
    group = rmq_store.consumer_group(
        "orders",
        "shop.listeners:Orders",
        {"Orders": "new || paid", "Prices": {"expression": "price > 100", "type": "SQL92"}},
        retry_policy={"type": "CUSTOMIZED", "next": [1000, 5000]},
    )
    assert group == load_settings(FILE, "consumers.toml").group("orders")


def test_a_group_that_is_wrong_names_all_its_problems() -> None:
    with pytest.raises(WrongUse) as refused:
        rmq_store.consumer_group("orders", "shop", {"Orders": "||"}, max_reconsume_time=3)
    for problem in ("listener", "'max_reconsume_time', did you mean", "names no tag"):
        assert problem in str(refused.value)


@pytest.mark.parametrize("listener", [consume_message, Orders])
def test_a_listener_of_a_module_has_a_name(listener: object) -> None:
    name = rmq_store.consumer_group("orders", listener, {"Orders": "*"}).listener  # type: ignore[arg-type]
    assert load_listener(name).name == name


def test_a_listener_without_a_name_is_refused() -> None:
    def inner(msgs: object, context: object) -> str:
        return "CONSUME_SUCCESS"

    for listener in (inner, lambda msgs, context: None, Orders().consume_message, Orders()):
        with pytest.raises(WrongUse, match="give a function or a class of a module"):
            rmq_store.consumer_group("orders", listener, {"Orders": "*"})  # type: ignore[arg-type]
