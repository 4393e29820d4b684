"""Links to media that a container fetches itself, presigned for object stores.

They are checked like media that are fetched here, but later DNS changes and redirects in the container are not:
docs/media.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from pilotlight.microservices.media import web
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.objects import sign_url
from pilotlight.microservices.media.references import LocalFile, StoredObject, parse
from pilotlight.microservices.media.refusals import LOG, MediaError, MediaRefused
from pilotlight.microservices.media.sniffing import Media
from pilotlight.microservices.model import Workspace

VIDEOS: Final = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi"})


def links(
    references: Sequence[str], workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]
) -> list[Media]:
    """Return the links of one request, in its order."""
    if len(references) > limits.count:
        raise MediaRefused(f"media has {len(references)} entries, must be at most {limits.count}")
    return [link(text, workspace, limits, environ, at) for at, text in enumerate(references)]


def link(text: str, workspace: Workspace | None, limits: Limits, environ: Mapping[str, str], at: int = -1) -> Media:
    """Return the link of one reference; image or video is decided by its name. `at`: its index in the request."""
    try:
        address = _address(text, workspace, limits, environ)
    except MediaError as error:
        LOG.warning("media[%d] was not passed on: %s", at, error.reason)
        raise MediaRefused(error.message, at) from error
    name = PurePosixPath(text.partition("?")[0]).name
    return Media(name, "video" if PurePosixPath(name).suffix.lower() in VIDEOS else "image", link=address)


def _address(text: str, workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]) -> str:
    reference = parse(text)
    if isinstance(reference, LocalFile):
        raise MediaError("is a path, and this model fetches media by https, s3 or az addresses")
    if not isinstance(reference, StoredObject):
        return web.check_address(reference, limits, trusted=False).url
    if workspace is None:
        raise MediaError("is in an object store, and the experiment has no workspace with its credentials")
    return web.check_address(sign_url(reference, workspace, environ), limits, trusted=True).url
