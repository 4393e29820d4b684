"""A whole repository in an object store, followed while it changes: a running server against each kind of store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import object_stores
from tests.e2e.lifecycle.models import HELD, body
from tests.object_stores import Bucket
from tests.serving import RunningServer

Serve = Callable[..., RunningServer]


@pytest.fixture(params=["s3", "gs", "az"])
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """Each kind has a server of its own, so that one test's models are no other's."""
    store = object_stores.azurite if request.param == "az" else object_stores.moto
    with store() as endpoint:
        yield getattr(object_stores, f"{request.param}_bucket")(endpoint, "models")


def source(signs: Path, factor: int) -> bytes:
    return HELD.format(signs=str(signs)).replace("* 2", f"* {factor}").encode()


def test_it_is_served_and_followed_like_a_directory(tmp_path: Path, serve: Serve, bucket: Bucket) -> None:
    (tmp_path / "go").touch()
    bucket.put("repository/m/1/model.py", source(tmp_path, 2))
    flags = ("--model-repository", bucket.uri("repository"), "--cache-dir", str(tmp_path / "cache"))
    server = serve(None, *flags, "--model-control-mode", "poll", "--repository-poll-secs", "0.1", env=bucket.env)
    assert asked(server, "m") == 2
    bucket.put("repository/m/2/model.py", source(tmp_path, 3))
    bucket.put("repository/new/1/model.py", source(tmp_path, 5))
    server.wait_until(lambda: (asked(server, "m"), asked(server, "new")) == (3, 5), "following")
    bucket.put("repository/m/2/model.py", b"no python")
    server.wait_until(lambda: "the last reload failed" in index(server, "m"), "telling of the failed reload")
    assert asked(server, "m") == 3
    bucket.delete("repository/new/1/model.py")
    server.wait_until(lambda: server.infer("new", body(1)).status == 404, "without the model that was removed")
    bucket.delete("repository/m/2/model.py")
    bucket.put("repository/m/1/model.py", source(tmp_path, 7))
    server.wait_until(lambda: asked(server, "m") == 7, "back at the version that is left")
    assert server.get("/v2/models/m").json()["versions"] == ["1"]
    assert server.get("/v2/health/ready").status == 200
    assert bucket.secret not in str(server.log())


def asked(server: RunningServer, model: str) -> float | None:
    answer = server.infer(model, body(1))
    return float(answer.json()["outputs"][0]["data"][0]) if answer.status == 200 else None


def index(server: RunningServer, model: str) -> str:
    rows = server.post("/v2/repository/index").json()
    return " ".join(row["reason"] for row in rows if row["name"] == model)
