"""Pins of remote models, as the CLI resolves them: with the predictor's command, in a bounded time."""

from collections.abc import Iterator

import pytest
from tests import object_stores
from tests.object_stores import Bucket
from tests.ports import free_port

from pilotlight.k8s.model_pins import ModelPin
from platformctl.services.remote_pins import resolve_remote


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with object_stores.moto() as endpoint:
        bucket = object_stores.s3_bucket(endpoint, "models-of-the-cli")
        for name, value in bucket.env.items():
            monkeypatch.setenv(name, value)
        object_stores.set_versions(endpoint, bucket, "Enabled")
        yield bucket


def test_what_a_store_has_is_pinned_and_what_it_lacks_has_a_reason(bucket: Bucket) -> None:
    bucket.put("iris/model.onnx", b"12345")
    uri, gone = bucket.uri("iris"), bucket.uri("gone")
    pins = resolve_remote([uri, gone])
    pin = pins[uri]
    assert isinstance(pin, ModelPin)
    assert (pin.digest.partition(":")[0], pin.size, list(pin.files)) == ("versions", 5, ["model.onnx"])
    assert pins[gone] == f"{gone}: nothing is stored there; check the bucket and the path"


def test_a_store_that_is_down_is_a_reason_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    reason = resolve_remote(["s3://models/iris"])["s3://models/iris"]
    assert isinstance(reason, str)
    assert reason.startswith(("s3://models/iris: ", "the store did not answer within"))


def test_a_store_that_never_answers_is_given_up_in_time() -> None:
    assert resolve_remote(["s3://models/iris"], timeout=0.01) == {
        "s3://models/iris": "its store did not answer within 0.01 s"
    }
