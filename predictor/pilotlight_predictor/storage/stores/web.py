"""`https://` and `http://`: one file per URI, in parallel ranges if the server supports them, else in one stream."""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.http_client import SMALL_BODY, StreamedResponse, WebClient
from pilotlight_predictor.storage.store_interface import (
    MIB,
    UNKNOWN_SIZE,
    ContentChanged,
    Contents,
    Entry,
    FetchOptions,
    TransientError,
    UriNotFound,
)
from pilotlight_predictor.storage.uri import Location, safe_relative

_CONTENT_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")


class WebStore:
    def __init__(self, location: Location, options: FetchOptions) -> None:
        self._url = location.text
        self._client = WebClient(options)

    def contents(self) -> Contents:
        """Request the first byte: unlike HEAD, this works with URLs that are signed for GET."""
        with self._client.get(self._url, {"Range": "bytes=0-0"}) as reply:
            contents = Contents((self._entry(reply),), single=True)
            if reply.response.status == 206:
                reply.read(SMALL_BODY)
            return contents

    def _entry(self, reply: StreamedResponse) -> Entry:
        headers = reply.response.headers
        name = unquote(urlsplit(self._url).path.rstrip("/").rpartition("/")[2])
        name = name if name and "/" not in name and safe_relative(name) else "model"
        etag = headers.get("ETag") or headers.get("Last-Modified") or ""
        total = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if reply.response.status in {206, 416} and total:
            return Entry(name, int(total[1]), etag, key=self._url, ranges=True)
        raise_for_status(reply, self._url)
        size = reply.response.length
        return Entry(name, UNKNOWN_SIZE if size is None else size, etag, key=self._url, ranges=False)

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        yield from read_range(self._client, entry, start, end, {})


def read_range(
    client: WebClient, entry: Entry, start: int, end: int, headers: Mapping[str, str], *, same_etag: bool = True
) -> Iterator[bytes]:
    range_header = {"Range": f"bytes={start}-{end - 1}"} if entry.ranges else {}
    with client.get(entry.key, {**headers, **range_header}) as reply:
        raise_for_status(reply, entry.key)
        etag = reply.response.headers.get("ETag") or reply.response.headers.get("Last-Modified") or ""
        if (same_etag and etag != entry.etag) or (range_header and reply.response.status != 206):
            raise ContentChanged(redact_uri(entry.key))
        while piece := reply.read(MIB):
            yield piece


def raise_for_status(reply: StreamedResponse, url: str) -> None:
    status = reply.response.status
    if status < 300:
        return
    redacted = redact_uri(url)
    if status in {404, 410}:
        raise UriNotFound(f"{redacted}: the server returned {status}; check the URL")
    if status in {401, 403}:
        raise LoadFailed(f"{redacted}: access was refused with {status}; check the URL's credentials or signature")
    if status in {408, 425, 429} or status >= 500:
        raise TransientError(f"the server returned {status}")
    raise LoadFailed(f"{redacted}: the server returned {status}; check the URL")


open_store = WebStore
