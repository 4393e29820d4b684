"""A real Chromium before a real platform. Whatever a page logs as an error fails its test."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from tests.embedded import IRIS, Platform, inference_service
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.platform.api.conftest import api  # noqa: F401 - the control API over an engine that only remembers
from tests.platform.console.chromium import FLAGS, chromium

PATIENCE_MS = 60_000.0  # a busy machine is slow


def document(name: str = "iris", annotations: str = "", model: str = "") -> str:
    """The iris example with a replica at all times: tests that look on do not wait for it."""
    return inference_service(name, "onnx", IRIS.as_uri(), least=1, most=3, annotations=annotations, model=model)


@dataclass
class Console:
    """One tab, and what it complained of."""

    page: Page
    platform: Platform
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # beginnings of complaints that a test provokes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.platform.address.port}/console"

    def log_in(self) -> None:
        """By a link, as `platformctl console` makes it."""
        self.page.goto(f"{self.url}#token={self.platform.target.console().ticket}")
        self.page.get_by_role("heading", name="Services", exact=True).wait_for()

    def open(self, tab: str, service: str = "default/iris") -> None:
        self.page.goto(f"{self.url}#/services/{service}/{tab}")
        self.page.locator(f"#tab-{tab}[aria-selected=true]").wait_for()

    def told(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def unexpected(self) -> list[str]:
        return [each for each in self.complaints if not each.startswith(self.expected or ("\0",))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer than a module: while Playwright runs, no test of this thread can have an event loop."""
    try:
        found = chromium()
    except Unavailable as reason:
        absent(reason)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=found.path, args=list(FLAGS), env={**os.environ, **found.env}, timeout=3 * PATIENCE_MS
        )
        yield started
        started.close()


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """With the iris example, which has answered once. All tests here share it and leave it serving."""
    with Platform(tmp_path_factory.mktemp("console") / "home") as running:
        running.deploy(document())
        running.wait_phase("Ready", "Standby")
        assert running.ask().status == 200
        yield running


@pytest.fixture
def settings() -> dict[str, Any]:
    """Of the tab; a test may have others by parametrize."""
    return {"viewport": {"width": 1280, "height": 800}}


@pytest.fixture
def context(browser: Browser, settings: dict[str, Any]) -> Iterator[BrowserContext]:
    made = browser.new_context(**settings)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def console(context: BrowserContext, platform: Platform) -> Iterator[Console]:
    made = Console(context.new_page(), platform)
    made.page.on("console", made.told)
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
    yield made
    assert not made.unexpected()
