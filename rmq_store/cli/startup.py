"""A quick start. pyarrow looks for pandas when it makes its first value, which takes a quarter of a second that most
commands are done in. It looks again when something asks for pandas, so a listener misses nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """A finder that says there is no pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("not while pyarrow starts", name=name)
        return None


def start_pyarrow() -> None:
    """To be called before anything of ``rmq_store.lake`` is imported."""
    if "pyarrow.dataset" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401  its module makes that first value
    finally:
        sys.meta_path.remove(finder)


def pandas_for_listeners() -> None:
    """Before a listener runs: let pyarrow find pandas, so that it takes a listener's Series for what it is."""
    import pyarrow as pa

    try:
        pa.table({}).to_pandas()
    except ImportError:  # not installed: then a listener cannot have one either
        return
