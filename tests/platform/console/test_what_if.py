"""What if: the recorded requests of a running service against other settings, over HTTP and on its page."""

import re

import pytest
from playwright.sync_api import expect
from tests.embedded import Platform, load
from tests.eventually import eventually
from tests.platform.console.conftest import Console
from tests.platform.console.test_routes import Visitor

WHAT_IF = "/console/api/v1/namespaces/default/services/iris/what-if?seconds=900"


@pytest.fixture
def visitor(platform: Platform) -> Visitor:
    found = Visitor(platform.address.port)
    assert found.enter(platform.address.token) == 200
    return found


@pytest.fixture
def recorded(platform: Platform, visitor: Visitor) -> None:
    with load(platform, clients=1) as clients:
        eventually(lambda: visitor.ask("GET", WHAT_IF)[0] == 200, "a recorded request", pause_s=0.5)
    assert not clients.failed


def test_the_recorded_requests_are_simulated_with_other_settings(visitor: Visitor, recorded: None) -> None:
    status, two = visitor.ask("GET", f"{WHAT_IF}&minReplicas=2&maxReplicas=3")
    assert status == 200, two
    assert len(two["at"]) == len(two["ready"]) == len(two["p99_ms"]) == len(two["recorded_ready"]) == 180
    assert max(filter(None, two["ready"])) == 2
    assert two["requests"] > 0
    assert visitor.ask("GET", f"{WHAT_IF}&minReplicas=1")[1]["replica_seconds"] < two["replica_seconds"]


def test_a_setting_that_cannot_be_simulated_is_named(visitor: Visitor, recorded: None) -> None:
    for query, message in (("minReplicas=x", "must be a whole number"), ("window=soon", "must be a duration")):
        status, told = visitor.ask("GET", f"{WHAT_IF}&{query}")
        assert (status, message in told["error"]) == (400, True), told
    assert visitor.ask("GET", f"{WHAT_IF}&minReplicas=5&maxReplicas=2")[0] == 422
    assert Visitor(visitor.port).ask("GET", WHAT_IF)[0] == 401


def test_predicted_and_recorded_replicas_are_drawn_together(console: Console, recorded: None) -> None:
    console.log_in()
    console.open("overview")
    page = console.page
    page.get_by_label("minReplicas").fill("2")
    page.get_by_label("maxReplicas").fill("2")
    page.get_by_role("button", name="Simulate").click()
    replicas = page.locator("[data-chart='Predicted replicas']")
    expect(replicas.locator(".summary")).to_contain_text("predicted: last 2")
    expect(page.get_by_text(re.compile(r"\d+ requests: \d+ replica-seconds, \d+ recorded"))).to_be_visible()
