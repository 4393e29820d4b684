"""Concurrent fetching of media references within one budget of bytes and time. The entry of this package.

A model's parameters.yaml is fetched by the same clients, so that a store is held to the same rules.
"""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.microservices.media import file_and_bucket_sources, ssrf_safe_client
from pilotlight.microservices.media.images import Media, check_image, identify
from pilotlight.microservices.media.limits import LOG, Limits, MediaError, MediaRefused, refused_as
from pilotlight.microservices.media.references import OBJECTS, LocalFile
from pilotlight.microservices.media.videos import check_video
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.records import Workspace

DECLARATION_S: Final = 10.0


def fetch(
    references: Sequence[str], workspace: Workspace | None, limits: Limits, *,
    environ: Mapping[str, str] = os.environ, resolver: ssrf_safe_client.Resolve = ssrf_safe_client.resolve,
) -> list[Media]:  # fmt: skip
    """Return media in the order of the references. Blocking; raise MediaRefused for the first that fails."""
    if len(references) > limits.count:
        raise MediaRefused(f"media has {len(references)} entries, must be at most {limits.count}")
    budget = ssrf_safe_client.FetchBudget(limits, time.monotonic())

    def one(text: str) -> Media:
        name = text.partition("?")[0].rstrip("/").rpartition("/")[2]
        return checked_media(name, _bytes(text, workspace, budget, environ, resolver), limits)

    pool = ThreadPoolExecutor(min(limits.at_once, len(references)) or 1, thread_name_prefix="media")
    try:
        futures = [pool.submit(one, text) for text in references]
        _, late = wait(futures, timeout=limits.seconds + 1, return_when="FIRST_EXCEPTION")
        # An error is reported before a timeout of another medium.
        for index, future in sorted(enumerate(futures), key=lambda each: each[1] in late):
            with refused_as(index):
                if future in late:
                    message = f"exceeds the limit of {limits.seconds:g} s for all media of a request"
                    reason = f"no response within {limits.seconds:g} s, probably while its name was resolved"
                    raise MediaError(message, reason)
                future.result()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def checked_media(name: str, data: bytes, limits: Limits) -> Media:
    """Return the image or video after checking its limits. Raise MediaError."""
    media = identify(name, data)
    (check_image if media.kind == "image" else check_video)(media, limits)
    return media


def _bytes(
    text: str, workspace: Workspace | None, budget: ssrf_safe_client.FetchBudget, environ: Mapping[str, str],
    resolver: ssrf_safe_client.Resolve, *, trusted: bool = False,
) -> bytes:  # fmt: skip
    """Return the content. `trusted`: a web address is the workspace's own, exempt from the list of domains."""
    reference, own = file_and_bucket_sources.locate(text, workspace, environ)
    if isinstance(reference, LocalFile):
        return file_and_bucket_sources.read(reference, budget)
    return ssrf_safe_client.get(reference, budget, trusted=trusted or own, resolver=resolver)


def read_declaration(
    model: str, workspace: Workspace | None, limits: Limits, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the text of parameters.yaml beside a model, here or in a workspace's store; empty: it has none. Blocking.

    It is in the model's folder, or in the folder of a model that is one file. Raise PlatformError where the store
    cannot be read.
    """
    if "://" not in model:
        return model_kinds.read_declaration(Path(model))
    base, mark, query = model.partition("?")
    elsewhere = workspace is None or workspace.uri.startswith(("/", "file:"))  # a store without known credentials
    if elsewhere or base.partition("://")[0] not in {*OBJECTS, "http", "https"}:
        return ""
    base = base.rstrip("/")
    folders = [base, base.rpartition("/")[0]] if PurePosixPath(base).suffix else [base]
    size, seconds = model_kinds.MAX_BYTES, min(limits.seconds, DECLARATION_S)
    budget = ssrf_safe_client.FetchBudget(
        replace(limits, bytes=size, total_bytes=size, seconds=seconds), time.monotonic()
    )
    for folder in folders:
        try:
            uri = f"{folder}/{model_kinds.FILE}{mark}{query}"
            text = _bytes(uri, workspace, budget, environ, ssrf_safe_client.resolve, trusted=True)
            return text.decode(errors="replace")
        except MediaError as error:
            # S3 answers 403 for an object that is not there to those who may not list the bucket.
            if error.status not in {401, 403, 404}:
                LOG.warning("%s of a model was not read: %s", model_kinds.FILE, error.reason)
                raise PlatformError(f"{model_kinds.FILE} beside the model {error.message}") from error
    return ""
