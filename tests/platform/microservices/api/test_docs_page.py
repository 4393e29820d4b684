"""The page of the OpenAPI document in a real browser: every operation is there, and one can be sent."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.platform.console.chromium import FLAGS, chromium
from tests.platform.microservices.api.conftest import Api

PATIENCE_MS = 180_000.0


@pytest.fixture
def page() -> Iterator[Page]:
    try:
        found = chromium()
    except Unavailable as reason:
        absent(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.path, args=list(FLAGS), env={**os.environ, **found.env}, timeout=PATIENCE_MS
        )
        made = browser.new_page()
        made.set_default_timeout(PATIENCE_MS)
        yield made
        browser.close()


def test_every_operation_is_on_the_page_and_can_be_sent(api: Api, page: Page) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    described = api.ok("GET", "/openapi.json", token="")
    page.goto(f"{api.url}/docs")
    page.locator("details").first.wait_for()
    assert page.locator("details").count() == sum(len(methods) for methods in described["paths"].values())

    page.locator("#token").fill(api.token)
    listing = page.locator("details", has=page.locator("summary", has_text="/orgs/{org}/workspacesWorkspaces"))
    listing.locator("summary").click()
    listing.locator("input[name=org]").fill("acme")
    listing.get_by_role("button", name="Send").click()
    listing.locator("pre", has_text="200 OK").wait_for()
    assert '"workspaces"' in listing.locator("pre").inner_text()

    start = page.locator("details", has=page.locator("summary", has_text="inference_microservice/start"))
    start.locator("summary").click()
    assert '"parent_id"' in start.locator("textarea").input_value()
    assert not complaints
