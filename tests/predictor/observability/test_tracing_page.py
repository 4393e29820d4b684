"""The command and the tables on the page are those of the server."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.doc_pages import page_section
from tests.onnx_models import write_identity
from tests.serving import RunningServer

from pilotlight_predictor.observability.logs import LogSettings
from pilotlight_predictor.observability.request_traces import as_triton

PAGE = page_section("docs/how-to/migrate-triton.md", "Trace and log settings")
(COMMAND,) = re.findall(r"^    \$ (curl .*)$", PAGE, re.MULTILINE)


def test_the_command_of_the_page_is_taken(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "words", "BYTES")
    server = serve(tmp_path / "models", "--files-dir", str(tmp_path))
    _, url, _, body = shlex.split(COMMAND)
    answer = server.post("/" + url.partition("/")[2], body.encode())
    assert (answer.status, answer.json()["trace_file"]) == (200, "traces.jsonl")


def test_every_setting_is_on_the_page() -> None:
    names = {*as_triton({}), *LogSettings("info", "").values()}
    assert not [name for name in names if f"`{name}`" not in PAGE]
