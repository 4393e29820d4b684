"""Services deployed, edited and deleted in a real browser; and what a read-only session sees."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.embedded import IRIS, Platform, inference_service
from tests.platform.console.conftest import PATIENCE_MS, Console, document

expect.set_options(timeout=PATIENCE_MS)

HOSTILE = "<img src=x onerror=\"window.pwned='manifest'\">"


def write(page: Page, text: str) -> None:
    page.get_by_label("Manifest (YAML or JSON)").fill(text.strip())


def review_and_deploy(page: Page) -> None:
    page.get_by_role("button", name="Review changes").click()
    page.get_by_role("button", name="Deploy", exact=True).click()


def delete(page: Page, name: str) -> None:
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_label(f"Type {name} to confirm").fill(name[:-1])
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_label(f"Type {name} to confirm").fill(name)
    dialog.get_by_role("button", name="Delete").click()


def test_a_manifest_is_validated_while_it_is_typed_compared_and_deployed(console: Console, platform: Platform) -> None:
    page = console.page
    console.log_in()
    page.get_by_role("link", name="Deploy", exact=True).click()
    review = page.get_by_role("button", name="Review changes")
    expect(review).to_be_disabled()
    wrong = document("typed").replace("maxReplicas", "maxReplica")
    write(page, wrong)
    problem = page.get_by_role("listitem").filter(has_text="PL101")
    expect(problem).to_contain_text(
        "spec.predictor.maxReplica: unknown field of PredictorSpec; did you mean maxReplicas?"
    )
    line = next(index for index, text in enumerate(wrong.strip().splitlines(), 1) if "maxReplica:" in text)
    expect(page.locator(".numbers .error")).to_have_text(str(line))
    problem.get_by_role("button", name=f"Line {line}").click()
    expect(page.get_by_label("Manifest (YAML or JSON)")).to_be_focused()
    expect(review).to_be_disabled()

    write(page, document("typed"))
    expect(page.get_by_text("Valid: creates default/typed, serverless")).to_be_visible()
    review.click()
    expect(page.locator(".diff .added").filter(has_text="name: typed").first).to_be_visible()
    page.get_by_role("button", name="Deploy", exact=True).click()
    progress = page.get_by_role("list", name="Progress")
    expect(progress).to_contain_text("Applied default/typed: generation 1")
    expect(progress).to_contain_text("Ready")
    progress.get_by_role("link", name="Open the service").click()
    expect(page.get_by_role("heading", name="typed")).to_be_visible()

    page.get_by_role("link", name="Edit", exact=True).click()
    editor = page.get_by_label("Manifest (YAML or JSON)")
    expect(editor).to_have_value(re.compile("maxReplicas: 3"))
    editor.fill(editor.input_value().replace("maxReplicas: 3", "maxReplicas: 4"))
    page.get_by_role("button", name="Review changes").click()
    expect(page.locator(".diff .removed").filter(has_text="maxReplicas: 3").first).to_be_visible()
    expect(page.locator(".diff .added").filter(has_text="maxReplicas: 4").first).to_be_visible()
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_role("list", name="Progress")).to_contain_text("generation 2")
    page.get_by_role("link", name="Open the service").click()
    expect(page.get_by_label("Max replicas")).to_have_value("4")

    delete(page, "typed")
    expect(page.get_by_text("Deleted default/typed.")).to_be_visible()
    expect(page.get_by_role("link", name="typed", exact=True)).to_have_count(0)
    assert "typed" not in [status.name for status in platform.target.list(None)]


def test_a_model_that_cannot_load_says_why_in_the_editor_and_on_its_own_page(
    console: Console, platform: Platform, tmp_path: Path
) -> None:
    broken = tmp_path / "model.py"
    broken.write_text('print("looking for a module")\nimport nonesuch_module\n')
    page = console.page
    console.log_in()
    page.goto(f"{console.url}#/deploy")
    page.get_by_label("Open a file").set_input_files(
        {
            "name": "service.yaml",
            "mimeType": "text/yaml",
            "buffer": inference_service("broken", "python", tmp_path.as_uri(), least=1, most=1).encode(),
        }
    )
    review_and_deploy(page)
    progress = page.get_by_role("list", name="Progress")
    expect(progress).to_contain_text("nonesuch_module")
    progress.get_by_role("link", name="Open its logs").click()
    log = page.get_by_role("log")
    expect(page.get_by_label("Ended replicas")).to_be_checked()
    expect(log).to_contain_text("nonesuch_module")

    console.open("overview", "default/broken")
    failed = page.locator("section.failure")
    expect(failed.get_by_role("heading", name="The service failed")).to_be_visible()
    expect(failed.locator(".refusal")).to_contain_text("nonesuch_module")
    tail = failed.get_by_label("End of the log")
    expect(tail).to_contain_text("nonesuch_module")
    expect(tail).not_to_contain_text('{"ts"')
    expect(tail.locator(".level").filter(has_text="ERROR").first).to_be_visible()
    expect(tail.get_by_text("logger=pilotlight").first).to_be_hidden()
    tail.locator("summary").last.click()
    expect(tail.get_by_text("logger=pilotlight").last).to_be_visible()
    expect(failed.get_by_role("link", name="Edit the manifest")).to_be_visible()
    expect(failed.get_by_role("link", name="Roll back")).to_have_count(0)  # it is the first release
    expect(page.locator(".starts")).to_have_text("No completed cold start is recorded.")
    console.open("try", "default/broken")
    expect(page.get_by_text("The service failed and cannot respond.")).to_be_visible()
    expect(page.get_by_role("button", name="Load the form")).to_be_hidden()
    console.open("events", "default/broken")
    rows = page.get_by_role("row").filter(has_text="nonesuch_module")
    platform.wait(lambda: sum("nonesuch" in each for each in platform.events(("default", "broken"))) > 2, "restarts")
    expect(rows.filter(has_text="×").first).to_be_visible()
    console.open("overview", "default/broken")
    delete(page, "broken")
    expect(page.get_by_text("Deleted default/broken.")).to_be_visible()


def test_what_is_typed_stays_text(console: Console) -> None:
    page = console.page
    console.log_in()
    page.goto(f"{console.url}#/deploy")
    write(page, json.dumps({"kind": HOSTILE, "apiVersion": "v1", HOSTILE: HOSTILE}))
    expect(page.locator(".problems")).to_contain_text("onerror")
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("window.pwned") is None


def test_a_model_file_that_is_missing_is_an_error_before_the_deploy(console: Console) -> None:
    page = console.page
    console.log_in()
    page.goto(f"{console.url}#/deploy")
    page.get_by_role("button", name="Insert an example").click()
    expect(page.locator(".problems")).to_contain_text("there is no /path/to/model.onnx")
    editor = page.get_by_label("Manifest (YAML or JSON)")
    editor.fill(editor.input_value().replace("file:///path/to/model.onnx", IRIS.as_uri()))
    expect(page.get_by_role("button", name="Review changes")).to_be_enabled()


def test_a_read_only_session_has_no_buttons_that_change_something(console: Console, platform: Platform) -> None:
    page = console.page
    page.goto(f"{console.url}#token={platform.target.console(read_only=True).ticket}")
    page.get_by_role("link", name="iris", exact=True).wait_for()
    expect(page.get_by_role("link", name="Deploy", exact=True)).to_be_hidden()
    expect(page.get_by_role("banner").get_by_text("read-only", exact=True)).to_be_visible()
    for editor in ("#/deploy", "#/services/default/iris/edit"):
        page.goto(f"{console.url}{editor}")
        expect(page.get_by_text("This session is read-only: log in with the API token to deploy.")).to_be_visible()
        expect(page.get_by_label("Manifest (YAML or JSON)")).to_have_count(0)
    console.open("overview")
    expect(page.get_by_text("Bounds of the manifest.")).to_be_visible()
    for name in ("Edit", "Delete", "Scale", "Reset to manifest"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    assert page.get_by_role("tab").all_inner_texts() == ["Overview", "Canary", "Try it", "Logs", "Events"]
    console.open("try")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Response")).to_contain_text("Status 200")
