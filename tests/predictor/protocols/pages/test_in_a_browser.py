"""The pages in a real Chromium, behind a prefix: links, addresses, the form, contrast. What a page logs fails it."""

import os
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.platform.console.chromium import FLAGS, chromium
from tests.serving import RunningServer

PATIENCE_MS = 120_000.0
RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def page() -> Iterator[Page]:
    try:
        found = chromium()
    except Unavailable as reason:
        absent(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.path, args=list(FLAGS), env={**os.environ, **found.env}, timeout=3 * PATIENCE_MS
        )
        opened = browser.new_page()
        opened.set_default_timeout(PATIENCE_MS)
        complaints: list[str] = []
        opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        yield opened
        browser.close()
        assert not complaints


def violations(page: Page, scheme: Literal["light", "dark"]) -> list[Any]:
    page.emulate_media(color_scheme=scheme)
    found: list[Any] = Axe().run(page, options={"runOnly": RULES}).response["violations"]
    return [(each["id"], node["html"][:120]) for each in found for node in each["nodes"]]


@pytest.fixture
def prefixed(server: RunningServer) -> Iterator[str]:
    """The server's address behind a proxy that takes /iris off, as the gateway does."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, body = (
                self.path.removeprefix("/iris") or "/",
                self.rfile.read(int(self.headers["Content-Length"] or 0)),
            )
            upstream = HTTPConnection("127.0.0.1", server.port, timeout=60)
            upstream.request(self.command, path, body, dict(self.headers))
            answer = upstream.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())
            upstream.close()

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}/iris"
        proxy.shutdown()


def test_a_model_is_described_and_tried_behind_a_prefix(prefixed: str, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(prefixed)  # without the slash that relative links need
    page.wait_for_url(f"{prefixed}/")
    lines = page.locator("code.curl").first.inner_text()
    assert f"'{prefixed}/v2/models/add_sub/infer'" in lines
    assert b'"outputs"' in subprocess.run(["bash", "-c", lines], capture_output=True, check=True).stdout
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(page, "light") == []
    assert violations(page, "dark") == []

    page.get_by_role("link", name="Try it").click()
    page.wait_for_url(f"{prefixed}/docs")
    infer = page.locator(".opblock", has_text="V2 inference").first
    infer.locator(".opblock-summary").click()
    infer.get_by_role("button", name="Execute").click()
    answer = infer.locator(".live-responses-table .response").first
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    expect(answer).to_contain_text('"model_name"')
