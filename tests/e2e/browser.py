"""Headless Chromium of this machine, driven by Playwright. No browser is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = float(os.environ.get("E2E_MS", "120000"))
"""Longer than any page takes on a busy machine: it only ends a wait for what never comes."""

Theme = Literal["light", "dark"]
WIDE, PHONE = (1280, 900), (390, 844)


def chromium() -> str:
    """The program. Raises FileNotFoundError."""
    if path := shutil.which("chromium"):
        return path
    raise FileNotFoundError("no Chromium on this machine. On Debian: apt-get install chromium")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with an empty profile, for as long as the block lasts."""
    with sync_playwright() as playwright:
        is_root = os.geteuid() == 0  # whose Chromium has no sandbox
        browser = playwright.chromium.launch(
            executable_path=chromium(), chromium_sandbox=not is_root, args=list(_QUIET)
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Console:
    """Airflow's UI with the console in it, as a person with a browser uses it."""

    page: Page
    url: str
    folder: Path
    """For the pictures."""
    stacks: Callable[[], str]
    """What the threads of the server do, asked once a page waits without end."""
    errors: list[str] = field(default_factory=list)
    """Errors of the pages' code."""
    unanswered: dict[Request, None] = field(default_factory=dict)
    """Requests of the pages, in their order."""

    @classmethod
    def of(cls, browser: Browser, url: str, folder: Path, stacks: Callable[[], str]) -> Console:
        context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}, timezone_id="UTC", locale="en-GB")
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        folder.mkdir(parents=True, exist_ok=True)
        console = cls(context.new_page(), url, folder, stacks)
        console.page.on("pageerror", lambda error: console.errors.append(f"{console.page.url}: {error}"))
        console.page.on("request", lambda request: console.unanswered.update({request: None}))
        console.page.on("requestfinished", lambda request: console.unanswered.pop(request, None))
        console.page.on("requestfailed", lambda request: console.unanswered.pop(request, None))
        return console

    def login(self, user: str, password: str) -> None:
        """By the form that Airflow shows to whom it does not know."""
        self.page.goto(self.url)
        self.page.locator("input[name=username]").fill(user)
        self.page.locator("input[name=password]").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("link", name="RocketMQ", exact=True).first.wait_for()

    def open(self, search: str = "") -> None:
        """A page of the console, once it has read everything: ``page=group&group=orders``."""
        self.page.goto(f"{self.url}/plugin/rmq?{search}")
        self.settled()

    def settled(self) -> None:
        """Wait until the console is there and reads nothing any more."""
        self.page.get_by_role("navigation", name="RocketMQ").wait_for()
        try:
            expect(self.page.locator("[aria-busy=true]")).to_have_count(0)
        except AssertionError as error:
            addresses = "\n".join(request.url for request in self.unanswered)
            raise AssertionError(f"{error}\nwithout an answer:\n{addresses}\n{self.stacks()}") from error

    def answer(self, dag_id: str, run_id: str, answer: str) -> None:
        """Answer what the task ``approve`` of a run asks, on its page. Airflow does not load this page again by itself."""
        self.page.goto(f"{self.url}/dags/{dag_id}/runs/{quote(run_id)}/tasks/approve/required_actions")
        self.page.get_by_role("button", name=answer).click()

    def theme(self, theme: Theme) -> None:
        """Airflow keeps the choice in the browser."""
        self.page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        self.page.emulate_media(color_scheme=theme)
        self.page.reload()
        self.settled()

    def table(self, name: str) -> list[dict[str, str]]:
        """The rows of a list: the text of each cell by the title of its column."""
        rows = self.page.get_by_role("table", name=name, exact=True).evaluate(
            "table => [...table.rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        )
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    def trigger(self, button: str, *switches: str, **fields: str) -> str:
        """Fill in the form that a button of the console opens, click its switches, trigger, and return the id of the run."""
        self.page.get_by_role("button", name=button).click()
        form = self.page.get_by_role("dialog")
        for title, text in fields.items():
            form.get_by_label(title.replace("_", " ")).first.fill(text)
        for title in switches:
            form.get_by_label(title).click()
        form.get_by_role("button", name="Trigger").click()
        run = form.locator("a").inner_text()
        form.get_by_role("button", name="Close").click()
        return run

    def picture(self, name: str) -> None:
        """A PNG file of what the window shows."""
        self.page.screenshot(path=self.folder / f"{name}.png", animations="disabled")
