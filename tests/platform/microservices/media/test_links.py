"""Files of a bucket, named to a model that fetches by itself: by signed addresses, never sent along."""

from pathlib import Path
from typing import Any

import pytest
from tests.object_stores import Bucket
from tests.platform.microservices.media.conftest import png

from pilotlight.errors import UsageError
from pilotlight.microservices.batch import workspace_storage
from pilotlight.microservices.batch.file_inference import Files, Request
from pilotlight.microservices.batch.job_folder import Batch
from pilotlight.microservices.inference.predict import chat_body
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.file_and_bucket_sources import link, links
from pilotlight.microservices.registry.model_kinds import schema
from pilotlight.microservices.registry.records import Workspace

COSMOS = schema("cosmos-rl")


def test_every_file_of_a_bucket_is_asked_about_by_an_address(
    s3: tuple[Bucket, Workspace, dict[str, str]], limits: Limits, tmp_path: Path
) -> None:
    bucket, workspace, environ = s3
    bucket.put("in/a.png", png())
    bucket.put("in/b.mp4", b"not looked at here")
    inputs, outputs = (workspace_storage.open_folder(path, workspace, limits, environ) for path in ("in", "out"))
    batch = Batch("j", "cosmos-rl", "m", workspace, "in", "out", {"text": "What is it?"})

    def signed(text: str) -> Media:
        return link(text, workspace, limits, environ)

    files = Files(batch, COSMOS, inputs, outputs, tmp_path / "spool", signed)
    files.scan()
    sent = list[dict[str, Any]]()

    def ask(request: Request) -> dict[str, Any]:
        sent.append(chat_body(COSMOS, request.model_request, request.media))
        return {"response": "a picture"}

    files.run(ask, lambda _: [], limits, 1, lambda: None)
    first, second = (body["messages"][0]["content"] for body in sent)
    address = first[0]["image_url"]["url"]
    assert address.startswith(f"{workspace.endpoint}/{bucket.root.removeprefix('s3://')}/in/a.png?")
    assert "X-Amz-Signature=" in address
    assert bucket.secret not in address
    assert second[0]["type"] == "video_url"
    assert first[1] == {"type": "text", "text": "What is it?"}


def test_a_path_of_this_machine_cannot_be_fetched_by_a_container() -> None:
    with pytest.raises(UsageError, match=r"media\[2\] is a path"):
        link("/data/a.png", None, Limits(), {}, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://elsewhere.example/a.mp4", "is on a host that is not allowed"),
        ("http://listed.example/a.mp4", "is plain http://"),
        ("https://169.254.169.254/latest/meta-data/", "could not be fetched"),
        ("https://127.0.0.1:8091/x.mp4", "could not be fetched"),
        ("https://[::ffff:10.0.0.5]/x.mp4", "could not be fetched"),
        ("s3://bucket/x.mp4", "could not be fetched"),
    ],
)
def test_an_address_that_would_not_be_fetched_here_is_not_passed_on(text: str, told: str) -> None:
    hosts = ("listed.example", "169.254.169.254", "127.0.0.1", "::ffff:10.0.0.5")
    store = Workspace("s3://bucket", endpoint="https://169.254.169.254")
    with pytest.raises(UsageError, match=rf"media\[0\] {told}"):
        links([text], store, Limits(domains=hosts), {})


def test_an_address_is_passed_on_as_it_was_understood() -> None:
    permitted = Limits(domains=("10.0.0.5",), networks=("10.0.0.0/8",))
    [found] = links(["HTTPS://10.0.0.5:443/a b.mp4".replace(" ", "%20")], None, permitted, {})
    assert (found.link, found.kind) == ("https://10.0.0.5/a%20b.mp4", "video")


def test_more_addresses_than_media_may_be_in_a_request_are_refused() -> None:
    with pytest.raises(UsageError, match="media has 3 entries, must be at most 2"):
        links(["https://10.0.0.5/a.png"] * 3, None, Limits(count=2), {})
