"""What is sent to the workers of a cluster: files and names here, a real cluster in ``tests/spark/test_cluster.py``."""

from __future__ import annotations

import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import WrongUse
from rmq_store.settings.spark_settings import SparkSettings
from spark_jobs import ship as shipping
from spark_jobs.ship import files_of, packages_of, ship, ships


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package, a module, and things that are no code."""
    folder = tmp_path / "src"
    for name in ("shop/__init__.py", "shop/listeners.py", "shop/prices.json", "single.py", ".secret/key.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("value = 1\n")
    (folder / "shop" / "__pycache__").mkdir()
    (folder / "shop" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"")
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").write_text("")
    (folder / "env" / "library.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(folder))
    for name in ("shop", "single"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def names_in(content: bytes) -> list[str]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return archive.namelist()


def test_of_a_listener_its_package_is_sent_or_its_module(shop: Path) -> None:
    assert packages_of(["shop.listeners:Orders", "single:consume", "shop:other"]) == [shop / "shop", shop / "single.py"]
    assert packages_of(["shop.listeners:Orders"], [shop]) == [], "the folder is sent as a whole"
    assert packages_of(["no_such_module:f"]) == []
    with pytest.raises(WrongUse, match="put it into a module of its own"):
        packages_of(["__main__:consume"])


def test_a_package_is_a_zip_file_whose_name_says_its_content(shop: Path) -> None:
    [(name, content)] = files_of([shop / "shop"], whole=False).items()
    assert names_in(content) == ["shop/__init__.py", "shop/listeners.py", "shop/prices.json"]
    assert files_of([shop / "shop"], whole=False) == {name: content}
    (shop / "shop" / "listeners.py").write_text("value = 2\n")
    [other] = files_of([shop / "shop"], whole=False)
    assert other != name
    assert name.startswith("shop-")
    assert name.endswith(".zip")


def test_a_folder_is_sent_without_what_is_no_code_of_it(shop: Path) -> None:
    [content] = files_of([shop]).values()
    assert names_in(content) == ["single.py", "shop/__init__.py", "shop/listeners.py", "shop/prices.json"]


def test_a_file_is_sent_as_it_is_and_a_wheel_as_a_zip_file(shop: Path) -> None:
    (shop / "models-1.0-py3-none-any.whl").write_bytes(b"wheel")
    files = files_of([shop / "single.py", str(shop / "models-1.0-py3-none-any.whl")])
    single, wheel = files
    assert (single, files[single]) == ("single.py", b"value = 1\n")
    assert (wheel.startswith("models-1.0-py3-none-any-"), wheel[-4:], files[wheel]) == (True, ".zip", b"wheel")


def test_what_a_worker_cannot_import_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongUse, match="no such file or folder"):
        files_of([shop / "nothing.zip"])
    with pytest.raises(WrongUse, match=r"Spark's workers cannot import .*prices\.json: name a folder"):
        files_of([shop / "shop" / "prices.json"])
    monkeypatch.setattr(shipping, "MOST_BYTES", 15)
    with pytest.raises(WrongUse, match="name a folder that has only code"):
        files_of([shop / "shop"])
    (shop / "shop" / "fast.so").write_bytes(b"")
    with pytest.raises(WrongUse, match=r"fast\.so is compiled code.*spark\.rmq\.ship=false"):
        files_of([shop / "shop"])


@pytest.mark.parametrize(
    ("chosen", "session", "expected"),
    [
        (None, {"spark.master": "local[2]"}, False),
        (None, {"spark.master": "spark://here:7077"}, True),
        (None, {"spark.master": "yarn", "spark.rmq.ship": "false"}, False),
        (None, {"spark.master": "local[2]", "spark.rmq.ship": "true"}, True),
        (False, {"spark.master": "yarn"}, False),
        (True, {"spark.master": "local", "spark.rmq.ship": "false"}, True),
        (None, {}, False),
    ],
)
def test_code_is_sent_to_a_cluster_unless_the_workers_have_it(
    chosen: bool | None, session: dict[str, str], expected: bool
) -> None:
    assert ships(chosen, session.get) == expected


class Session:
    """Stands for a Connect session, which has no SparkContext."""

    def __init__(self, **settings: str) -> None:
        self.conf = {key.replace("_", "."): value for key, value in settings.items()}
        self.sent: list[tuple[str, ...]] = []

    def addArtifacts(self, *paths: str, pyfile: bool) -> None:
        assert pyfile
        self.sent.append(paths)


def test_through_connect_code_goes_as_artifacts(shop: Path, tmp_path: Path) -> None:
    session: Any = Session(spark_master="spark://here:7077")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ship(session, SparkSettings(py_files=(str(shop / "single.py"),)), ["shop.listeners:Orders"], [Path.cwd()], scratch)
    [paths] = session.sent
    assert [Path(path).name.partition("-")[0] for path in paths] == ["single.py", "rmq_store", "shop"]
    assert "rmq_store/lake/window/consume_slice.py" in names_in(Path(paths[1]).read_bytes())


def test_to_workers_on_this_host_only_the_named_files_go(shop: Path, tmp_path: Path) -> None:
    session: Any = Session(spark_master="local[2]")
    ship(session, SparkSettings(), ["shop.listeners:Orders"], [shop], tmp_path)
    assert session.sent == []
    ship(session, SparkSettings(py_files=(str(shop / "single.py"),)), [], [], tmp_path)
    assert session.sent == [(str(tmp_path / "single.py"),)]
