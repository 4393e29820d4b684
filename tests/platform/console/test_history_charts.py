"""Charts of the recorded history, read out of the page: gaps, steps, marks, and the panels of dashboards."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import json as encoding
from playwright.sync_api import Page, Route, expect
from tests.embedded import Platform, load
from tests.eventually import eventually
from tests.platform.console.conftest import PATIENCE_MS, Console
from tests.platform.console.test_routes import Visitor
from tests.platform.targets.local.history.test_recorder import Bench, replica, report
from tests.platform.targets.local.history.test_recorder import bench as recording

from pilotlight.targets.local.history.points import Mark

expect.set_options(timeout=PATIENCE_MS)

HISTORY = "/console/api/v1/namespaces/default/services/iris/history"
TITLES = ("Requests", "Latency", "Errors", "Replicas", "Queue", "Cold starts")


def chart(page: Page, title: str) -> Any:
    return page.locator(f"[data-chart='{title}']")


def drawn(page: Page, title: str) -> dict[str, list[Any]]:
    """The values of each line, by its label, and the times."""
    place = chart(page, title).locator(".plot")
    expect(place.locator("canvas")).to_be_visible()
    read = "node => node.plot.series.map((each, index) => [each.label, [...node.plot.data[index]]])"
    return dict(place.evaluate(read))


async def down_for_a_while(path: Path) -> bytes:
    """The history of a platform that was down for a minute, and then had two replicas."""
    async with recording(path) as before:
        await serving(before, 1)
    async with recording(path) as after:
        after.now = before.now + 60
        await serving(after, 2)
        told = await after.read(900)
        marks = (Mark(after.now - 30, "2: 140 concurrent requests, target 70 each"),)
        return encoding.encode({**encoding.decode(encoding.encode(told)), "marks": marks})


async def serving(bench: Bench, replicas: int) -> None:
    bench.replicas = [replica(number) for number in range(replicas)]
    for _ in range(24):
        bench.recorder.report(("default", "iris"), report(10))
        await bench.sample()


@pytest.fixture
def outage(tmp_path: Path) -> dict[str, Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:  # Playwright has the loop of this one
        body = thread.submit(lambda: asyncio.run(down_for_a_while(tmp_path / "history.db"))).result()
    told: dict[str, Any] = json.loads(body)
    return told


def test_a_chart_has_a_gap_where_the_platform_was_down_and_a_step_where_replicas_changed(
    console: Console, outage: dict[str, Any]
) -> None:
    def answer(route: Route) -> None:
        route.fulfill(json=outage)

    console.page.route("**/history?seconds=*", answer)
    console.log_in()
    console.open("overview")
    page = console.page
    lines = drawn(page, "Replicas")
    # Two minutes with one replica, one without the platform, two minutes with two replicas; nothing was known before.
    assert lines["ready"] == [None] * 120 + [1] * 24 + [None] * 12 + [2] * 24
    assert lines["Time"] == outage["at"]
    assert drawn(page, "Requests")["requests"] == [None] * 120 + [2] * 24 + [None] * 12 + [2] * 24
    gaps = chart(page, "Replicas").locator(".plot").evaluate("node => node.plot.series[1]._paths.gaps.length")
    assert gaps > 0
    scaled = [at for at, value in enumerate(lines["scale events"]) if value is not None]
    assert scaled == [174]
    expect(chart(page, "Replicas").locator(".summary")).to_contain_text("ready: last 2, max 2")
    chart(page, "Replicas").get_by_text("Values").click()
    rows = chart(page, "Replicas").get_by_role("table", name="Replicas").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("2")
    expect(rows.filter(has_text="no data").first).to_be_visible()
    expect(rows.filter(has_text="140 concurrent").first).to_be_visible()


def test_requests_and_replicas_of_a_running_platform_are_drawn_as_they_come(
    console: Console, platform: Platform
) -> None:
    console.log_in()
    console.open("overview")
    page = console.page
    for title in TITLES:
        expect(chart(page, title).locator("canvas")).to_be_visible()
    expect(chart(page, "GPU memory")).to_be_hidden()
    with load(platform, clients=1) as clients:
        expect(chart(page, "Requests").locator(".summary")).to_have_text(re.compile(r"requests: last [1-9]"))
    assert not clients.failed
    assert any(drawn(page, "Latency")["p99"])
    platform.target.scale(("default", "iris"), {"minReplicas": 2, "maxReplicas": 2})
    expect(chart(page, "Replicas").locator(".summary")).to_contain_text("ready: last 2")
    ready = [value for value in drawn(page, "Replicas")["ready"] if value is not None]
    assert ready.index(2) > ready.index(1)
    assert any(drawn(page, "Replicas")["scale events"])
    platform.target.scale(("default", "iris"), None)


def test_the_range_is_chosen_and_shown_as_pressed(console: Console) -> None:
    console.log_in()
    console.open("overview")
    page = console.page
    assert len(drawn(page, "Replicas")["Time"]) == 180
    page.get_by_role("button", name="24 h").click()
    expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")
    # Not by wait_for_function, which evaluates a string: the page's Content-Security-Policy refuses that.
    eventually(lambda: len(drawn(page, "Replicas")["Time"]) >= 288, "a day of points", pause_s=0.1)
    times = drawn(page, "Replicas")["Time"]
    assert times[1] - times[0] == 300


def test_a_range_that_is_not_recorded_is_refused_with_what_is(platform: Platform) -> None:
    visitor = Visitor(platform.address.port)
    assert visitor.ask("GET", HISTORY)[0] == 401
    assert visitor.enter(platform.address.token) == 200
    status, told = visitor.ask("GET", f"{HISTORY}?seconds=60")
    assert (status, told["step"], len(told["at"])) == (200, 5, 12)
    assert {len(column) for column in told["service"].values()} <= {12, 0}
    for query in ("seconds=0", "seconds=86401", "seconds=3600&step=5", "seconds=x", "step=7"):
        assert visitor.ask("GET", f"{HISTORY}?{query}")[0] == 400, query
    assert visitor.ask("GET", HISTORY.replace("/iris/", "/nosuch/"))[0] == 404


def test_dashboards_show_the_panels_of_grafana_without_it(console: Console, platform: Platform) -> None:
    console.log_in()
    page = console.page
    page.get_by_role("link", name="Dashboards").click()
    expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_visible()
    assert platform.ask().status == 200
    expect(chart(page, "Replicas ready").locator("canvas")).to_be_visible()
    lines = drawn(page, "Replicas ready")
    assert any(lines["iris"])
    for title in ("Replicas desired", "Models by state"):
        expect(chart(page, title)).to_contain_text("platformctl down && platformctl up --prometheus")
    page.get_by_role("link", name="Canary", exact=True).click()
    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    expect(page).to_have_url(f"{console.url}#/dashboards/canary")


def of_many_services(route: Route) -> None:
    """24 services, the last ones with the most; of the error budget nothing is left."""
    query = route.request.post_data_json["query"]
    values = [-1.0] * 24 if query.startswith("clamp_min(1 - ") else [float(number) for number in range(24)]
    series = [
        {"labels": {"namespace": "default", "inference_service": f"s{number:02}"}, "values": [value, None, value]}
        for number, value in enumerate(values)
    ]
    times = [1_760_000_000 + 5 * number for number in range(3)]
    route.fulfill(json={"source": "prometheus", "step": 5, "at": times, "series": series, "reason": ""})


def test_a_panel_draws_the_highest_lines_distinctly_and_says_how_many_more_there_are(console: Console) -> None:
    console.log_in()
    page = console.page
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/query_range", hold)
    page.get_by_role("link", name="Dashboards").click()
    expect(chart(page, "Requests per second").get_by_text("Loading…")).to_be_visible()
    page.route("**/v1/query_range", of_many_services)  # the latest one gets the next requests
    for route in held:
        of_many_services(route)
    assert list(drawn(page, "Requests per second")) == ["Time", *(f"s{number:02}" for number in range(23, 11, -1))]
    requests = chart(page, "Requests per second")
    expect(requests.locator(".u-legend")).to_contain_text("s23")
    requests.get_by_role("button", name="+ 12 more").click()
    expect(requests.get_by_role("button", name="Show top 12")).to_be_visible()
    looks = "node => node.plot.series.slice(1).map((each, at) => `${each.stroke(node.plot, at + 1)} ${each.dash}`)"
    assert len(set(requests.locator(".plot").evaluate(looks))) == 24

    budget = chart(page, "Error budget left in the displayed range")
    expect(budget.locator("figcaption")).to_have_text("Error budget left in the last 15 min")
    axis = "node => [node.plot.scales.y.min, node.plot.scales.y.max, node.plot.axes[1]._values]"
    least, most, labels = budget.locator(".plot").evaluate(axis)
    assert least < -1 < 1 < most
    assert [labels[0], labels[-1]] == ["-100 %", "100 %"]
