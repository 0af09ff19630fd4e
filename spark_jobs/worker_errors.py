"""What a failure of Spark's workers means for the user: a pure function of Spark's own text."""

from __future__ import annotations

import re
import sys

from rmq_store.settings.spark_settings import SHIP

_PAGE = "docs/cluster.md says what must be on the workers"
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError: No module named|ImportError: .*?) ['\"]?([A-Za-z_]\w*)")
_NO_PROGRAM = re.compile(r"Cannot run program \"([^\"]+)\"")
_VERSIONS = re.compile(r"different version: ([\d.]+) than that in driver: ([\d.]+),")
_COMPILED = ("pyarrow", "numpy", "pandas")


def worker_problem(text: str) -> str | None:
    """What is missing on the workers, and what to do; None when the text is of another failure."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if match := _VERSIONS.search(text):
        return (
            f"Spark's workers run Python {match[1]}, and this process runs {match[2]}: both must have the same minor version. "
            f"Set spark.pyspark.python to the path of a Python {match[2]} on the workers. {_PAGE}"
        )
    if match := _NO_PROGRAM.search(text):
        return (
            f"Spark's workers have no program {match[1]}: set spark.pyspark.python to the path of a Python {here} on them. "
            f"{_PAGE}"
        )
    if "PACKAGE_NOT_INSTALLED" in text or ("PyArrow" in text and "must be installed" in text):
        package = re.search(r"(PyArrow|Pandas|NumPy)", text)
        return (
            f"Spark's workers have no {package[1].lower() if package else 'pyarrow'}, or one that is too old. {_PAGE}"
        )
    if match := _NO_MODULE.search(text):
        module = match[1]
        if module in _COMPILED:
            return f"the Python of Spark's workers has no {module}: install it there. {_PAGE}"
        if module == "rmq_store":
            return f"Spark's workers have no module rmq_store: install it on them, or do not set {SHIP}=false. {_PAGE}"
        return f"Spark's workers have no module {module}: install it on them, or send it with --py-files. {_PAGE}"
    return None
