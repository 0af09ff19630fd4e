"""Shared fixtures, and marks that follow from where a test lives and what it uses."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from demo.archives import unpack
from tests.java_options import java_options
from tests.postgres import airflow_database
from tests.s3 import root, s3_root, s3_server
from tests.sample import sampled

__all__ = ["airflow_database", "root", "s3_root", "s3_server"]

# The same examples in every run, and no time limit: machines differ. Search deeper with --hypothesis-profile=deep.
settings.register_profile("house", deadline=None, derandomize=True, database=None)
settings.register_profile("deep", deadline=None, max_examples=5000)
settings.load_profile("house")


def _in_memory() -> str | None:
    """A folder in memory with room for the files of the tests, of which a passed test leaves none.

    They are written with an fsync each, and no test outlives a power cut. Docker mounts it small, and without programs.
    """
    try:
        folder = os.statvfs("/dev/shm")
    except OSError:  # not on this system
        return None
    room = min(folder.f_bavail * folder.f_frsize, psutil.virtual_memory().available // 2)
    return "/dev/shm" if room >= 4 * 2**30 and not folder.f_flag & os.ST_NOEXEC else None


if folder_in_memory := _in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder_in_memory)

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())  # a value of the user's wins

MARKED_FOLDERS = ("e2e", "spark", "airflow")
"""Their tests take longest, so they run first, in this order: two workers then end together."""

LEFT_OUT = pytest.StashKey[int]()
"""How many cases the sample has left out."""

SAMPLED_FOLDERS = ("airflow", "contract", "faults", "property", "spark")
"""The tests of the others cost next to nothing, or are what a user does first."""

SLOW_FOLDERS = ("airflow", "spark")
"""Each of their tests takes seconds."""

WHOLE_FOLDERS = ("tests/spark", "tests/airflow")
"""One worker has all of such a folder, so that its Spark, or its Airflow, is started once."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which not every run has
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = _file_or_folder
    return scheduling


def _file_or_folder(node_id: str) -> str:
    return next((folder for folder in WHOLE_FOLDERS if node_id.startswith(f"{folder}/")), node_id.split("::")[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        metavar="SEED",
        help="run the quarter that SEED draws (tests/sample.py)",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    return f"the {_sample(config)}" if config.getoption("sample") else None


def _sample(config: pytest.Config) -> str:
    seed = config.getoption("sample")
    return (
        f"quarter of the cases and of the slow tests that is drawn by --sample {seed} (make test CASES=all runs each)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = _folder(item.path)
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if folder in SLOW_FOLDERS:
            item.add_marker("slow")
        if "s3_server" in getattr(item, "fixturenames", ()):
            item.add_marker("s3")
    if seed := config.getoption("sample"):
        _leave_out(config, items, seed)
    items.sort(key=lambda item: (*MARKED_FOLDERS, _folder(item.path)).index(_folder(item.path)))


def _leave_out(config: pytest.Config, items: list[pytest.Item], seed: str) -> None:
    """Take out of ``items`` what is not in the sample."""
    many = [item for item in items if _folder(item.path) in SAMPLED_FOLDERS]
    drawn = sampled(((_group(item), item.nodeid) for item in many), seed)
    left_out = {item for item in many if item.nodeid not in drawn}
    config.stash[LEFT_OUT] = len(left_out)
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
    items[:] = [item for item in items if item not in left_out]


def _group(item: pytest.Item) -> str:
    """Of which a quarter runs: the cases of its test, or the slow tests of its folder."""
    return _folder(item.path) if item.get_closest_marker("slow") else item.nodeid.partition("[")[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist: each collects all
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = max(
        node.config.stash.get(LEFT_OUT, 0), getattr(node, "workeroutput", {}).get("left_out", 0)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out:,} cases are not in the {_sample(config)}")


def pytest_collection_finish() -> None:
    """The garbage collector need not look at 9,000 tests again and again; processes that are forked share their memory."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # for what libraries check at the end of the process


@cache
def _folder(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(scope="session")
def broker_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``broker_store("market-clean")`` is the folder of that real store. It is shared: copy it before you change it."""

    @cache
    def extract(name: str) -> Path:
        archive = Path(__file__).parent / "data" / "rocketmq" / "stores" / f"{name}.tar.gz"
        return unpack(archive, tmp_path_factory.mktemp(name))

    return extract
