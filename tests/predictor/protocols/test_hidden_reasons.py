"""Errors of models may hold paths and passwords: strangers learn the state, callers with the token the reason."""

from collections.abc import Iterator

import pytest
from tests.serving import RunningServer

SECRET = "postgres://svc:hunter2@db"
HIDDEN = "see the server's log"
TOKEN = {"Authorization": "Bearer t0ken"}
PATHS = (
    "/v2/health/ready", "/v2/models/broken/ready", "/v2/models/broken/versions/1/ready", "/healthz", "/ready",
    "/v1/models/broken", "/v1/models/broken/versions/1", "/api/health/ready",
)  # fmt: skip


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a token whose only model fails to load."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "models" / "broken" / "1").mkdir(parents=True)
    (folder / "models" / "broken" / "1" / "model.py").write_text(f"raise RuntimeError({SECRET!r})\n")
    (folder / "token").write_text("t0ken")
    flags = ("--model-repository", str(folder / "models"), "--api-token-file", str(folder / "token"))
    server = RunningServer(folder, *flags, ready=False)
    try:
        server.wait_until(lambda: '"failed"' in server.get("/v2/health/ready").body.decode(), "failed")
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("full", [False, True], ids=["fast", "aiohttp"])
@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_learns_the_state_and_a_caller_with_the_token_the_reason(
    broken: RunningServer, path: str, full: bool
) -> None:
    hidden = broken.request("GET", path, b"", {}, full=full)
    assert hidden.status >= 400
    assert "hunter2" not in f"{hidden.headers} {hidden.body!r}", "TRTIS has it in a header"
    shown = broken.request("GET", path, b"", TOKEN, full=full)
    assert shown.status == hidden.status
    assert SECRET in f"{shown.headers} {shown.body!r}"


def test_the_state_is_not_hidden(broken: RunningServer) -> None:
    assert broken.get("/v2/health/ready").json() == {"ready": False, "state": "failed", "reason": HIDDEN}
    assert broken.get("/healthz").json()["reason"] == HIDDEN
    assert broken.get("/status").status == 401
    assert any("RuntimeError" in str(line) for line in broken.log()), "the operator reads it in the log"
