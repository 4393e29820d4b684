"""Buttons of the console that change what serves: a canary is paused, promoted and aborted, a release comes back."""

import re
import tempfile
from datetime import UTC, datetime

from playwright.sync_api import Locator, expect
from tests.embedded import Platform
from tests.platform.console.conftest import PATIENCE_MS, Console, document

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.runner import apply_release, start_canary
from pilotlight.plan.types import Capabilities
from pilotlight.release import apply, history
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.spec.canary_policy import CanaryPolicy, Check

expect.set_options(timeout=PATIENCE_MS)

KEY = ("default", "iris")
# It stays at a step until somebody presses a button, and is measured all the while.
POLICY = CanaryPolicy(steps=(10, 50, 100), bake_s=3600.0, interval_s=0.5, checks=(Check("p99_ms", maximum=60_000.0),))


def started(platform: Platform) -> None:
    """A canary of the same model, as `platformctl canary start` makes it."""
    stable = history.releases(platform.target, KEY)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(document(model="      env: [{name: CANARY, value: console}]"))
        file.flush()
        shared = history.with_canary_percent(read(Sources([file.name])), 0, judged=True)
    apply_release(platform.target, apply.ReleaseRequest(shared, Capabilities(), note="canary 0 %"))
    start_canary(platform.target, history.releases(platform.target, KEY)[0], stable, POLICY, datetime.now(UTC))


def kept(platform: Platform) -> Canary:
    found = stored_history.decode_history(platform.target.canary(KEY)).current
    assert found is not None
    return found


def press(console: Console, name: str) -> None:
    console.page.get_by_role("group", name="Canary actions").get_by_role("button", name=name, exact=True).click()


def dialog(console: Console) -> Locator:
    return console.page.get_by_role("dialog")


def test_a_canary_is_seen_at_work_and_obeys_its_buttons(console: Console, platform: Platform) -> None:
    page = console.page
    console.log_in()
    console.open("canary")
    expect(page.get_by_text("No canary has run.")).to_be_visible()
    started(platform)
    steps = page.get_by_role("list", name="Steps")
    expect(steps.locator("[aria-current=step]")).to_contain_text("10 %")
    expect(page.get_by_role("img", name="Traffic")).to_have_attribute("aria-label", re.compile("90 %.* 10 %"))
    check = page.get_by_role("table", name="Checks").get_by_role("row").filter(has_text="p99_ms")
    expect(check).to_contain_text("< 60.0 s")

    press(console, "Pause")
    expect(page.locator(".phase").filter(has_text="Paused")).to_be_visible()
    press(console, "Resume")
    expect(page.locator(".phase").filter(has_text="Progressing").first).to_be_visible()
    platform.wait(lambda: (kept(platform).phase, kept(platform).command) == ("Progressing", ""), "the resume")

    press(console, "Promote")
    page.keyboard.press("Escape")
    expect(dialog(console)).to_have_count(0)
    assert (kept(platform).step, kept(platform).command) == (0, "")  # Escape means no
    press(console, "Promote")
    expect(dialog(console).get_by_role("button", name="Cancel")).to_be_focused()
    dialog(console).get_by_role("button", name="Promote").click()
    expect(steps.locator("[aria-current=step]")).to_contain_text("50 %")

    press(console, "Abort")
    dialog(console).get_by_role("button", name="Abort").click()
    expect(page.locator(".phase").filter(has_text="RolledBack").first).to_be_visible()
    expect(page.get_by_text("Rolled back at 50 %")).to_be_visible()
    expect(steps.get_by_role("listitem")).to_have_text(["10 % done", "50 % rolled back", "100 % not reached"])
    expect(page.get_by_text("In this step")).to_have_count(0)
    ended = kept(platform)
    assert ended.phase == "RolledBack"
    assert {row.name: row.percent for row in platform.status().revisions if row.percent} == {ended.stable: 100}


def test_a_press_counts_however_often_the_page_is_drawn_under_it(console: Console, platform: Platform) -> None:
    """People hold a button for a tenth of a second and more; a canary may be drawn anew meanwhile."""
    page = console.page
    console.log_in()
    console.open("canary")
    started(platform)
    check = page.get_by_role("table", name="Checks").get_by_role("row").filter(has_text="p99_ms")
    measured = check.locator("td").nth(6)
    platform.wait(lambda: kept(platform).phase == "Progressing" and bool(kept(platform).measurements), "a measurement")
    expect(measured).to_have_text(re.compile(r"\d"))
    page.get_by_role("button", name="Pause", exact=True).hover()
    page.mouse.down()
    before = measured.inner_text()
    expect(measured).not_to_have_text(before)
    page.mouse.up()
    expect(page.locator(".phase").filter(has_text="Paused")).to_be_visible()
    press(console, "Abort")
    dialog(console).get_by_role("button", name="Abort").click()
    platform.wait(lambda: kept(platform).phase == "RolledBack", "the abort")  # a row of an earlier one says so too

    revision = kept(platform).revision
    for number in (1, 2):  # of two replicas that have ended
        (platform.home.logs / "default" / "iris" / f"{revision}-ended{number}.log").write_text(f"line {number}\n")
    earlier = page.get_by_role("table", name="Earlier canaries")
    earlier.get_by_role("link", name="Logs").first.click()
    chosen = page.get_by_label("Replica", exact=True)
    expect(chosen).to_have_value(revision)
    page.get_by_label("Ended replicas").check()
    for wanted in (revision, ""):
        chosen.select_option(wanted)
        for number in (1, 2):
            expect(page.get_by_role("log")).to_contain_text(f"line {number}")
    chosen.select_option(f"{revision}-ended1")
    expect(page.get_by_role("log")).not_to_contain_text("line 2")
    expect(page.get_by_role("log")).to_contain_text("line 1")


def test_a_release_comes_back_by_its_button(console: Console, platform: Platform) -> None:
    first = history.releases(platform.target, KEY)[-1]
    platform.deploy(document(model="      env: [{name: RELEASE, value: second}]"), reset=True)
    console.log_in()
    console.open("releases")
    page = console.page
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=str(first.generation), exact=True))
    row.get_by_role("button", name="Roll back", exact=True).click()
    dialog(console).get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("cell", name=f"rollback to generation {first.generation}")).to_be_visible()
    newest = history.releases(platform.target, KEY)[0]
    assert history.revisions(newest) == history.revisions(first)
