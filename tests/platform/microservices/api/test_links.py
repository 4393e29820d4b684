"""Media of containers that fetch by themselves: named by addresses that are signed, and never sent along."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.inference.predict import load_media
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.model_kinds import schema
from pilotlight.microservices.registry.records import Workspace

COSMOS = schema("cosmos-rl")
BUCKET = Workspace(
    "s3://bucket",
    "https://10.0.0.5",
    credentials={"access_key": "env:WORKSPACE_A", "secret_key": "env:WORKSPACE_B"},
)
LIMITS = Limits(domains=("10.0.0.6",), networks=("10.0.0.0/8",), count=2)
ENVIRON = {"WORKSPACE_A": "id-of-somebody", "WORKSPACE_B": "a-very-secret-key"}


def test_objects_of_a_bucket_are_named_by_signed_addresses() -> None:
    video, image = load_media(COSMOS, ["s3://bucket/a.mp4", "https://10.0.0.6/b.jpg"], BUCKET, LIMITS, ENVIRON)
    assert (video.kind, image.kind) == ("video", "image")
    assert video.data_url.startswith("https://10.0.0.5/bucket/a.mp4?")
    assert "Signature=" in video.data_url
    assert "a-very-secret-key" not in video.data_url
    assert image.data_url == "https://10.0.0.6/b.jpg"


@pytest.mark.parametrize(
    ("reference", "workspace", "told"),
    [
        ("/etc/passwd", BUCKET, "is a path"),
        ("s3://bucket/a.mp4", None, "no workspace has its credentials"),
        ("ftp://x/a.mp4", BUCKET, "media"),
    ],
)
def test_what_it_could_not_fetch_is_refused_by_its_place(
    reference: str, workspace: Workspace | None, told: str
) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        load_media(COSMOS, [reference], workspace, Limits(), ENVIRON)
    assert "media[0]" in str(raised.value)


@pytest.mark.parametrize(
    "reference", ["https://elsewhere.example/a.mp4", "http://10.0.0.6/a.mp4", "https://[::1]/a.mp4"]
)
def test_an_address_outside_of_the_lists_is_not_handed_to_a_container(reference: str) -> None:
    with pytest.raises(UsageError, match=r"media\[0\] is "):
        load_media(COSMOS, [reference], BUCKET, LIMITS, ENVIRON)
    with pytest.raises(UsageError, match="must be at most 2"):
        load_media(COSMOS, ["https://10.0.0.6/b.jpg"] * 3, BUCKET, LIMITS, ENVIRON)
