"""A whole repository in an object store, followed while it changes: the server against a real S3 protocol."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.e2e.lifecycle.models import HELD, body
from tests.serving import RunningServer

Serve = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def bucket(endpoint: str, name: str) -> Any:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="testing",
        aws_secret_access_key="testing-secret", config=Config(proxies={}, retries={"max_attempts": 1}),
    )  # fmt: skip
    client.create_bucket(Bucket=name)
    return client


def source(signs: Path, factor: int) -> bytes:
    return HELD.format(signs=str(signs)).replace("* 2", f"* {factor}").encode()


# Google's XML API, which the store speaks, is S3's for listing and reading.
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_it_is_served_and_followed_like_a_directory(tmp_path: Path, serve: Serve, endpoint: str, scheme: str) -> None:
    name = f"models{scheme}"
    client = bucket(endpoint, name)
    (tmp_path / "go").touch()

    def put(path: str, content: bytes) -> None:
        client.put_object(Bucket=name, Key=f"repository/{path}", Body=content, ACL="public-read")

    put("m/1/model.py", source(tmp_path, 2))
    env = {
        "s3": {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
        },
        "gs": {"STORAGE_EMULATOR_HOST": urlsplit(endpoint).netloc},
    }[scheme]
    flags = ("--model-repository", f"{scheme}://{name}/repository", "--cache-dir", str(tmp_path / "cache"))
    server = serve(None, *flags, "--model-control-mode", "poll", "--repository-poll-secs", "0.1", env=env)
    assert asked(server, "m") == 2
    put("m/2/model.py", source(tmp_path, 3))
    put("new/1/model.py", source(tmp_path, 5))
    server.wait_until(lambda: (asked(server, "m"), asked(server, "new")) == (3, 5), "following")
    put("m/2/model.py", b"no python")
    server.wait_until(lambda: "the last reload failed" in index(server, "m"), "telling of the failed reload")
    assert asked(server, "m") == 3
    client.delete_object(Bucket=name, Key="repository/new/1/model.py")
    server.wait_until(lambda: server.infer("new", body(1)).status == 404, "without the model that was removed")
    assert server.get("/v2/health/ready").status == 200
    assert "testing-secret" not in str(server.log())


def asked(server: RunningServer, model: str) -> float | None:
    answer = server.infer(model, body(1))
    return float(answer.json()["outputs"][0]["data"][0]) if answer.status == 200 else None


def index(server: RunningServer, model: str) -> str:
    rows = server.post("/v2/repository/index").json()
    return " ".join(row["reason"] for row in rows if row["name"] == model)
