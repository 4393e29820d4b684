"""Pins: the content of a URI at the time its revision was deployed. Decisions only.

    pin_command.py: listing ── pin_of ──> Pin ── the platform ──> INFERENCE_MODEL_PINS ── parse_pin ──> fetcher.py

A pinned copy has a fixed key in the cache, so that a copy that is there is used without a request to the store, and
without the import of what would fetch it: 50 ms of a cold start.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotlight.contract import ENV_MODEL_PINS
from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.errors import LoadFailed, ModelChanged
from pilotlight_predictor.storage.cache import UNVERSIONED, cache_key, cached, pinned_revision, revision_of, short_hash
from pilotlight_predictor.storage.store_interface import Contents, Pin, total_size
from pilotlight_predictor.storage.uri import OCI, Location, at_commit, parse, safe_relative

KINDS = {
    "commit": r"[0-9a-f]{40}",
    "manifest": r"[0-9a-f]{64}",
    "versions": r"[0-9a-f]{20}",
    "etags": r"[0-9a-f]{20}",
    "sha256": r"[0-9a-f]{64}",
}
COMMITS = {"commit": "hf", "manifest": OCI}  # content that its store keeps, and the URI can name
VERSIONED = {"s3", "gs", "az", "as"}  # their stores are VersionedStore
MAX_FILES = 64
MAX_FILES_BYTES = 16 * 1024  # of the JSON of `files`, which every pod of the revision has in a variable
MUST = '{"digest": "commit:…, manifest:…, versions:…, etags:… or sha256:…", "size": bytes, "files": {path: version}}'


def parse_pin(document: Any, subject: str) -> Pin:
    """Return the pin of a JSON document. Raise LoadFailed if it is none; `subject` begins the message."""
    pin = document if isinstance(document, Mapping) else {}
    digest, size = pin.get("digest"), pin.get("size", 0)
    kind, _, value = digest.partition(":") if isinstance(digest, str) else ("", "", "")
    files: Any = pin.get("files") if kind == "versions" else {}
    valid = kind in KINDS and re.fullmatch(KINDS[kind], value) and isinstance(size, int) and isinstance(files, Mapping)
    if not valid or (kind == "versions" and not files) or not all(_is_file(*item) for item in files.items()):
        raise LoadFailed(f"{subject}: pin = {json.dumps(document)[:200]}, must be {MUST}; the platform sets it")
    return Pin(f"{kind}:{value}", size, dict(files))


def _is_file(path: Any, version: Any) -> bool:
    return isinstance(path, str) and safe_relative(path) and isinstance(version, str) and bool(version)


def read_pin(text: str, uri: str) -> Pin:
    try:
        return parse_pin(json.loads(text), redact_uri(uri))
    except ValueError:
        raise LoadFailed(f"{redact_uri(uri)}: pin = {text[:200]}, must be {MUST}") from None


def parse_pins(text: str, uri: str) -> Pin | None:
    """Return the pin of one URI in the JSON of INFERENCE_MODEL_PINS; None without one."""
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise LoadFailed(f"{redact_uri(uri)}: {ENV_MODEL_PINS} is not a JSON object of URIs and pins")
    return parse_pin(document[uri], redact_uri(uri)) if uri in document else None


def can_have_versions(contents: Contents) -> bool:
    """Whether a pin may name the version of each file; a larger listing is pinned by its etags."""
    paths = sum(len(json.dumps(entry.path)) for entry in contents.entries)
    return len(contents.entries) <= MAX_FILES and paths <= MAX_FILES_BYTES


def pin_of(location: Location, contents: Contents) -> Pin:
    """Return the pin of a listing: by hash or commit of the URI, else by versions, else by etags.

    Raise LoadFailed if nothing in the listing would show a change.
    """
    size = max(total_size(contents.entries), 0)  # 0 if the server does not say
    if location.sha256:
        return Pin(f"sha256:{location.sha256}", size)
    if contents.commit:
        return Pin(f"{'manifest' if location.scheme == OCI else 'commit'}:{contents.commit}", size)
    files = {entry.path: entry.version for entry in contents.entries}
    if all(files.values()) and len(json.dumps(files)) <= MAX_FILES_BYTES:
        lines = (f"{entry.path}\0{entry.size}\0{entry.version}" for entry in contents.entries)
        return Pin(f"versions:{short_hash(chr(10).join(lines))}", size, files)
    revision = revision_of(contents, 0)
    if revision.startswith(UNVERSIONED):
        raise LoadFailed(
            f"{location.redacted}: the server sends neither ETag nor Last-Modified, so changes cannot be detected;"
            " add #sha256=… to the URI"
        )
    return Pin(f"etags:{revision}", size)


def at_pin(location: Location, pin: Pin) -> Location:
    """Return the location of the pinned content, as far as a URI can say it: with the commit, or the hash.

    Raise LoadFailed if its store has no such pins.
    """
    if COMMITS.get(pin.kind, location.scheme) != location.scheme or (
        pin.kind == "versions" and location.scheme not in VERSIONED
    ):
        message = f"{location.redacted}: {pin.kind}: is not a pin of {location.scheme}://"
        raise LoadFailed(f"{message}; deploy again with -f FILE")
    if pin.kind == "sha256":
        return location._replace(sha256=pin.value)
    if pin.kind in COMMITS:
        return at_commit(location, pin.value)
    return location


def fixed_revision(location: Location, pin: Pin | None) -> str:
    """Return the revision of the content if it is known without a listing, as the cache names it; else empty."""
    if pin is None or pin.kind in {"sha256", *COMMITS}:
        return pinned_revision(location)
    # Etags as a fetch without a pin names them: it may have brought the copy.
    return pin.value if pin.kind == "etags" else pin.digest


def cached_pin(uri: str, cache: Path, pin: Pin) -> Path | None:
    """Return the copy of the pinned content that a fetch would return without a request; else None."""
    location = at_pin(parse(uri), pin)
    return cached(cache, cache_key(location, fixed_revision(location, pin)))


def check_etags(location: Location, contents: Contents, pin: Pin) -> None:
    """Raise ModelChanged if the listing is not the pinned one."""
    revision = revision_of(contents, 0)
    if revision == pin.value:
        return
    size = max(total_size(contents.entries), 0)
    sizes = f"{size} bytes, was {pin.size}; " if pin.size and size != pin.size else ""
    subject, old = (contents.entries[0].path, "file") if contents.single else ("the model", "files")
    raise ModelChanged(
        f"{location.redacted}: {subject} changed since this revision was deployed"
        f" ({sizes}etags {revision}, was {pin.value}); deploy again with -f FILE for a new revision,"
        f" or put the old {old} back"
    )


def pin_location(uri: str) -> Location:
    """Return the location of a URI that may be pinned. Raise LoadFailed for other kinds of URIs."""
    location = parse(uri)
    if location.scheme in {"file", "storage-config"}:
        raise LoadFailed(f"{location.redacted}: {location.scheme}:// cannot be pinned")
    return location
