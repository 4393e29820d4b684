import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.predictor.storage.oci_server import (
    IMAGE_CONFIG,
    INDEX,
    LOGIN,
    TAR,
    Registry,
    digest_of,
    docker_config,
    link,
    serving,
    tar,
)

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import fetch, fetch_into
from pilotlight_predictor.storage.pin_command import resolve
from pilotlight_predictor.storage.store_interface import FetchOptions, UriNotFound
from pilotlight_predictor.storage.stores.oci_registry import read_login
from pilotlight_predictor.storage.sync import sync_repository

Content = Callable[..., bytes]
KITOPS = "application/vnd.kitops.modelkit"
MODELPACK = "application/vnd.cncf.model"
PATH = "org__cncf__model__filepath"
TITLE = "org__opencontainers__image__title"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(Registry()) as running:
        yield running


def tree(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_modelpack_artifact_has_raw_files_and_tars(
    registry: Registry, tmp_path: Path, options: FetchOptions, content: Content
) -> None:
    weights = content(300_000)
    registry.push("team/llama:v1", [
        registry.layer(f"{MODELPACK}.weight.v1.raw", weights, **{PATH: "shards/model.safetensors"}),
        registry.layer(f"{MODELPACK}.weight.config.v1.tar", tar({"config.json": b"{}"}), **{PATH: "config.json"}),
        registry.layer(f"{MODELPACK}.doc.v1.tar+gzip", tar({"README.md": b"#"}, packed=True)),
        registry.layer(f"{MODELPACK}.dataset.v1.raw", b"rows", **{PATH: "train.csv"}),
    ])  # fmt: skip
    path = fetch(registry.uri("team/llama:v1"), tmp_path, options=options)
    assert path.name == "llama"
    assert tree(path) == {"shards/model.safetensors": weights, "config.json": b"{}", "README.md": b"#"}
    ranges = [headers["range"] for path, headers in registry.requests if "/blobs/" in path and "range" in headers]
    assert len(ranges) >= 6  # the probe and five parts of the weights
    assert not registry.paths(digest_of(b"rows"))  # nothing serves a dataset


def test_a_modelkit_of_kitops_is_unpacked(registry: Registry, tmp_path: Path, options: FetchOptions) -> None:
    registry.push("kit:1", [
        registry.layer(f"{KITOPS}.model.v1.tar+gzip", tar({"./model.onnx": b"onnx"}, packed=True)),
        registry.layer(f"{KITOPS}.code.v1.tar", tar({"src/": b"", "predict.py": b"pass"})),
        registry.layer(f"{KITOPS}.dataset.v1.tar+gzip", tar({"data.csv": b"1"}, packed=True)),
    ], f"{KITOPS}.config.v1+json")  # fmt: skip
    path = fetch_into(registry.uri("kit:1"), tmp_path, options=options)
    assert (path / "model.onnx").read_bytes() == b"onnx"
    assert (path / "predict.py").read_bytes() == b"pass"
    assert not (path / "data.csv").exists()


def test_files_that_oras_pushed_keep_their_names_and_folders_are_unpacked(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    folder = {TITLE: "iris", "io__deis__oras__content__unpack": "true"}
    registry.push("files:1", [
        registry.layer(TAR, b"not a tar", **{TITLE: "model.onnx"}),
        registry.layer(f"{TAR}+gzip", tar({"iris/1/model.py": b"py"}, packed=True), **folder),
    ])  # fmt: skip
    path = fetch(registry.uri("files:1"), tmp_path, options=options)
    assert tree(path) == {"model.onnx": b"not a tar", "iris/1/model.py": b"py"}


def test_of_an_image_the_folder_models_is_the_model_and_later_layers_win(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    base = tar({"etc/passwd": b"root"}, link("bin", "/usr/bin"), link("dev/null", "", tarfile.CHRTYPE))
    first = tar({"models/model.onnx": b"old"}, link("models/copy.onnx", "models/model.onnx", tarfile.LNKTYPE))
    docker = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    layers = [
        registry.layer(TAR, base),
        registry.layer(TAR, first),
        registry.layer(docker, tar({"./models/model.onnx": b"new"}, packed=True)),
    ]
    registry.push("car:1", layers, IMAGE_CONFIG)
    path = fetch(registry.uri("car:1"), tmp_path, options=options)
    assert tree(path) == {"model.onnx": b"new", "copy.onnx": b"old"}
    registry.push("bare:1", layers[:1], IMAGE_CONFIG)
    with pytest.raises(LoadFailed, match="under /models"):
        fetch(registry.uri("bare:1"), tmp_path, options=options)


def test_of_an_index_the_manifest_of_this_machine_is_taken(
    registry: Registry, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    entries = []
    for architecture in ("amd64", "arm64"):
        layer = registry.layer(f"{MODELPACK}.weight.v1.raw", architecture.encode(), **{PATH: "arch"})
        digest = registry.push(f"many:{architecture}", [layer])
        entries.append({"digest": digest, "platform": {"os": "linux", "architecture": architecture}})
    attestation = {"digest": digest_of(b"x"), "platform": {"os": "unknown", "architecture": "unknown"}}
    registry.put("many:1", INDEX, {"mediaType": INDEX, "manifests": [attestation, *entries]})
    assert tree(fetch(registry.uri("many:1"), tmp_path, options=options)) == {"arch": b"arm64"}
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(LoadFailed, match="linux/amd64, linux/arm64"):
        fetch(registry.uri("many:1"), tmp_path, options=options)


def push_one(registry: Registry, body: bytes = b"weights", reference: str = "private/model:1") -> str:
    return registry.push(reference, [registry.layer(f"{MODELPACK}.weight.v1.raw", body, **{PATH: "model.bin"})])


@pytest.mark.parametrize("basic", [False, True])
def test_a_login_of_a_docker_config_opens_a_private_repository(
    registry: Registry, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch, basic: bool
) -> None:
    registry.login, registry.basic = LOGIN, basic
    push_one(registry)
    with pytest.raises(LoadFailed, match=r"refused access \(401\); set REGISTRY_AUTH_FILE") as refused:
        fetch(registry.uri("private/model:1"), tmp_path, options=options)
    file = tmp_path / "config.json"
    file.write_text(docker_config(registry.host))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    assert tree(fetch(registry.uri("private/model:1"), tmp_path / "a", options=options)) == {"model.bin": b"weights"}
    monkeypatch.setenv("REGISTRY_CREDENTIALS", docker_config(registry.host, "other:wrong"))
    with pytest.raises(LoadFailed, match="refused access"):
        fetch(registry.uri("private/model:1"), tmp_path / "b", options=options)
    assert "sesame" not in str(refused.value)


def test_a_token_that_expires_during_the_download_is_renewed(
    registry: Registry, tmp_path: Path, options: FetchOptions, content: Content
) -> None:
    registry.token_uses = 3
    push_one(registry, content(600_000))
    path = fetch(registry.uri("private/model:1"), tmp_path, options=replace(options, concurrency=1))
    assert (path / "model.bin").read_bytes() == content(600_000)
    assert len(registry.paths("/token")) >= 3


def test_a_content_network_gets_no_token(
    registry: Registry, tmp_path: Path, options: FetchOptions, content: Content
) -> None:
    registry.redirects = True
    push_one(registry, content(200_000))
    path = fetch(registry.uri("private/model:1"), tmp_path, options=options)
    assert (path / "model.bin").read_bytes() == content(200_000)
    sent = [headers for path, headers in registry.requests if path.startswith("cdn")]
    assert sent
    assert not [headers for headers in sent if "authorization" in headers]


def test_a_content_network_that_asks_for_credentials_gets_none(
    registry: Registry, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.login, registry.redirects, registry.cdn_refuses = LOGIN, True, True
    monkeypatch.setenv("REGISTRY_CREDENTIALS", docker_config(registry.host))
    push_one(registry)
    with pytest.raises(LoadFailed, match="401"):
        fetch(registry.uri("private/model:1"), tmp_path, options=options)
    assert not registry.paths("cdn/token")


def test_a_registry_without_ranges_sends_whole_blobs(
    registry: Registry, tmp_path: Path, options: FetchOptions, content: Content
) -> None:
    registry.ranges = False
    push_one(registry, content(200_000))
    path = fetch(registry.uri("private/model:1"), tmp_path, options=options)
    assert (path / "model.bin").read_bytes() == content(200_000)


def test_a_moved_tag_is_another_model_and_a_pin_stays(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    first = push_one(registry, b"first")
    uri = registry.uri("private/model:1")
    pin = resolve(uri, options)
    assert (pin.digest, pin.size) == (f"manifest:{first.partition(':')[2]}", 5)
    push_one(registry, b"second")
    assert tree(fetch(uri, tmp_path, options=options)) == {"model.bin": b"second"}
    pinned = replace(options, pin=pin)
    assert tree(fetch(uri, tmp_path, options=pinned)) == {"model.bin": b"first"}
    registry.requests.clear()
    assert tree(fetch(uri, tmp_path, options=pinned)) == {"model.bin": b"first"}
    assert tree(fetch(registry.uri(f"private/model:1@{first}"), tmp_path, options=options)) == {"model.bin": b"first"}
    assert registry.requests == []  # what a digest names is in the cache already


HOSTILE_TARS = [
    (tar({"../escape": b"x"}), "is outside of it"),
    (tar({"/etc/escape": b"x"}), "is outside of it"),
    (tar({}, link("out", "/etc/passwd")), "is outside of it"),
    (tar({}, link("out", "../../escape")), "is outside of it"),
    (tar({}, link("out", "/etc", tarfile.LNKTYPE)), "is outside of it"),
    (tar({}, link("gone", "nowhere")), "no file of the archive"),
    (tar({}, link("fifo", "", tarfile.FIFOTYPE)), "neither file nor directory"),
    (tar({f"{i}": b"" for i in range(50)}), "more than 40 members"),
    (tar({"zeros": bytes(2_000_000)}, packed=True), "unpacks to more than 1000000 bytes"),
    (b"no tar at all", "cannot be unpacked"),
]


@pytest.mark.parametrize("config", ["application/vnd.oci.empty.v1+json", IMAGE_CONFIG])
@pytest.mark.parametrize(("body", "reason"), HOSTILE_TARS)
def test_a_hostile_layer_is_refused_and_leaves_nothing(
    registry: Registry, tmp_path: Path, options: FetchOptions, body: bytes, reason: str, config: str
) -> None:
    limited = replace(options, max_members=40, max_unpacked_bytes=1_000_000)
    if config == IMAGE_CONFIG:
        body = below_models(body)
    registry.push("bad:1", [registry.layer(f"{TAR}+gzip", body)], config)
    with pytest.raises(LoadFailed, match=reason):
        fetch(registry.uri("bad:1"), tmp_path / "cache", options=limited)
    assert not list((tmp_path / "cache").rglob("*escape*"))
    assert not (tmp_path / "escape").exists()
    assert not list((tmp_path / "cache" / "models").glob("*"))


def below_models(body: bytes) -> bytes:
    """The same members, below the folder models."""
    if body.startswith(b"no tar"):
        return body
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(body)) as source, tarfile.open(fileobj=buffer, mode="w:gz") as target:
        for member in source:
            file = source.extractfile(member) if member.isreg() else None
            member.name = f"models/{member.name}"
            target.addfile(member, file)
    return buffer.getvalue()


def test_a_header_that_would_fill_the_memory_is_refused(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 2_000_000
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    registry.push("bad:1", [registry.layer(f"{TAR}+gzip", buffer.getvalue())])
    with pytest.raises(LoadFailed, match="header of 2000000 bytes"):
        fetch(registry.uri("bad:1"), tmp_path, options=options)


def test_what_an_image_has_beside_its_model_counts_as_unpacked(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    layer = registry.layer(f"{TAR}+gzip", tar({"models/m": b"m", "var/zeros": bytes(2_000_000)}, packed=True))
    registry.push("bomb:1", [layer], IMAGE_CONFIG)
    with pytest.raises(LoadFailed, match="unpacks to more than 1000000 bytes"):
        fetch(registry.uri("bomb:1"), tmp_path, options=replace(options, max_unpacked_bytes=1_000_000))


def test_files_that_an_image_deletes_are_not_served(registry: Registry, tmp_path: Path, options: FetchOptions) -> None:
    layers = [registry.layer(TAR, tar({"models/a": b"a"})), registry.layer(TAR, tar({"models/.wh.a": b""}))]
    registry.push("car:1", layers, IMAGE_CONFIG)
    with pytest.raises(LoadFailed, match="deletes 'a' of an earlier layer"):
        fetch(registry.uri("car:1"), tmp_path, options=options)


def test_bytes_that_are_not_those_of_the_digest_are_refused(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    digest = push_one(registry)
    registry.blobs[digest_of(b"weights")] = b"WEIGHTS"
    with pytest.raises(LoadFailed, match="has sha256"):
        fetch(registry.uri("private/model:1"), tmp_path, options=options)
    registry.manifests[f"/v2/private/model/manifests/{digest}"] = ("", b'{"layers": []}')
    with pytest.raises(LoadFailed, match="has the digest"):
        fetch(registry.uri(f"private/model@{digest}"), tmp_path, options=options)


def layer(**fields: Any) -> dict[str, Any]:
    valid = {"mediaType": f"{MODELPACK}.weight.v1.raw", "digest": digest_of(b"w"), "size": 1}
    return {**valid, "annotations": {"org.cncf.model.filepath": "w"}, **fields}


@pytest.mark.parametrize(("document", "reason"), [
    ([], "no JSON object"),
    ({"layers": "many"}, "no list of layers"),
    ({"layers": [7]}, "layer 0 has no media type"),
    ({"layers": [layer(size=-1)]}, "layer 0 has no media type"),
    ({"layers": [layer(digest="sha256:../../token")]}, "layer 0 has no media type"),
    ({"layers": [layer(size=2**60)]}, "more than 274877906944 bytes"),
    ({"layers": [layer(annotations={"org.cncf.model.filepath": "../escape"})]}, "is not a valid file name"),
    ({"layers": [layer(annotations=[])]}, "is not a valid file name"),
    ({"layers": [layer(mediaType=f"{MODELPACK}.weight.v1.tar+zstd")]}, "zstd"),
    ({"layers": [layer(mediaType=f"{MODELPACK}.dataset.v1.raw")]}, "no layer with model files"),
    ({"manifests": [7, {"platform": 7}]}, "its index has nothing"),
    ({"manifests": 7}, "its index has nothing"),
    ({"layers": [], "config": {"mediaType": []}}, "no layer with model files"),
    ({"layers": [layer(annotations={"org.cncf.model.filepath": "\ud800"})]}, "is not a valid file name"),
    ({"layers": [], "padding": "x" * 5_000_000}, "at most 4194304 bytes"),
])  # fmt: skip
def test_a_hostile_manifest_is_refused(
    registry: Registry, tmp_path: Path, options: FetchOptions, document: Any, reason: str
) -> None:
    registry.put("bad:1", "application/json", document)
    with pytest.raises(LoadFailed, match=reason):
        fetch(registry.uri("bad:1"), tmp_path, options=options)
    assert not registry.paths("/blobs/")


def test_credentials_do_not_follow_a_challenge_off_https(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    push_one(registry)
    registry.realm = "ftp://elsewhere/token"
    with pytest.raises(LoadFailed, match="must stay on https"):
        fetch(registry.uri("private/model:1"), tmp_path, options=options)


@pytest.mark.parametrize(
    "reference",
    ["host", "host/", "user:secret@host/repo", "host/../x", "host/a/../x", "host/a//x", "host/repo@sha256:12", ""],
)
def test_a_reference_that_is_none_is_refused(tmp_path: Path, reference: str) -> None:
    with pytest.raises(LoadFailed, match=r"write oci\+fetch://host/repository"):
        fetch(f"oci+fetch://{reference}", tmp_path)


def test_what_is_not_in_the_registry_is_said_so(registry: Registry, tmp_path: Path, options: FetchOptions) -> None:
    with pytest.raises(UriNotFound, match="no such manifest"):
        fetch(registry.uri("nothing"), tmp_path, options=options)
    assert registry.paths("/v2/nothing/manifests/latest")


def test_an_artifact_of_tars_is_no_repository_to_follow(
    registry: Registry, tmp_path: Path, options: FetchOptions
) -> None:
    registry.push("kit:1", [registry.layer(f"{KITOPS}.model.v1.tar", tar({"m/1/model.onnx": b"x"}))])
    with pytest.raises(LoadFailed, match="has layers of archives, which cannot be polled"):
        sync_repository(registry.uri("kit:1"), tmp_path, options=options)


def test_logins_are_those_of_the_host() -> None:
    config = {"auths": {"https://index.docker.io/v1/": {"username": "a", "password": "b"}, "https://ghcr.io": {}}}
    environ = {"REGISTRY_CREDENTIALS": json.dumps(config)}
    assert read_login("docker.io", environ) == "a:b"
    assert read_login("ghcr.io", environ) == ""
    for text in ("[]", "{", '{"auths": {"h": {"auth": 7}}}', '{"auths": {"h": {"username": "u"}}}'):
        with pytest.raises(LoadFailed, match=r"is not a docker config\.json"):
            read_login("h", {"REGISTRY_CREDENTIALS": text})


def test_other_stores_do_not_import_it() -> None:
    code = "import sys, pilotlight_predictor.storage.fetcher; sys.exit('oci_registry' in str(sorted(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
