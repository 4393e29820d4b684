"""Every page as people use it who read it aloud, walk it by keys or need contrast; axe is the judge."""

import re
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from tests.embedded import Platform
from tests.platform.console.conftest import PATIENCE_MS, Console

expect.set_options(timeout=PATIENCE_MS)

NARROW = {"viewport": {"width": 390, "height": 844}}
TABS = ("overview", "canary", "try", "logs", "events", "releases", "manifests")
ALL = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}


def complaints(console: Console, where: str, rules: Any) -> list[str]:
    found: list[dict[str, Any]] = Axe().run(console.page, options={"runOnly": rules}).response["violations"]
    return [f"{where}: {each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize(
    ("scheme", "rules"), [("light", ALL), pytest.param("dark", COLOURS, marks=pytest.mark.long)], ids=["light", "dark"]
)
def test_axe_finds_nothing_on_any_page(console: Console, scheme: Literal["light", "dark"], rules: Any) -> None:
    page = console.page
    page.emulate_media(color_scheme=scheme)
    page.goto(console.url)
    page.get_by_label("API token").wait_for()
    found = complaints(console, "login", rules)
    console.log_in()
    page.get_by_role("link", name="iris", exact=True).wait_for()
    found += complaints(console, "services", rules)
    for tab in TABS:
        console.open(tab)
        if tab == "overview":
            page.locator("[data-chart=Replicas] canvas").wait_for()
            page.locator("[data-chart=Replicas]").get_by_text("Values").click()
        if tab == "try":
            page.get_by_role("button", name="Send").click()
            page.get_by_text("Answered 200").wait_for()
        found += complaints(console, tab, rules)
    page.goto(f"{console.url}#/dashboards/overview")
    page.locator("[data-chart='Replicas ready'] canvas").wait_for()
    found += complaints(console, "dashboards", rules)
    assert not found, "\n".join(found)


def test_the_keyboard_alone_reaches_everything(console: Console, platform: Platform) -> None:
    page = console.page
    page.goto(console.url)
    expect(page.get_by_label("API token")).to_be_focused()
    page.keyboard.type(platform.address.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="iris", exact=True)).to_be_visible()
    page.keyboard.press("/")
    filter_ = page.get_by_label("Filter services")
    expect(filter_).to_be_focused()
    page.keyboard.type("nobody")
    expect(page.get_by_text("No service is called so.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(filter_).to_have_value("")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="iris", exact=True)).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    tabs = page.get_by_role("tab")
    tabs.first.focus()
    for name in ("Canary", "Try it", "Logs"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Overview")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("tabpanel")).to_be_focused()


def test_dark_and_light_follow_the_system(console: Console) -> None:
    console.log_in()
    for scheme in ("dark", "light"):
        console.page.emulate_media(color_scheme=scheme)
        ground = console.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 128) is (scheme == "dark")


@pytest.mark.parametrize("settings", [NARROW], ids=["390 px"])
def test_a_narrow_screen_needs_no_scrolling_sideways(console: Console, settings: dict[str, Any]) -> None:
    console.log_in()
    expect(console.page.get_by_role("link", name="iris", exact=True)).to_be_visible()
    for tab in ("", *TABS):
        if tab:
            console.open(tab)
        wide = console.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= settings["viewport"]["width"], f"{tab or 'services'} is {wide} px wide"
    console.page.goto(f"{console.url}#/dashboards/overview")
    console.page.locator("[data-chart='Replicas ready'] canvas").wait_for()
    assert console.page.evaluate("document.documentElement.scrollWidth") <= settings["viewport"]["width"]
