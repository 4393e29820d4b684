"""A stand-in for S3: one bucket of files of this machine, listed and read in ranges, at a rate that all readers share.

Stand-ins of the test suite hold objects in memory and read all of one for each range, too slow for a large model.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

PIECE: Final = 1 << 20
RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")
LISTED: Final = (
    "<Contents><Key>{key}</Key><LastModified>2030-01-01T00:00:00.000Z</LastModified>"
    '<ETag>"{size}"</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>'
)


class Pace:
    """Turns for pieces, so that together they leave at `bytes_s`."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s, self._next, self._lock = bytes_s, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + size / self._bytes_s
        time.sleep(max(0.0, turn - time.monotonic()))


class _Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: Mapping[str, Path]  # by /bucket/key
    pace: Pace

    def log_message(self, *args: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if "list-type" in (query := parse_qs(address.query)):
            self._list(address.path, query.get("prefix", [""])[0])
        elif (path := self.files.get(address.path)) is None:
            self._send(404, 0)
        else:
            self._read(path)

    def _list(self, bucket: str, prefix: str) -> None:
        keys = {name.removeprefix(f"{bucket.rstrip('/')}/"): path for name, path in self.files.items()}
        found = [
            LISTED.format(key=key, size=path.stat().st_size) for key, path in keys.items() if key.startswith(prefix)
        ]
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>".encode()
        self._send(200, len(body))
        self.wfile.write(body)

    def _read(self, path: Path) -> None:
        size = path.stat().st_size
        wanted = RANGE.fullmatch(self.headers.get("Range", ""))
        start, end = (int(wanted[1]), min(int(wanted[2]) + 1, size)) if wanted else (0, size)
        bounds = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if wanted else {}
        stamp = formatdate(path.stat().st_mtime, usegmt=True)
        self._send(206 if wanted else 200, end - start, ETag=f'"{size}"', **{"Last-Modified": stamp, **bounds})
        if self.command == "HEAD":
            return
        with path.open("rb") as file:
            file.seek(start)
            while (left := end - file.tell()) > 0:
                piece = file.read(min(PIECE, left))
                self.pace.wait(len(piece))
                self.wfile.write(piece)

    def _send(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def object_store(host: str, files: Mapping[str, Path], bytes_s: float) -> Iterator[str]:
    """Its address; `files` by `/bucket/key`."""
    handler = type("Objects", (_Objects,), {"files": files, "pace": Pace(bytes_s)})
    server = ThreadingHTTPServer((host, 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
