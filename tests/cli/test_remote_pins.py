"""Pins of remote models, as the CLI resolves them: with the predictor's command, in a bounded time."""

import io
from collections.abc import Iterator

import pytest
from tests import object_stores
from tests.object_stores import Bucket
from tests.ports import free_port

from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.release.model_pins import with_pins
from pilotlight.release.plan_and_render import Documents, Sources, read
from pilotlight.release.remote_pins import check_unchanged, resolve_remote


@pytest.fixture
def endpoint() -> Iterator[str]:
    with object_stores.moto() as address:
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = object_stores.s3_bucket(endpoint, "models-of-the-cli")
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    object_stores.set_versions(endpoint, bucket, "Enabled")
    return bucket


def test_what_a_store_has_is_pinned_and_what_it_lacks_has_a_reason(bucket: Bucket) -> None:
    bucket.put("iris/model.onnx", b"12345")
    uri, gone = bucket.uri("iris"), bucket.uri("gone")
    pins = resolve_remote([uri, gone])
    pin = pins[uri]
    assert isinstance(pin, ModelPin)
    assert (pin.digest.partition(":")[0], pin.size, list(pin.files)) == ("versions", 5, ["model.onnx"])
    assert pins[gone] == f"{gone}: nothing found; check the bucket and the path"


def pinned(bucket: Bucket, uri: str) -> Documents:
    """The document of a release that was deployed with what the store holds now."""
    text = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: iris}}
spec: {{predictor: {{model: {{modelFormat: {{name: onnx}}, storageUri: {uri}}}}}}}
"""
    pin = resolve_remote([uri])[uri]
    assert isinstance(pin, ModelPin)
    return with_pins(read(Sources(("-",), stdin=io.StringIO(text))), {uri: pin})


def test_a_release_whose_content_a_store_without_versions_has_lost_is_refused(bucket: Bucket, endpoint: str) -> None:
    object_stores.set_versions(endpoint, bucket, "Suspended")
    uri = bucket.uri("iris/model.onnx")
    bucket.put("iris/model.onnx", b"old")
    old = pinned(bucket, uri)
    check_unchanged(old)
    bucket.put("iris/model.onnx", b"new")
    with pytest.raises(PlatformError, match=rf"ModelChanged: {uri} has changed .* keeps no versions") as raised:
        check_unchanged(old)
    assert raised.value.hint == "put the old files back, or deploy the new: platformctl deploy -f FILE"
    bucket.delete("iris/model.onnx")
    check_unchanged(old)  # what cannot be read here is left to the pods


def test_a_release_whose_versions_are_kept_is_not_refused(bucket: Bucket) -> None:
    bucket.put("iris/model.onnx", b"old")
    old = pinned(bucket, bucket.uri("iris/model.onnx"))
    bucket.put("iris/model.onnx", b"new")
    check_unchanged(old)


def test_a_store_that_is_down_is_a_reason_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    reason = resolve_remote(["s3://models/iris"])["s3://models/iris"]
    assert isinstance(reason, str)
    assert reason.startswith(("s3://models/iris: ", "the store did not respond within"))


def test_a_store_that_never_answers_is_given_up_in_time() -> None:
    assert resolve_remote(["s3://models/iris"], timeout=0.01) == {
        "s3://models/iris": "its store did not answer within 0.01 s"
    }
