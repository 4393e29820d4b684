"""Where a model may lie, and which places are refused with the reason."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.registry.container_command import ModelPath, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf_model://nvidia/Cosmos-Reason1-7B", ModelPath("hub", "nvidia/Cosmos-Reason1-7B")),
        ("hf_model://a/b@v1", ModelPath("hub", "a/b@v1")),
        ("/models/checkpoint", ModelPath("local", "/models/checkpoint")),
    ],
)
def test_the_hub_and_paths_are_taken(text: str, expected: ModelPath) -> None:
    assert parse(text) == expected
    assert parse(text).uri == text


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "S3", "https"])
def test_cloud_storage_is_refused_with_the_reason(scheme: str) -> None:
    with pytest.raises(UsageError, match="no access to cloud storage"):
        parse(f"{scheme}://bucket/model")


@pytest.mark.parametrize("text", ["", "  ", "relative/path", "hf_model://", "hf_model://only", "ftp://a/b", "/a\nb"])
def test_what_is_no_place_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="model_path"):
        parse(text)


def test_whoever_brings_credentials_may_name_cloud_storage() -> None:
    assert parse("s3://bucket/model", remote=True) == ModelPath("remote", "s3://bucket/model")
