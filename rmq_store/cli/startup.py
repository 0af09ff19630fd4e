"""A fast start: pyarrow is loaded without pandas.

pyarrow imports pandas when it makes its first value, which takes 0.25 s: as long as most commands take. It tries again when
something needs pandas, so that a listener gets it all the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """An import finder that reports pandas as not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("not while pyarrow starts", name=name)
        return None


def start_pyarrow() -> None:
    """Call this before anything of ``rmq_store.lake`` is imported."""
    if "pyarrow.dataset" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401  its module makes that first value
    finally:
        sys.meta_path.remove(finder)


def pandas_for_listeners() -> None:
    """Call this before a listener runs: pyarrow finds pandas again, and so recognises a listener's Series."""
    import pyarrow as pa

    try:
        pa.table({}).to_pandas()
    except ImportError:  # not installed: then no listener can return a Series
        return
