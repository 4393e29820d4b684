"""The console in a real browser, before a real platform: what a person sees and does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.embedded import Platform, inference_service, load
from tests.eventually import eventually
from tests.onnx_models import write_identity
from tests.platform.console.conftest import PATIENCE_MS, Console, document

expect.set_options(timeout=PATIENCE_MS)

HOSTILE = "<img src=x onerror=\"window.pwned='log'\"><script>window.pwned='script'</script>"


def cell(page: Page, label: str, service: str = "iris") -> Any:
    row = page.locator("table.services tbody tr").filter(has=page.get_by_role("link", name=service, exact=True))
    return row.locator(f"td[data-label='{label}']")


def test_a_person_logs_in_with_the_token_and_out_again(console: Console, platform: Platform) -> None:
    page = console.page
    page.goto(console.url)
    page.get_by_label("API token").fill(platform.address.token)
    page.keyboard.press("Enter")
    expect(cell(page, "State")).to_contain_text(re.compile("Ready|Standby"))
    expect(page.get_by_text("read-only", exact=True)).to_be_hidden()
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
    page.reload()
    expect(cell(page, "State")).to_contain_text(re.compile("Ready|Standby"))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("API token")).to_be_focused()
    page.reload()
    expect(page.get_by_label("API token")).to_be_visible()


def test_a_wrong_token_is_told_and_opens_nothing(console: Console) -> None:
    console.expected = ("Failed to load resource: the server responded with a status of 401",)
    console.page.goto(console.url)
    console.page.get_by_label("API token").fill("wrong")
    console.page.get_by_role("button", name="Log in").click()
    expect(console.page.get_by_role("alert")).to_contain_text("the token is wrong")
    assert console.page.locator("table").count() == 0


def test_a_link_logs_in_and_its_ticket_leaves_the_address(console: Console) -> None:
    console.log_in()
    assert "token" not in console.page.url
    assert "token" not in console.page.evaluate("JSON.stringify(history.state) + location.href")


def test_a_session_that_ended_elsewhere_leads_back_to_the_login(console: Console) -> None:
    console.expected = ("Failed to load resource: the server responded with a status of 401",)
    console.log_in()
    console.page.context.clear_cookies()
    console.page.reload()
    expect(console.page.get_by_label("API token")).to_be_visible()


def test_who_logs_out_in_one_tab_is_out_in_all_of_them(console: Console) -> None:
    """Which another tab is told by the first one, or by the server when it asks again."""
    console.expected = ("Failed to load resource: the server responded with a status of 401",)
    console.log_in()
    other = console.page.context.new_page()
    other.goto(console.url)
    other.get_by_role("button", name="Log out").click()
    expect(console.page.get_by_label("API token")).to_be_visible()


def test_services_change_before_ones_eyes(console: Console, platform: Platform) -> None:
    console.log_in()
    page = console.page
    expect(cell(page, "Service")).to_be_visible()
    platform.deploy(document("second"))
    expect(cell(page, "State", "second")).to_contain_text(re.compile("Ready|Standby"))
    expect(cell(page, "Replicas", "second")).to_contain_text("1/1")
    platform.target.scale(("default", "second"), {"minReplicas": 2, "maxReplicas": 2})
    expect(cell(page, "Replicas", "second")).to_contain_text("2/2")
    platform.target.delete(("default", "second"))
    expect(page.get_by_role("link", name="second", exact=True)).to_have_count(0)
    expect(page.locator("header .link")).to_have_text("live")


def test_requests_and_latency_are_shown_as_they_come(console: Console, platform: Platform) -> None:
    console.log_in()
    expect(cell(console.page, "State")).to_be_visible()
    with load(platform, clients=1) as asking:
        expect(cell(console.page, "Requests/s")).to_contain_text(re.compile("[1-9]"))
        expect(cell(console.page, "p99")).to_contain_text("ms")
        line = console.page.locator("table.services .spark").first
        expect(line.locator("canvas")).to_be_visible()
        # A rate needs two recorded samples, five seconds apart.
        eventually(lambda: any(line.evaluate("node => node.plot.data[1]")), "a recorded rate", pause_s=0.2)
    assert not asking.failed


def test_columns_stay_where_they_are_whatever_rows_hold(console: Console) -> None:
    console.log_in()
    expect(cell(console.page, "State")).to_be_visible()
    places = "[...document.querySelectorAll('table.services th')].map((each) => each.getBoundingClientRect().x)"
    before = console.page.evaluate(places)
    console.page.get_by_label("Filter services").fill("nobody")
    expect(console.page.get_by_text("No service matches the filter.")).to_be_visible()
    assert console.page.evaluate(places) == before


def test_a_lost_connection_is_told_and_taken_up_again(console: Console) -> None:
    console.log_in()
    mark = console.page.locator("header .link")
    expect(mark).to_have_text("live")
    console.expected = ("Failed to load resource: net::ERR_INTERNET_DISCONNECTED",)
    console.page.context.set_offline(True)
    console.open("overview")  # another feed is opened for the page of a service
    expect(mark).to_have_text("reconnecting")
    banner = console.page.get_by_role("alert").filter(has_text="The platform does not respond")
    expect(banner).to_contain_text("platformctl up")
    expect(console.page.locator("main")).to_have_attribute("inert", "")
    console.page.context.set_offline(False)
    expect(mark).to_have_text("live")
    expect(banner).to_be_hidden()
    expect(console.page.locator("main")).not_to_have_attribute("inert", "")


def test_a_service_page_shows_revisions_decisions_and_the_cold_start(console: Console) -> None:
    console.log_in()
    console.open("overview")
    page = console.page
    expect(page.get_by_role("cell").filter(has_text=re.compile("^predictor-[0-9a-f]{8}$")).first).to_be_visible()
    expect(page.get_by_role("table", name="Scaling decisions").get_by_role("row")).not_to_have_count(0)
    starts = page.locator(".starts")
    expect(starts.locator("svg rect")).not_to_have_count(0)
    for phase in ("boot", "import", "load"):
        expect(starts).to_contain_text(phase)


def test_bounds_are_set_by_form_and_taken_back(console: Console, platform: Platform) -> None:
    console.log_in()
    console.open("overview")
    page = console.page
    least, most = page.get_by_label("Min replicas"), page.get_by_label("Max replicas")
    expect(least).to_have_value("1")  # of the manifest
    expect(most).to_have_value("3")
    most.fill("2")
    page.get_by_role("button", name="Scale", exact=True).click()
    expect(page.get_by_text("Set manually: min 1, max 2")).to_be_visible()
    assert list(platform.status().overrides.values()) == [{"minReplicas": 1, "maxReplicas": 2}]
    page.get_by_role("button", name="Reset to manifest").click()
    expect(page.get_by_text("Bounds of the manifest.", exact=True)).to_be_visible()
    expect(most).to_have_value("3")
    assert not platform.status().overrides


def test_a_request_by_form_has_the_answer_of_the_model(console: Console, platform: Platform) -> None:
    wanted = json.loads(platform.ask().body)["outputs"][0]["data"]
    console.log_in()
    console.open("try")
    page = console.page
    field = page.get_by_label("x FP32 [-1, 4]")
    expect(field).to_have_value("[0,0,0,0]")
    field.fill("[5.1, 3.5, 1.4, 0.2]")
    page.keyboard.press("Control+Enter")
    answer = page.get_by_role("region", name="Response")
    expect(answer).to_contain_text("Status 200")
    expect(answer).to_contain_text(f"{wanted[0]:.4g}"[:6])
    field.fill("[1, 2, 3]")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#input-0-error")).to_have_text("3 values do not fit the shape [-1,4]")
    expect(field).to_have_attribute("aria-invalid", "true")


def test_a_picture_is_brought_to_the_size_of_the_input(console: Console, platform: Platform, tmp_path: Path) -> None:
    from PIL import Image

    write_identity(tmp_path, "mirror", "UINT8", (1, 3, 8, 8))
    platform.deploy(inference_service("mirror", "onnx", (tmp_path / "mirror").as_uri(), least=1, most=1))
    platform.wait_phase("Ready", name="mirror")  # its form is asked for once, as soon as a replica is ready
    Image.new("RGB", (64, 32), (200, 100, 50)).save(tmp_path / "red.png")
    console.log_in()
    console.open("try", "default/mirror")
    page = console.page
    page.get_by_label("x UINT8 [1, 3, 8, 8]").set_input_files(tmp_path / "red.png")
    expect(page.get_by_role("img", name="x as the model gets it")).to_have_attribute("width", "8")
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("region", name="Response")
    expect(answer).to_contain_text("Status 200")
    data = json.loads(answer.locator("pre").text_content() or "")["outputs"][0]["data"]
    assert data == [200] * 64 + [100] * 64 + [50] * 64
    platform.target.delete(("default", "mirror"))


def test_hostile_text_stays_text_wherever_it_is_shown(console: Console, platform: Platform) -> None:
    console.log_in()
    console.open("logs")
    written = {"ts": "2026-01-01T00:00:00Z", "level": "INFO", "message": HOSTILE, HOSTILE: HOSTILE}
    for file in (platform.home.logs / "default" / "iris").glob("*.log"):  # some may be of replicas that have ended
        with file.open("a") as log:
            log.write(f"{HOSTILE}\n{json.dumps(written)}\n")
    page = console.page
    expect(page.get_by_role("log").locator("li").filter(has_text="onerror").nth(1)).to_be_visible()
    platform.deploy(document(annotations='    example.com/changed: "yes"'), note=HOSTILE)
    console.open("events")
    expect(page.get_by_role("cell").filter(has_text="onerror").first).to_be_visible()
    console.open("releases")
    expect(page.get_by_role("cell").filter(has_text="onerror").first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("window.pwned") is None


def test_no_script_of_a_page_can_make_markup_of_text(console: Console) -> None:
    console.log_in()
    console.expected = ("This document requires 'TrustedHTML'",)
    with pytest.raises(Exception, match="TrustedHTML"):
        console.page.evaluate("document.body.innerHTML = '<b>bold</b>'")


def test_the_objects_of_a_service_are_shown_as_they_live(console: Console) -> None:
    console.log_in()
    console.open("manifests")
    shown = console.page.locator("details[open] pre")
    expect(shown).to_contain_text("kind: Service")
    expect(shown).to_contain_text("status:")
