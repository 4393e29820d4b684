"""`oci+fetch://host/repository[:tag|@sha256:…]`: artifacts and images of a registry (OCI distribution v2, pull only).

Layers are ModelPack's, KitOps', files as ORAS pushes them, and tars. Of a container image only `/models` is taken, as
in KServe. Blobs come through our ranged reads and are compared with their digests; archives.py unpacks the tars.
"""

import hashlib
import json
import os
import platform
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.http_client import SMALL_BODY, StreamedResponse, WebClient, next_hop, same_origin
from pilotlight_predictor.storage.store_interface import MIB, Contents, Entry, FetchOptions, UriNotFound, total_size
from pilotlight_predictor.storage.stores.web import raise_for_status, read_range
from pilotlight_predictor.storage.uri import Location, is_loopback_host, safe_relative

ENV_CREDENTIALS = "REGISTRY_CREDENTIALS"  # the text of a docker config.json
ENV_AUTH_FILE = "REGISTRY_AUTH_FILE"  # its path, as for podman and skopeo
ENV_PLAIN_HTTP = "REGISTRY_PLAIN_HTTP"  # hosts without TLS, comma-separated
MAX_DOCUMENT = 4 * MIB  # of a manifest: what the specification expects registries to take
_ACCEPT = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
)
_IMAGE_CONFIGS = {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DOCKER_HUB = {"docker.io": "registry-1.docker.io"}
_HUB_LOGIN = "https://index.docker.io/v1/"  # its key in a docker config.json
_REFERENCE = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::\d+)?)/(?P<repository>[a-z0-9]+(?:(?:[._-]+|/)[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAR = re.compile(r"[./+-]tar(?:[.+]gz(?:ip)?)?$")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class RegistryClient(WebClient):
    """Client that answers the registry's challenge, also when a token expires during a download."""

    def __init__(self, options: FetchOptions, host: str, repository: str, redacted: str) -> None:
        super().__init__(options)
        self._host = host
        self._scope = f"repository:{repository}:pull"
        self._redacted = redacted
        self._authorization: dict[str, str] = {}

    def get(self, url: str, headers: Mapping[str, str], first_peer: str | None = None) -> StreamedResponse:
        reply = super().get(url, {**headers, **self._authorization}, first_peer)
        # A content network that refuses its own signed URL must not learn the registry's credentials.
        if reply.response.status != 401 or not same_origin(reply.url, url):
            return reply
        with reply:
            challenges = reply.response.headers.get_all("WWW-Authenticate") or []
            reply.read(SMALL_BODY)
        self._authorization = self._authenticate(url, challenges, reply.peer)
        reply = super().get(url, {**headers, **self._authorization}, first_peer)
        if reply.response.status not in {401, 403}:
            return reply
        with reply:
            raise self._refused(reply.response.status)

    def _authenticate(self, url: str, challenges: list[str], peer: str) -> dict[str, str]:
        login = read_login(self._host, os.environ)
        basic = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
        bearer = next((each for each in challenges if each.lower().startswith("bearer ")), None)
        if bearer is None:
            return basic
        parameters = dict(_PARAMETER.findall(bearer))
        query = urlencode({"service": parameters.get("service", ""), "scope": self._scope})
        realm = next_hop(url, parameters.get("realm", ""), url)
        with super().get(f"{realm}{'&' if '?' in realm else '?'}{query}", basic, peer) as reply:
            if reply.response.status in {400, 401, 403, 404}:
                raise self._refused(reply.response.status)
            raise_for_status(reply, realm)
            _, answer = read_document(reply, realm)
        token = str(answer.get("token") or answer.get("access_token") or "")
        if not (token.isascii() and token.isprintable()):
            raise LoadFailed(f"{self._redacted}: the registry sent no token; check its login")
        return {"Authorization": f"Bearer {token}"}

    def _refused(self, status: int) -> LoadFailed:
        advice = f"set {ENV_AUTH_FILE} to a docker config.json with a login for {self._host}, or give the pod an"
        return LoadFailed(f"{self._redacted}: the registry refused access ({status}); {advice} imagePullSecret")


def read_login(host: str, environ: Mapping[str, str]) -> str:
    """Return `user:password` of a host from a docker config.json; empty without one. No content is in a message."""
    try:
        file = environ.get(ENV_AUTH_FILE, "")
        text = environ.get(ENV_CREDENTIALS) or (Path(file).read_text() if file else "{}")
        logins = json.loads(text).get("auths") or {}
        entry = logins.get(host) or logins.get(f"https://{host}") or {}
        entry = entry or (logins.get(_HUB_LOGIN) or {} if host in _DOCKER_HUB else {})
        if entry.get("auth"):
            return b64decode(entry["auth"]).decode()
        return f"{entry['username']}:{entry['password']}" if entry.get("username") else ""
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        message = f"{ENV_CREDENTIALS} or {ENV_AUTH_FILE} is not a docker config.json with auths for {host}"
        raise LoadFailed(f"{message}; write it with docker login, without a credential helper") from None


def read_document(reply: StreamedResponse, where: str) -> tuple[bytes, dict[str, Any]]:
    """Return the body of a response of at most 4 MiB, and its JSON object."""
    body = bytearray()
    while len(body) <= MAX_DOCUMENT and (piece := reply.read(MIB)):
        body += piece
    try:
        document = json.loads(body) if len(body) <= MAX_DOCUMENT else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise LoadFailed(f"{where}: the registry sent no JSON object of at most {MAX_DOCUMENT} bytes; check the URI")
    return bytes(body), document


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class RegistryStore:
    """One artifact or image of a registry."""

    def __init__(self, location: Location, options: FetchOptions) -> None:
        match = _REFERENCE.fullmatch(location.rest)
        if match is None:
            raise LoadFailed(f"{location.redacted}: cannot be read; write oci+fetch://host/repository[:tag|@sha256:…]")
        host, repository = match["host"], match["repository"]
        self._redacted = location.redacted
        self._reference = match["digest"] or match["tag"] or "latest"
        self._options = options
        hosts = os.environ.get(ENV_PLAIN_HTTP, "").split(",")
        options = replace(options, allow_http=options.allow_http or host in hosts)
        plain = options.allow_http or is_loopback_host(host.partition(":")[0])
        self._url = f"{'http' if plain else 'https'}://{_DOCKER_HUB.get(host, host)}/v2/{repository}"
        self._client = RegistryClient(options, host, repository, location.redacted)

    def contents(self) -> Contents:
        digest, manifest = self._manifest(self._reference)
        if "manifests" in manifest:
            _, manifest = self._manifest(self._of_this_platform(manifest))
        layers = manifest.get("layers")
        if not isinstance(layers, list) or len(layers) > self._options.max_members:
            raise self._invalid("its manifest has no list of layers")
        folder = "models/" if str(_mapping(manifest.get("config")).get("mediaType")) in _IMAGE_CONFIGS else ""
        entries = {entry.path: entry for i, layer in enumerate(layers) for entry in self._entries(i, layer, folder)}
        if not entries:
            raise UriNotFound(f"{self._redacted}: the artifact has no layer with model files; check the reference")
        if total_size([*entries.values()]) > self._options.max_unpacked_bytes:
            raise self._invalid(f"it has more than {self._options.max_unpacked_bytes} bytes (max_unpacked_bytes)")
        return Contents(self._with_ranges(tuple(entries.values())), commit=digest.partition(":")[2])

    def _manifest(self, reference: str) -> tuple[str, dict[str, Any]]:
        """Return digest and document of a manifest. Raise LoadFailed if it is not the one that a digest names."""
        url = f"{self._url}/manifests/{reference}"
        with self._client.get(url, {"Accept": _ACCEPT}) as reply:
            if reply.response.status == 404:
                raise UriNotFound(f"{self._redacted}: the registry has no such manifest; check repository and tag")
            raise_for_status(reply, url)
            body, manifest = read_document(reply, self._redacted)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference.startswith("sha256:") and reference != digest:
            raise self._invalid(f"the manifest {reference} has the digest {digest}")
        return digest, manifest

    def _of_this_platform(self, index: Mapping[str, Any]) -> str:
        """Return the digest of the manifest of an index for this machine, or of its only one."""
        machine = platform.machine()
        wanted = f"linux/{_ARCHITECTURES.get(machine, machine)}"
        manifests, digests = index["manifests"], dict[str, str]()
        for entry in map(_mapping, manifests if isinstance(manifests, list) else ()):
            where = _mapping(entry.get("platform"))
            system = f"{where.get('os')}/{where.get('architecture')}"
            if system != "unknown/unknown" and _DIGEST.fullmatch(str(entry.get("digest"))):  # unknown: attestations
                digests.setdefault(system, entry["digest"])
        if wanted in digests or len(digests) == 1:
            return digests.get(wanted) or next(iter(digests.values()))
        raise self._invalid(f"its index has {', '.join(digests) or 'nothing'}, but no {wanted}; push one")

    def _entries(self, index: int, layer: Any, folder: str) -> Iterator[Entry]:
        """Yield the entry of a layer: a file, or a tar to unpack. Datasets are left out: nothing serves them."""
        media, digest, size = (_mapping(layer).get(name) for name in ("mediaType", "digest", "size"))
        if not isinstance(media, str) or not isinstance(size, int) or size < 0 or not _DIGEST.fullmatch(str(digest)):
            raise self._invalid(f"layer {index} has no media type, size or sha256 digest")
        if ".dataset." in media:
            return
        notes = _mapping(layer.get("annotations"))
        # ORAS writes the media type of a tar for every file, and this annotation for folders only.
        title = notes.get("org.opencontainers.image.title")
        is_tar = _TAR.search(media) and (not title or notes.get("io.deis.oras.content.unpack") == "true")
        file = Entry("", size, etag=str(digest), digest=str(digest), key=f"{self._url}/blobs/{digest}")
        if is_tar:
            yield replace(file, path=f"{index}.tar", members=folder)
            return
        path = str(notes.get("org.cncf.model.filepath") or title or "")
        if media.endswith("zstd"):
            raise self._invalid(f"layer {index} is compressed with zstd; pack it with gzip or uncompressed")
        if not safe_relative(path) or not path.isprintable():
            raise self._invalid(f"layer {index} ({media}) has the file name {path!r}, which is not a valid file name")
        yield replace(file, path=path)

    def _with_ranges(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries, to be read in one stream each if the registry does not serve parts of blobs."""
        largest = max(entries, key=lambda entry: entry.size)
        ranges = False
        if largest.size > self._options.part_bytes:
            with self._client.get(largest.key, {"Range": "bytes=0-0"}) as reply:
                raise_for_status(reply, largest.key)
                ranges = reply.response.status == 206 and bool(reply.read(SMALL_BODY))
        return tuple(replace(entry, ranges=ranges) for entry in entries)

    def _invalid(self, reason: str) -> LoadFailed:
        return LoadFailed(f"{self._redacted}: cannot be fetched: {reason}")

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """Read without comparing etags: a digest names the bytes, and a content network has etags of its own."""
        yield from read_range(self._client, entry, start, end, {}, same_etag=False)


open_store = RegistryStore
