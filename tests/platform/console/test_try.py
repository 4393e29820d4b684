"""Try it: chats with a text model, streamed, and the same requests as code that runs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.embedded import Platform, inference_service
from tests.onnx_models import write_python
from tests.platform.client.conftest import SPEAKER, SPEAKER_CONFIG
from tests.platform.console.conftest import PATIENCE_MS, Console

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def speaker(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A service whose model repeats the words of a message one by one."""
    folder = tmp_path_factory.mktemp("speaker")
    write_python(folder, "speaker", SPEAKER, SPEAKER_CONFIG)
    uri = (folder / "speaker").as_uri()
    platform.deploy(inference_service("speaker", "python", uri, least=1, most=1))
    platform.wait_phase("Ready", name="speaker")
    yield
    platform.target.delete(("default", "speaker"))


def code(page: Page, name: str) -> str:
    """The snippet as it is copied."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name=f"Copy as {name}").click()
    expect(page.get_by_text("Copied.").first).to_be_visible()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.usefixtures("speaker")
def test_a_text_model_has_a_chat_whose_reply_is_streamed(console: Console) -> None:
    page = console.page
    console.log_in()
    console.open("try", "default/speaker")
    chat = page.get_by_role("list", name="Conversation")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").filter(has_text="Type a message.")).to_be_visible()
    page.get_by_label("Message").fill("hello wait")
    page.keyboard.press("Control+Enter")
    expect(chat.get_by_role("listitem").nth(1)).to_contain_text("Model")
    expect(chat.get_by_role("listitem").nth(1)).to_contain_text("hello")  # while the model still waits
    page.get_by_role("button", name="Stop").click()
    page.get_by_label("Message").fill("good <b>day</b>")
    with page.expect_request("**/v1/chat/completions*") as unlimited:
        page.get_by_role("button", name="Send").click()
    assert "max_tokens" not in unlimited.value.post_data_json  # the model's own limit applies
    expect(chat.get_by_role("listitem").nth(3)).to_contain_text("good <b>day</b>")
    assert chat.get_by_role("listitem").count() == 4
    page.get_by_label("Message").fill("to you")
    page.get_by_text("Use it from code").click()
    snippets = page.locator(".code pre")
    expect(snippets.nth(1)).to_contain_text('model="speaker"):')
    page.get_by_label("Max tokens").fill("50")
    expect(snippets.nth(0)).to_contain_text('"max_tokens":50')
    expect(snippets.nth(1)).to_contain_text('model="speaker", max_tokens=50):')
    assert run(sys.executable, "-c", code(page, "Python")).split() == ["to", "you"]
    assert '"content": "to "' in run("sh", "-c", code(page, "curl")).replace('":"', '": "')
    page.get_by_role("button", name="Clear").click()
    expect(chat).to_be_hidden()


@pytest.mark.usefixtures("speaker")
def test_an_error_of_a_chat_is_shown_at_the_message(console: Console) -> None:
    page = console.page
    console.log_in()
    console.open("try", "default/speaker")
    page.get_by_label("Max tokens").fill("100000")
    page.get_by_label("Message").fill("hello")
    page.evaluate("document.getElementById('tokens').removeAttribute('max')")
    page.get_by_label("Max tokens").fill("1e30")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat-error")).to_contain_text("The service responded with 400")
    expect(page.get_by_label("Message")).to_have_value("hello")


def test_a_form_is_copied_as_code_that_gives_the_same_response(console: Console) -> None:
    page = console.page
    console.log_in()
    console.open("try")
    page.get_by_label("x FP32 [-1, 4]").fill("[5.1, 3.5, 1.4, 0.2]")
    page.get_by_role("button", name="Send").click()
    shown = page.get_by_role("region", name="Response").locator(".bars .figure, .values").first
    expect(shown).to_be_visible()
    page.get_by_text("Use it from code").click()
    python = code(page, "Python")
    assert "pilotlight.Client(" in python
    printed = run(sys.executable, "-c", python).strip("[]\n").split()[0]
    assert float(printed) == pytest.approx(float(shown.inner_text()), rel=1e-3)
    if shutil.which("curl"):
        response = json.loads(run("sh", "-c", code(page, "curl")))
        assert response["outputs"][0]["data"][0] == pytest.approx(float(printed), rel=1e-3)
