"""Screens for what is not a running service: an empty platform, no such service, no such page."""

import re

from playwright.sync_api import BrowserContext, expect
from tests.platform.api.conftest import Served
from tests.platform.console.conftest import PATIENCE_MS, Console

expect.set_options(timeout=PATIENCE_MS)


def test_an_empty_platform_says_how_to_deploy_the_first_model(context: BrowserContext, api: Served) -> None:
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{api.port}/console#token={api.target.console().ticket}")
    expect(page.get_by_role("heading", name="No services yet")).to_be_visible()
    expect(page.get_by_text("platformctl deploy ./model.onnx")).to_be_visible()
    page.get_by_role("link", name="Deploy a service").click()
    expect(page.get_by_label("Manifest (YAML or JSON)")).to_be_visible()


def test_a_service_that_does_not_exist_has_its_own_screen_with_near_names(console: Console) -> None:
    page = console.page
    console.log_in()
    page.goto(f"{console.url}#/services/default/irsi")
    expect(page.get_by_role("heading", name="Service not found")).to_be_visible()
    expect(page.get_by_text("There is no service default/irsi.")).to_be_visible()
    expect(page.get_by_role("tab")).to_have_count(0)
    page.get_by_role("link", name="default/iris").click()
    expect(page.get_by_role("tab", name="Overview")).to_be_visible()


def test_an_unknown_page_says_so(console: Console) -> None:
    console.log_in()
    console.page.goto(f"{console.url}#/nowhere")
    expect(console.page.get_by_role("heading", name="Page not found")).to_be_visible()
    console.page.get_by_role("link", name="All services").click()
    expect(console.page.get_by_role("heading", name="Services", exact=True)).to_be_visible()


def test_an_event_leads_to_its_service(console: Console) -> None:
    page = console.page
    console.log_in()
    link = page.get_by_role("table", name="Recent events").get_by_role("link").first
    name = link.inner_text().rpartition("/")[2]
    link.click()
    expect(page).to_have_url(re.compile(f"#/services/default/{name}$"))
