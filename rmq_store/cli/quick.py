"""A quick start: pyarrow looks for pandas when it makes its first value, which takes a quarter of a second that most
commands are done in. It looks again when something asks for pandas, so a listener misses nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec


class _NotNow:
    """Says that there is no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)
        return None


@contextmanager
def lake() -> Iterator[None]:
    """Import what stands on pyarrow in here."""
    finder = _NotNow()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401  makes the first value

        yield
    finally:
        sys.meta_path.remove(finder)


def pandas_for_listeners() -> None:
    """Before a listener runs: let pyarrow find pandas, so that it takes a listener's Series for what it is."""
    import pyarrow as pa

    try:
        pa.table({}).to_pandas()
    except ImportError:  # not installed: a listener cannot have one either
        return
