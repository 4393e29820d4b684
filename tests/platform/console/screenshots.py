"""Screenshots of every page of the console, from a real platform that serves real models: `make screenshots`.

A bad canary of the iris example is rolled back, a good one runs while most of them are taken and is promoted in the
end, and a client sends requests all the time.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Error, Page, ViewportSize, sync_playwright
from tests.embedded import FLOWER, ROOT, Platform, inference_service, serverless
from tests.onnx_models import write_python
from tests.platform.canaries.runner.conftest import better, iris, ledger, worse
from tests.platform.client.conftest import SPEAKER, SPEAKER_CONFIG
from tests.platform.console.chromium import FLAGS, chromium
from tests.platform.console.conftest import PATIENCE_MS

FOLDER: Final = ROOT / "docs" / "images"
LARGEST: Final = 300_000
WIDE: Final = ViewportSize(width=1280, height=800)
NARROW: Final = ViewportSize(width=390, height=844)
TABS: Final = ("overview", "canary", "try", "logs", "events", "releases", "manifests")
CHECKS: Final = ("--check", "p99_ms<1000", "--check", "error_rate<1%")
PACE: Final = ("--interval", "2s", "--min-requests", "5", *CHECKS, "--no-wait")
BAD: Final = ("--steps", "10,50,100", "--bake", "20s", *PACE)
GOOD: Final = ("--steps", "5,25,50,100", "--bake", "30s", "--compare", "baseline", "--ratio", "3", *PACE)
LONGEST_S: Final = 300.0


@contextmanager
def asking(platform: Platform) -> Iterator[None]:
    """A client that asks some twenty times a second, now more and now less, as people do."""
    ending = threading.Event()

    def ask() -> None:
        count = 0
        while not ending.wait(0.03 + 0.05 * (count // 150 % 2)):
            platform.ask(body=FLOWER)
            count += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def started(platform: Platform, folder: Path) -> None:
    """A service at work, one scaled to zero, one that chats, and one that cannot start."""
    platform.deploy(iris())
    platform.deploy(serverless("flowers"))
    write_python(folder, "chat", SPEAKER, SPEAKER_CONFIG)
    platform.deploy(inference_service("chat", "python", (folder / "chat").as_uri(), least=1, most=1))
    (folder / "broken").mkdir()
    (folder / "broken" / "model.py").write_text("import sentence_splitter\n")
    platform.deploy(inference_service("broken", "python", (folder / "broken").as_uri(), least=1, most=1))
    platform.wait_phase("Ready")
    platform.wait_phase("Ready", name="chat")
    platform.wait_phase("Failed", name="broken")


def canary(platform: Platform, document: Path, *how: str) -> None:
    command = [sys.executable, "-m", "platformctl.main", "canary", "start", "-f", str(document), *how]
    subprocess.run(command, env=platform.env, check=True)


def ended(platform: Platform, phase: str) -> None:
    platform.wait(lambda: ledger(platform).current.phase == phase, f"the canary to be {phase}", LONGEST_S)


def shoot(page: Page, name: str) -> None:
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < LARGEST, f"{path} has {path.stat().st_size} bytes"


def service(page: Page, url: str, tab: str) -> None:
    page.goto(f"{url}#/services/default/iris/{tab}")
    page.locator(f"#tab-{tab}[aria-selected=true]").wait_for()
    if tab == "try":
        page.get_by_label("x FP32 [-1, 4]").fill("[5.1, 3.5, 1.4, 0.2]")
        page.keyboard.press("Control+Enter")
        page.get_by_text("Status 200").wait_for()
    page.wait_for_timeout(1500)  # lines and tables are there then


def opened(browser: Browser, platform: Platform, size: ViewportSize, scheme: Literal["light", "dark"]) -> Page:
    context = browser.new_context(viewport=size, color_scheme=scheme, timezone_id="UTC")
    context.set_default_timeout(2 * PATIENCE_MS)
    page = context.new_page()
    for _ in range(3):  # a network interface that comes or goes aborts what Chromium loads
        page.goto("about:blank")
        page.goto(f"{address(platform)}#token={platform.target.console().ticket}")
        with suppress(Error):
            page.locator("a.name").first.wait_for(timeout=PATIENCE_MS)
            break
    page.wait_for_timeout(1500)
    return page


def address(platform: Platform) -> str:
    return f"http://127.0.0.1:{platform.address.port}/console"


def views(browser: Browser, platform: Platform) -> None:
    """Every page in light, the most important ones in dark and on a telephone."""
    for suffix, size, scheme in (("", WIDE, "light"), ("-dark", WIDE, "dark"), ("-narrow", NARROW, "light")):
        page = opened(browser, platform, size, "dark" if scheme == "dark" else "light")
        shoot(page, f"services{suffix}")
        page.goto(f"{address(platform)}#/dashboards/overview")
        page.locator("[data-chart='Replicas ready'] canvas").wait_for()
        shoot(page, f"dashboards{suffix}")
        for tab in TABS if not suffix else ("overview", "canary"):
            service(page, address(platform), tab)
            shoot(page, f"{tab}{suffix}")
        page.context.close()


def states(browser: Browser, platform: Platform) -> None:
    """The editor with a problem, a chat, a failed service."""
    page, url = opened(browser, platform, WIDE, "light"), address(platform)
    page.goto(f"{url}#/deploy")
    page.get_by_role("button", name="Insert an example").click()
    editor = page.get_by_label("Manifest (YAML or JSON)")
    editor.fill(editor.input_value().replace("maxReplicas", "maxReplica"))
    page.get_by_text("PL101").wait_for()
    shoot(page, "editor")
    page.goto(f"{url}#/services/default/chat/try")
    page.get_by_label("Message").fill("This model repeats every message.")
    page.get_by_text("Use it from code").click()
    page.get_by_role("button", name="Send").click()
    page.locator(".chat .assistant .said").filter(has_text="message.").wait_for()
    shoot(page, "chat")
    page.goto(f"{url}#/services/default/broken")
    page.get_by_label("End of the log").wait_for()
    shoot(page, "failed")
    page.context.close()


def story(browser: Browser, platform: Platform, folder: Path) -> None:
    started(platform, folder)
    states(browser, platform)
    page = opened(browser, platform, WIDE, "light")
    canary(platform, worse(folder, "time.sleep(1.5)"), *BAD)
    ended(platform, "RolledBack")
    service(page, address(platform), "canary")
    shoot(page, "canary-rolled-back")
    canary(platform, better(folder), *GOOD)
    page.get_by_text("50 % current").wait_for(timeout=1000 * LONGEST_S)
    views(browser, platform)
    ended(platform, "Promoted")
    service(page, address(platform), "canary")
    shoot(page, "canary-promoted")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("API token").wait_for()
    shoot(page, "login")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    found = chromium()
    with (
        tempfile.TemporaryDirectory() as folder,
        Platform(Path(folder) / "home") as platform,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=found.path, args=list(FLAGS), env={**os.environ, **found.env}
        )
        with asking(platform):
            story(browser, platform, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
