"""The page's own code, run in Node with a stand-in for Airflow's UI, over real answers of the routes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from rmq_store.admin.dag_params import dag_id_of
from rmq_store.console.app import create_app
from rmq_store.console.pages import LISTINGS
from rmq_store.console.reader import StoreReader
from tests.contract.test_console import ACCESS
from tests.lake_fixtures import small_store

STATIC = Path(__file__).resolve().parents[2] / "rmq_store" / "console" / "static"
HOSTS = Path(__file__).parent
OF_PAGES: dict[str, list[str]] = {
    "page=groups": ["groups", "blocked"],
    "page=group&group=shop": ["queues", "blocked", "windows", "offsets", "owners"],
    "page=window&group=shop&request=2026-11-20-one": ["windows", "retry-windows", "dead-letters"],
    "page=topics": ["topics"],
    "page=topic&topic=Orders": ["topic-groups", "topic-queues"],
    "page=message&id=U0-9": [],
    "page=delayed": ["delay-levels", "delayed"],
    "page=dead": ["dead-letter-causes"],
    "page=dead&group=shop": ["dead-letter-causes", "dead-letters"],
    "page=replays": ["replays"],
    "page=audit": ["requests", "maintenance", "removed"],
}
"""The lists of each page, by its address."""
TEXTS = {
    "page=groups": "shop",
    "page=group&group=shop": "Lag over time",
    "page=window&group=shop&request=2026-11-20-one": "request_id = '2026-11-20-one'",
    "page=topic&topic=Orders": "broker-a",
    "page=message&id=U0-9": "no such customer",
    "page=dead&group=shop": "Send again",
    "page=audit": "No finding at",
}

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node to run the page's code")
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    store = small_store(tmp_path_factory.mktemp("small"), ["broker-a"]).store
    return TestClient(create_app(StoreReader(lambda: store), ACCESS), headers={"x-user": "editor of rmq_consume__shop"})


@pytest.fixture(scope="module")
def answers(client: TestClient) -> dict[str, str]:
    """The text of each answer that a page may ask for, by its path."""
    needed = {"group": "shop", "topic": "Orders", "request": "2026-11-20-one"}
    queries: dict[str, dict[str, str]] = {
        f"api/lists/{name}": {key: needed[key] for key in listing.needs} for name, listing in LISTINGS.items()
    }
    queries |= {
        "api/lag": {"group": "shop"},
        "api/audit": {},
        "api/message": {"id": "U0-9"},
        "api/track": {"id": "U0-9"},
        "api/messages": {"topic": "Orders"},
        "api/redrive": {"group": "shop", "all": "true"},
    }
    texts = {path: client.get(f"/{path}?{urlencode(query)}") for path, query in queries.items()}
    assert {answer.status_code for answer in texts.values()} == {200}
    return {path: answer.text for path, answer in texts.items()}


def page(
    folder: Path, search: str, answers: dict[str, str], code: str = "console.js", host: str = "console_host.mjs"
) -> dict[str, Any]:
    """What a reader of the page sees and what it reads."""
    shutil.copytree(STATIC, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    given = {"module": (folder / code).as_uri(), "search": search, "answers": answers}
    process = subprocess.run(
        ["node", str(HOSTS / host)], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-4000:]
    seen: dict[str, Any] = json.loads(process.stdout)
    return seen


@needs_node
@pytest.mark.parametrize("search", OF_PAGES)
def test_a_page_shows_what_it_reads(search: str, client: TestClient, answers: dict[str, str], tmp_path: Path) -> None:
    seen = page(tmp_path, search, answers)
    assert seen["settled"], "the page must not read for ever"
    assert {f"api/lists/{name}" for name in OF_PAGES[search]} == {
        path.partition("?")[0] for path in seen["reads"] if path.startswith("api/lists/")
    }
    for path in seen["reads"]:
        assert client.get(f"/{path}").status_code == 200, path
    assert "no answer" not in seen["text"]
    assert TEXTS.get(search, "RocketMQ") in seen["text"]
    assert not re.search(r"undefined|NaN|\[object", seen["text"])
    assert all(link.startswith(("?", "/dags/")) for link in seen["links"])


PLAIN = {
    "": ("groups", "shop"),
    "?list=nothing": ("groups", "shop"),
    "?dag_id=rmq_consume__shop": ("queues", "broker-a"),
    "?group=shop&list=windows&sort=-committed_at": ("windows", "alice"),
    "?group=shop&list=dead-letters": ("dead-letters", "Orders"),
    "?topic=Orders&list=topic-groups": ("topic-groups", "shop"),
    "?list=delay-levels&theme=dark": ("delay-levels", "Orders"),
}
"""Of the plain page: the list that an address shows, and a text of it."""


@needs_node
@pytest.mark.parametrize("search", PLAIN)
def test_the_plain_page_shows_a_list(search: str, client: TestClient, answers: dict[str, str], tmp_path: Path) -> None:
    name, text = PLAIN[search]
    seen = page(tmp_path, search, answers, "page.js", "plain_page_host.mjs")
    assert seen["reads"][0].partition("?")[0] == f"api/lists/{name}"
    for path in seen["reads"]:
        assert client.get(f"/{path}").status_code == 200, path
    parts = seen["parts"]
    assert text in parts["rows"]
    assert re.search(r"\brows?$", parts["note"])
    assert ("Lag over time" in parts.get("chart", "")) is (name == "queues")
    assert not re.search(r"undefined|NaN|\[object", " ".join(parts.values()))


@needs_node
def test_the_tab_of_a_dag_decodes_the_name_of_its_group(answers: dict[str, str], tmp_path: Path) -> None:
    search = f"?{urlencode({'dag_id': dag_id_of('capped|%x')})}"
    seen = page(tmp_path, search, answers, "page.js", "plain_page_host.mjs")
    assert all("group=capped%7C%25x" in path for path in seen["reads"])
    cut = page(tmp_path, f"?{urlencode({'dag_id': dag_id_of('%' * 86)})}", answers, "page.js", "plain_page_host.mjs")
    assert [path.partition("?")[0] for path in cut["reads"]] == ["api/lists/groups"], (
        "it has only the beginning of the name"
    )


def test_the_columns_of_the_pages_are_those_of_the_lists() -> None:
    text = (STATIC / "shared.js").read_text().partition("export const COLUMNS = {")[2].partition("};")[0]
    shown = {
        name.strip('"'): json.loads(columns) for name, columns in re.findall(r'^  ("?[\w-]+"?): (\[.*\]),$', text, re.M)
    }
    assert set(shown) == set(LISTINGS)
    for name, columns in shown.items():
        assert set(columns) - set(LISTINGS[name].columns) <= {"outcomes"}, name


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_the_page_asks_for_nothing_elsewhere_and_makes_no_html_of_texts(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "all comes from the api-server"
    assert not re.search(r"innerHTML|dangerouslySetInnerHTML|document\.write|\beval\b", text)
    assert not re.search(r"""(?:fetch|href|src)[=(:]\s*["'`]/""", text), "Airflow's base URL may have a path"


TEXTS_OF_VALUES = {
    'runText({ runId: "manual__2026-11-23T18:40:09.357578+00:00" })': "manual 2026-11-23 18:40:09",
    'runText({ runId: "window-1" })': "window-1",
    "lagText([[0, 0], [60000, 0]])": "Lag over time: 0, from 1970-01-01 00:00:00 UTC to 1970-01-01 00:01:00 UTC",
    "lagText([[0, 1200], [0, 3]]).slice(0, 37)": "Lag over time: at most 1,200, now 3, ",
    'label("deliver_at")': "Due (UTC)",
    'valueText("committed_at", 0)': "1970-01-01 00:00:00",
    'valueText("queue_id", 1000)': "1000",
    'valueText("lag", 1000)': "1,000",
    'String(isAmount("queue_id", 1))': "false",
    'indented("{broken")': "{broken",
    'indented("[1]")': "[\n  1\n]",
}


@needs_node
def test_values_look_the_same_on_both_pages(tmp_path: Path) -> None:
    shutil.copy(STATIC / "shared.js", tmp_path / "shared.mjs")
    names = "indented, isAmount, label, lagText, runText, valueText"
    code = f'import {{ {names} }} from "./shared.mjs"; console.log(JSON.stringify([{", ".join(TEXTS_OF_VALUES)}]))'
    (tmp_path / "main.mjs").write_text(code)
    process = subprocess.run(["node", "main.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert dict(zip(TEXTS_OF_VALUES, json.loads(process.stdout), strict=True)) == TEXTS_OF_VALUES


NO_ANSWER = """
globalThis.fetch = (url, { signal }) => new Promise((_, refuse) => {
  if (signal.aborted) refuse(signal.reason);
  signal.addEventListener("abort", () => refuse(signal.reason));
});
const left = new AbortController();
AbortSignal.timeout = () => new AbortController().signal;
const leaving = read("api/lag", {}, left.signal).catch((error) => error.name);
left.abort();
AbortSignal.timeout = () => AbortSignal.abort(new DOMException("late", "TimeoutError"));
const reads = [read("api/lag", {}), read("api/lag", {}, new AbortController().signal)];
const texts = await Promise.all(reads.map((one) => one.catch((error) => error.message)));
console.log(JSON.stringify([await leaving, ...texts]));
"""


@needs_node
def test_a_page_does_not_wait_without_end(tmp_path: Path) -> None:
    shutil.copy(STATIC / "shared.js", tmp_path / "shared.mjs")
    (tmp_path / "main.mjs").write_text(f'import {{ read }} from "./shared.mjs";{NO_ANSWER}')
    process = subprocess.run(["node", "main.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    text = "The server has not answered for 150 s. Load the page again."
    assert json.loads(process.stdout) == ["AbortError", text, text]
