"""Media that a container fetches by itself: named by an address that is signed for a while, and not sent along.

An address is judged by the rules for those that are fetched here, and passed on as it was understood. What the
container makes of it, by a name that changes meanwhile or by a redirect, nobody sees here: docs/media.md says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from pilotlight.microservices.media import web
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.objects import signed
from pilotlight.microservices.media.references import LocalFile, StoredObject, parse
from pilotlight.microservices.media.refusals import LOG, MediaRefused, Refusal
from pilotlight.microservices.media.sniffing import Media
from pilotlight.microservices.model import Workspace

VIDEOS: Final = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi"})


def links(
    references: Sequence[str], workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]
) -> list[Media]:
    """All of one request, in its order."""
    if len(references) > limits.count:
        raise MediaRefused(f"media has {len(references)} entries, must be at most {limits.count}")
    return [linked(text, workspace, limits, environ, at) for at, text in enumerate(references)]


def linked(text: str, workspace: Workspace | None, limits: Limits, environ: Mapping[str, str], at: int = -1) -> Media:
    """What it is, is told by its name: its bytes are not seen here. `at` is its place in the request."""
    try:
        address = _address(text, workspace, limits, environ)
    except Refusal as error:
        LOG.warning("media[%d] was not passed on: %s", at, error.why)
        raise MediaRefused(error.told, at) from error
    name = PurePosixPath(text.partition("?")[0]).name
    return Media(name, "video" if PurePosixPath(name).suffix.lower() in VIDEOS else "image", link=address)


def _address(text: str, workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]) -> str:
    reference = parse(text)
    if isinstance(reference, LocalFile):
        raise Refusal("is a path, and this model fetches media by https, s3 or az addresses")
    if not isinstance(reference, StoredObject):
        return web.vouched(reference, limits, trusted=False).whole
    if workspace is None:
        raise Refusal("is in an object store, and the experiment has no workspace with its credentials")
    return web.vouched(signed(reference, workspace, environ), limits, trusted=True).whole
