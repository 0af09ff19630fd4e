"""The walls that import-linter cannot say whole: the rules need the standard library and each other, nothing else."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
RULES = ("rmq_store", "tests/oracle/memory")
OUTSIDE = ("rmq_store/lake/", "rmq_store/cli/")


def imported_modules(source: str) -> Iterator[str]:
    """Full names of all modules that ``source`` imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_allowed(module: str) -> bool:
    top, _, rest = module.partition(".")
    if top == "rmq_store":
        return rest.split(".")[0] not in {"lake", "cli"}
    return top in sys.stdlib_module_names or module.startswith("tests.oracle.memory")


def rule_files() -> list[Path]:
    files = (path for folder in RULES for path in (CHECKOUT / folder).rglob("*.py"))
    return [path for path in files if not path.relative_to(CHECKOUT).as_posix().startswith(OUTSIDE)]


def test_the_rules_import_the_standard_library_and_each_other_only() -> None:
    files = rule_files()
    assert files
    beyond = [
        f"{path.relative_to(CHECKOUT)}: {module}"
        for path in files
        for module in imported_modules(path.read_text())
        if not is_allowed(module)
    ]
    assert beyond == []


def test_the_check_sees_imports_inside_functions_and_of_submodules() -> None:
    source = (
        "def f():\n    import pyarrow.parquet\n    from rmq_store import lake\n"
        "    from rmq_store.message.message import M\n"
    )
    assert [(module, is_allowed(module)) for module in imported_modules(source)] == [
        ("pyarrow.parquet", False),
        ("rmq_store.lake", False),
        ("rmq_store.message.message.M", True),
    ]
