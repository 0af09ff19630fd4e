"""The locks of packages and jars agree with each other, with the list of parts, and with how things are installed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from scripts import sbom
from scripts.setup import requirement_of
from spark_jobs.jars import locked_jars

CHECKOUT = Path(__file__).resolve().parents[2]
REQUIREMENTS = (CHECKOUT / "requirements-dev.txt").read_text()
RUNTIME = (CHECKOUT / "requirements.txt").read_text()
CONSTRAINTS = (CHECKOUT / "constraints.txt").read_text()


def pins(text: str) -> list[str]:
    return [line.rstrip(" \\") for line in text.splitlines() if "==" in line and not line.startswith("#")]


def version_of(pin: str) -> str:
    """Without the marker: what only Windows needs at run time, a tool of developers may need everywhere."""
    return pin.partition(" ;")[0]


def test_the_locks_have_the_same_versions_and_every_file_has_a_sum() -> None:
    assert pins(REQUIREMENTS) == pins(CONSTRAINTS)
    assert "--hash" not in CONSTRAINTS
    assert {version_of(pin) for pin in pins(RUNTIME)} < {version_of(pin) for pin in pins(REQUIREMENTS)}
    assert RUNTIME.count("--hash") > len(pins(RUNTIME))
    for name in (pin.partition("==")[0] for pin in pins(REQUIREMENTS)):
        assert re.fullmatch(r"\S+==[^\\]+\\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", requirement_of(name)), name


def test_the_image_has_no_tools_of_developers() -> None:
    names = {pin.partition("==")[0] for pin in pins(RUNTIME)}
    assert not names & {"hypothesis", "import-linter", "mypy", "playwright", "polars", "pytest", "ruff", "uv"}
    assert names > {"apache-airflow", "deltalake", "duckdb", "hatchling", "psycopg2-binary", "pyspark", "rocksdict"}


def test_no_lock_names_an_index() -> None:
    for text in (REQUIREMENTS, RUNTIME, CONSTRAINTS):
        assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host", text)


def test_the_list_of_parts_is_that_of_the_locks() -> None:
    """After a change of a lock: make sbom."""
    components = json.loads(sbom.SBOM.read_text())["components"]
    listed = {one["purl"]: sorted(sum_["content"] for sum_ in one["hashes"]) for one in components}
    parts = sbom.parts()
    assert listed == {part.purl: sorted(part.sums) for part in parts}
    assert len(parts) == len(pins(RUNTIME)) + len(locked_jars())
    notice = sbom.NOTICE.read_text()
    assert re.findall(r"^pkg:\S+", notice, re.MULTILINE) == [part.purl for part in parts]


def test_nearly_every_part_has_a_licence() -> None:
    """Those for other systems have none where the list is made."""
    components = json.loads(sbom.SBOM.read_text())["components"]
    assert len([one["name"] for one in components if not one.get("licenses")]) <= 5


def test_equal_locks_make_equal_lists() -> None:
    assert sbom.sbom(sbom.parts()) == sbom.sbom(sbom.parts())
    assert "timestamp" not in json.loads(sbom.SBOM.read_text()).get("metadata", {})


def test_the_image_and_the_set_up_check_the_sums() -> None:
    for name in ("Dockerfile", "scripts/setup.py"):
        text = (CHECKOUT / name).read_text()
        assert "--require-hashes" in text
        assert "constraints.txt" not in text
