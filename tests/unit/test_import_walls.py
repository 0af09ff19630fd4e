"""The walls that import-linter cannot say whole: the rules need the standard library and each other, nothing else."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
RULES = ("rmq_store", "tests/oracle/memory")
OUTSIDE = (
    "rmq_store/__init__.py", "rmq_store/airflow/", "rmq_store/api.py", "rmq_store/cli/", "rmq_store/console/", "rmq_store/lake/"
)  # fmt: skip
"""They offer the rules with the lake. ``rmq_store/__init__.py`` itself imports none of it (test_face.py)."""
PARTS = {path.stem for path in (CHECKOUT / "rmq_store").iterdir()} - {"__init__"}
INSIDE = PARTS - {"airflow", "api", "cli", "console", "lake"}


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
        return rest.split(".")[0] in INSIDE
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
        "def f():\n    import pyarrow.parquet\n    from rmq_store import Message, lake\n"
        "    from rmq_store.message.message import M\n"
    )
    assert [(module, is_allowed(module)) for module in imported_modules(source)] == [
        ("pyarrow.parquet", False),
        ("rmq_store.Message", False),
        ("rmq_store.lake", False),
        ("rmq_store.message.message.M", True),
    ]


def test_inside_the_project_a_name_is_imported_from_where_it_is_defined() -> None:
    """``import rmq_store`` is for its users: here each name has one import path."""
    by_face = [
        f"{path.relative_to(CHECKOUT)}: {module}"
        for folder in ("rmq_store", "spark_jobs", "plugins", "dags")
        for path in (CHECKOUT / folder).rglob("*.py")
        for module in imported_modules(path.read_text())
        if module.split(".")[0] == "rmq_store" and module.partition(".")[2].partition(".")[0] not in PARTS
    ]
    assert by_face == []
