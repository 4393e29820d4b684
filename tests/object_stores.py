"""Object stores on loopback, as real servers: moto for S3 and for Google's XML API, Azurite for Azure.

Each gives a `Bucket`: its URI, how a test changes what is in it, and the environment in which a client finds it.
"""

import base64
import fcntl
import hashlib
import hmac
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import pytest

AZURITE_VERSION = "3.37.0"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
S3_SECRET = "testing-secret"


@dataclass
class Bucket:
    """One bucket of one object store, and how a test changes what is in it."""

    root: str
    put: Callable[[str, bytes], None]
    delete: Callable[[str], None]
    env: dict[str, str]
    secret: str = "nobody knows"  # what no log may show

    def uri(self, path: str = "") -> str:
        return f"{self.root}/{path}" if path else self.root


@contextmanager
def moto(host: str = "127.0.0.1") -> Iterator[str]:
    """The endpoint of a server of the S3 protocol."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(host, 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def s3_bucket(endpoint: str, name: str) -> Bucket:
    env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": S3_SECRET}
    return _bucket_of_moto("s3", endpoint, name, env, S3_SECRET)


def gs_bucket(endpoint: str, name: str) -> Bucket:
    """Google's XML API, which obstore speaks, is S3's for listing and reading; its own emulators serve only JSON."""
    return _bucket_of_moto("gs", endpoint, name, {"STORAGE_EMULATOR_HOST": urlsplit(endpoint).netloc})


def _bucket_of_moto(scheme: str, endpoint: str, name: str, env: dict[str, str], secret: str = Bucket.secret) -> Bucket:
    client = _s3_client(endpoint)
    client.create_bucket(Bucket=name)
    return Bucket(
        f"{scheme}://{name}",
        lambda key, body: client.put_object(Bucket=name, Key=key, Body=body, ACL="public-read"),
        lambda key: client.delete_object(Bucket=name, Key=key),
        env,
        secret,
    )


class VersionedBucket(Bucket):
    """A bucket of moto whose old versions a test can remove, as a lifecycle rule does."""

    def __init__(self, bucket: Bucket, endpoint: str) -> None:
        super().__init__(bucket.root, bucket.put, bucket.delete, bucket.env, bucket.secret)
        self._client = _s3_client(endpoint)

    def expire(self, key: str) -> None:
        name = self.root.partition("://")[2]
        for version in self._client.list_object_versions(Bucket=name, Prefix=key)["Versions"]:
            if not version["IsLatest"]:
                self._client.delete_object(Bucket=name, Key=key, VersionId=version["VersionId"])


def set_versions(endpoint: str, bucket: Bucket, status: str) -> None:
    name = bucket.root.partition("://")[2]
    _s3_client(endpoint).put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": status})


class _VersionHeaders(BaseHTTPRequestHandler):
    """Reads of moto with the version of an object in another header, and with one where moto sends none."""

    protocol_version = "HTTP/1.1"
    endpoint: str
    header: str
    missing: str
    refuse_old: bool

    def log_message(self, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() == "range"}
        url = self.endpoint + self.path.replace("generation=", "versionId=")
        if self.refuse_old and "versionId=" in url:
            self.send_error(403)
            return
        request = Request(url, method=self.command, headers=headers)
        try:
            reply: Any = build_opener(ProxyHandler({})).open(request, timeout=60)
        except HTTPError as error:
            reply = error
        with reply:
            body = reply.read()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in {"connection", "transfer-encoding", "server", "date", "x-amz-version-id"}:
                    self.send_header(name, value)
            if version := reply.headers.get("x-amz-version-id") or self.missing:
                self.send_header(self.header, version)
            if "Content-Length" not in reply.headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_HEAD = do_GET


@contextmanager
def version_headers(endpoint: str, header: str, missing: str = "", *, refuse_old: bool = False) -> Iterator[str]:
    """The endpoint of a proxy for unsigned reads of moto, which names versions as another store does.

    Google's are in `x-goog-generation` and read by `?generation=`; S3's objects without one have `missing`, "null".
    `refuse_old`: reading a version by its name is not allowed.
    """
    names = {"endpoint": endpoint, "header": header, "missing": missing, "refuse_old": refuse_old}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_VersionHeaders,), names))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _s3_client(endpoint: str) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key=S3_SECRET,
        config=Config(proxies={}, retries={"max_attempts": 1}),
    )


@contextmanager
def azurite() -> Iterator[str]:
    """The endpoint of the account that Azurite always has; skips where npm, which it comes from, is missing."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, and Azurite comes from there")
    program = _azurite_program()
    arguments = ["--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry"]
    arguments += ["--skipApiVersionCheck"]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    endpoint = next(
        found[0]
        for line in process.stdout
        if "successfully listens" in line and (found := re.search(r"http://127\.0\.0\.1:\d+", line))
    )
    reading = Thread(target=process.stdout.read)  # it tells every request, and waits where nobody listens
    reading.start()
    try:
        yield f"{endpoint}/{AZURE_ACCOUNT}"
    finally:
        process.terminate()
        process.wait(60)
        reading.join()
        process.stdout.close()


def _azurite_program() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "pilotlight" / f"azurite-{AZURITE_VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    program = home / "node_modules" / ".bin" / "azurite-blob"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(home), f"azurite@{AZURITE_VERSION}"]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
    return program


def az_bucket(endpoint: str, name: str) -> Bucket:
    import obstore
    from obstore.store import AzureStore

    _create_container(endpoint, name)
    store = AzureStore(
        name,
        account_name=AZURE_ACCOUNT,
        account_key=AZURE_KEY,
        endpoint=endpoint,
        client_options={"allow_http": True},
    )
    env = {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
    }
    return Bucket(
        f"az://{name}",
        lambda key, body: obstore.put(store, key, body) and None,
        lambda key: obstore.delete(store, key),
        env,
        AZURE_KEY,
    )


def _create_container(endpoint: str, name: str) -> None:
    """obstore cannot create one, so the request is signed here as the service asks for."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    canonical = "".join(f"{key}:{value}\n" for key, value in headers.items())
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + resource
    mac = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(mac).decode()}"
    headers["Content-Length"] = "0"
    request = Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
    build_opener(ProxyHandler({})).open(request, timeout=20).close()
