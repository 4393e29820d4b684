"""Every page as people use it who read it aloud, walk it by keys or need contrast; axe is the judge."""

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from tests.embedded import Platform
from tests.platform.console.conftest import PATIENCE_MS, Console

expect.set_options(timeout=PATIENCE_MS)

WIDE = {"viewport": {"width": 1280, "height": 800}}
NARROW = {"viewport": {"width": 390, "height": 844}}
TABS = ("overview", "canary", "try", "logs", "events", "releases", "manifests")
ALL = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def complaints(console: Console, where: str, rules: Any) -> list[str]:
    found: list[dict[str, Any]] = Axe().run(console.page, options={"runOnly": rules}).response["violations"]
    return [f"{where}: {each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


def pages(console: Console) -> Iterator[str]:
    """Open every page in turn, with what a person would have done on it."""
    page = console.page
    page.goto(console.url)
    page.get_by_label("API token").wait_for()
    yield "login"
    console.log_in()
    page.get_by_role("link", name="iris", exact=True).wait_for()
    yield "services"
    for tab in TABS:
        console.open(tab)
        if tab == "overview":
            page.locator("[data-chart=Replicas] canvas").wait_for()
            page.locator("[data-chart=Replicas]").get_by_text("Values").click()
        if tab == "try":
            page.get_by_text("Use it from code").click()
            page.get_by_role("button", name="Send").click()
            page.get_by_text("Status 200").wait_for()
        yield tab
    page.goto(f"{console.url}#/dashboards/overview")
    page.locator("[data-chart='Replicas ready'] canvas").wait_for()
    yield "dashboards"
    page.goto(f"{console.url}#/services/default/nosuch")
    page.get_by_role("heading", name="Service not found").wait_for()
    yield "not found"
    page.goto(f"{console.url}#/services/default/iris/edit")
    page.get_by_role("button", name="Review changes").click()
    page.get_by_role("button", name="Deploy", exact=True).wait_for()
    yield "review"
    page.goto(f"{console.url}#/deploy")
    page.get_by_role("button", name="Insert an example").click()
    page.get_by_text("PL341").wait_for()
    yield "problems"


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("light", WIDE),
        pytest.param("dark", WIDE, marks=pytest.mark.long),
        pytest.param("light", NARROW, marks=pytest.mark.long),
        pytest.param("dark", NARROW, marks=pytest.mark.long),
    ],
    ids=["light 1280 px", "dark 1280 px", "light 390 px", "dark 390 px"],
)
def test_axe_finds_nothing_on_any_page(console: Console, scheme: Literal["light", "dark"]) -> None:
    console.page.emulate_media(color_scheme=scheme)
    found = [each for where in pages(console) for each in complaints(console, where, ALL)]
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
    expect(page.get_by_text("No service matches the filter.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(filter_).to_have_value("")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Deploy", exact=True)).to_be_focused()
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
    for where in pages(console):
        wide = console.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= settings["viewport"]["width"], f"{where} is {wide} px wide"
        if where == "services":
            height = console.page.locator("table.services tbody tr").first.evaluate("(row) => row.offsetHeight")
            assert height <= 4 * 26 + 16, "a service takes more than four lines"
        edges = console.page.get_by_role("tab").evaluate_all(
            "(all) => all.map((tab) => tab.getBoundingClientRect().right)"
        )
        assert all(edge <= settings["viewport"]["width"] for edge in edges), f"{where}: a tab is out of sight"


def test_words_of_events_are_not_broken(console: Console) -> None:
    """A cell of one word is one line high, though the message beside it is long."""
    console.log_in()
    cells = console.page.get_by_role("table", name="Recent events").locator("tbody td[data-label=Reason] .reason")
    expect(cells.first).to_be_visible()
    heights = cells.evaluate_all("(all) => all.map((each) => each.getClientRects().length)")
    assert set(heights) == {1}
