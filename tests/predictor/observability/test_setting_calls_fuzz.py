"""Whatever an admin sends to the calls that change settings: an answer, and never a failure of the server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.onnx_models import write_identity
from tests.serving import RunningServer

from pilotlight_predictor.observability.logs import LogSettings
from pilotlight_predictor.observability.request_traces import KEYS

LEAVES = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=20)
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
NAMES = st.sampled_from(
    (*KEYS, *LogSettings("info", "").values(), "key", "offset", "byte_size"),
)
PATHS = (
    "/v2/trace/setting",
    "/v2/models/words/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
)


@pytest.fixture(scope="module")
def server(serve_module: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder: Path = tmp_path_factory.mktemp("models")
    write_identity(folder, "words", "BYTES")
    return serve_module(folder, "--allow-shared-memory", "--files-dir", str(tmp_path_factory.mktemp("files")))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(path=st.sampled_from(PATHS), document=st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=4))
def test_no_document_makes_the_server_fail(server: RunningServer, path: str, document: dict[str, Any]) -> None:
    assert server.post(path, document).status in {200, 400, 403}
    assert server.get("/v2/health/live").status == 200
