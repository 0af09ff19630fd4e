"""pyarrow knows pandas from the moment at which something imports it, and not before. Each case is a new process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.keeper import CHECKOUT

NOT_YET = """
import sys
import rmq_store.lake
import pyarrow as pa
pa.array([1.0, None]), pa.scalar("x"), pa.table({"a": [1]})
assert "pandas" not in sys.modules
"""
KNOWS_PANDAS = """
import pandas as pd
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
assert pa.table({"a": [1]}).to_pandas().shape == (1, 1)
"""
LEAVES_NOTHING = """
assert not any("rmq_store" in type(finder).__module__ for finder in sys.meta_path)
assert "exec_module" not in vars(pd.__spec__.loader)
"""


def run(code: str, path: Path = CHECKOUT) -> str:
    command = [sys.executable, "-c", f"import sys\nsys.path[:0] = [{str(CHECKOUT)!r}, {str(path)!r}]\n{code}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stderr


@pytest.mark.parametrize(
    "code",
    [
        NOT_YET + KNOWS_PANDAS + LEAVES_NOTHING,
        NOT_YET + "pa.table({'a': [1]}).to_pandas()" + KNOWS_PANDAS + LEAVES_NOTHING,
        "import pandas\nimport rmq_store.lake\nimport pyarrow as pa" + KNOWS_PANDAS + LEAVES_NOTHING,
        "import pyarrow as pa\npa.array([1])\nimport rmq_store.lake" + KNOWS_PANDAS + LEAVES_NOTHING,
    ],
    ids=["imported later", "loaded by pyarrow later", "imported before", "loaded by pyarrow before"],
)
def test_pyarrow_knows_pandas_once_it_is_imported(code: str) -> None:
    assert run(code) == ""


def test_what_loads_the_store_does_not_load_pandas() -> None:
    for module in (
        "rmq_store.lake.listener.server",
        "rmq_store.lake.sql.sql",
        "rmq_store.api",
        "rmq_store.lake.window.plan",
    ):
        assert run(f"import {module}\nassert 'pandas' not in sys.modules") == "", module


def test_an_import_of_pandas_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ValueError('half installed')")
    fails = f"""
try:
    sys.path.insert(0, {str(tmp_path)!r})
    import pandas
except ValueError as error:
    assert str(error) == "half installed"
sys.path.pop(0)
"""
    assert run(NOT_YET + fails + fails + KNOWS_PANDAS + LEAVES_NOTHING) == ""


def test_without_pandas_it_is_said_to_be_missing(tmp_path: Path) -> None:
    missing = f"""
sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry] + [{str(tmp_path)!r}]
try:
    import pandas
except ModuleNotFoundError as error:
    assert str(error) == "No module named 'pandas'"
else:
    raise AssertionError
"""
    assert run(NOT_YET + missing) == ""
