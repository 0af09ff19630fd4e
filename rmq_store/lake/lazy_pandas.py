"""pyarrow loads pandas only when something else does.

pyarrow imports pandas when it makes its first value, to recognise pandas' objects. That takes 0.25 s, as long as most
commands do, and nothing here uses pandas. So pyarrow makes its first value while pandas looks as if it were not installed.
Once a listener, Spark or anything else imports pandas, pyarrow is told, before the import returns: until then there is no
object of pandas to recognise.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Pandas:
    """An import finder, which leaves ``sys.meta_path`` when pandas is imported."""

    def __init__(self) -> None:
        self._hidden_from: int | None = threading.get_ident()

    def show(self) -> None:
        self._hidden_from = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pandas":
            return None
        if self._hidden_from == threading.get_ident():
            raise ModuleNotFoundError("not while pyarrow starts", name=name)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._tell_pyarrow_after(spec.loader)
        return spec

    def _tell_pyarrow_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # it is pandas' own again
            try:
                execute(module)
            except BaseException:  # the next import may succeed
                sys.meta_path.insert(0, self)
                raise
            import pyarrow as pa

            pa.table({}).to_pandas()  # what needs pandas makes pyarrow look for it again

        loader.exec_module = exec_module


def start_pyarrow() -> None:
    """Let pyarrow make its first value without pandas, unless pandas is there."""
    if "pandas" in sys.modules:
        return
    pandas = _Pandas()
    sys.meta_path.insert(0, pandas)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        pandas.show()
