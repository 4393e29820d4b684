"""References to media: several fetched at once, within one allowance of bytes and time. The entry of this package."""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pilotlight.microservices.media import local, objects, web
from pilotlight.microservices.media.images import check_image
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.references import LocalFile, StoredObject, parse
from pilotlight.microservices.media.refusals import LOG, MediaRefused, Refusal
from pilotlight.microservices.media.sniffing import Media, recognised
from pilotlight.microservices.media.videos import check_video
from pilotlight.microservices.model import Workspace


def fetch(
    references: Sequence[str],
    workspace: Workspace | None,
    limits: Limits,
    *,
    environ: Mapping[str, str] = os.environ,
    resolver: web.Resolve = web.resolve,
) -> list[Media]:
    """In the order of the references. Blocks; raises MediaRefused for the first that cannot be had."""
    if len(references) > limits.count:
        raise MediaRefused(f"media has {len(references)} entries, must be at most {limits.count}")
    allowance = web.Allowance(limits, time.monotonic())

    def one(text: str) -> Media:
        return _checked(recognised(_name(text), _bytes(text, workspace, allowance, environ, resolver)), limits)

    pool = ThreadPoolExecutor(min(limits.at_once, len(references)) or 1, thread_name_prefix="media")
    try:
        futures = [pool.submit(one, text) for text in references]
        wait(futures, timeout=limits.seconds + 1, return_when="FIRST_EXCEPTION")
        return [_result(at, references[at], future, limits) for at, future in enumerate(_failed_first(futures))]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _failed_first(futures: Sequence[Future[Media]]) -> Sequence[Future[Media]]:
    """Nothing is told of a medium that is still on its way while another has failed already."""
    for at, future in enumerate(futures):
        if future.done() and not future.cancelled() and (error := future.exception()):
            raise _told(at, error)
    return futures


def _result(at: int, reference: str, future: Future[Media], limits: Limits) -> Media:
    if not future.done():
        why = f"no answer within {limits.seconds:g} s, probably while its name was resolved"
        raise _told(at, Refusal(f"took longer than the {limits.seconds:g} s that all media of a request may take", why))
    return future.result()


def _told(at: int, error: BaseException) -> BaseException:
    if not isinstance(error, Refusal):
        return error
    LOG.warning("media[%d] was refused: %s", at, error.why)
    return MediaRefused(error.told, at)


def _bytes(
    text: str,
    workspace: Workspace | None,
    allowance: web.Allowance,
    environ: Mapping[str, str],
    resolver: web.Resolve,
) -> bytes:
    reference = parse(text)
    if isinstance(reference, LocalFile):
        return local.read(reference, allowance)
    if isinstance(reference, StoredObject):
        if workspace is None:
            raise Refusal("is in an object store, and no workspace with its credentials is known here")
        address = objects.signed(reference, workspace, environ)
        return web.get(address, allowance, trusted=True, resolver=resolver)
    return web.get(reference, allowance, resolver=resolver)


def _checked(media: Media, limits: Limits) -> Media:
    (check_image if media.kind == "image" else check_video)(media, limits)
    return media


def _name(text: str) -> str:
    return text.partition("?")[0].rstrip("/").rpartition("/")[2]
