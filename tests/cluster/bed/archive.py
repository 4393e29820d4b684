"""Packs folders and files into an image archive: what `ctr images import` and every other container tool reads.

Layers are reproducible (sorted, owned by root, without times), so a layer that several images share is stored and
unpacked once. Nothing is pulled and nothing is pushed.
"""

import hashlib
import io
import json
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

PATH: Final = "PATH=/usr/local/bin:/usr/bin:/bin"
USER: Final = "65532"


@dataclass(frozen=True, slots=True)
class Layer:
    """A folder is copied to `dest`, a file becomes `dest`; `links` are name → target of symbolic links beside them."""

    source: Path
    dest: str = "/"
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """`key` changes when the content does: an image whose key is known is neither packed nor imported again."""

    name: str
    key: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...]
    env: tuple[str, ...] = (PATH,)
    workdir: str = "/"
    aliases: tuple[str, ...] = ()


def pack(image: Image, archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch, tarfile.open(archive, "w") as tar:
        written = [_write_layer(Path(scratch) / str(number), layer) for number, layer in enumerate(image.layers)]
        digests = [digest for digest, _ in written]
        config = json.dumps(_config(image, digests)).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        files = [f"{digest}.tar" for digest in digests]
        manifest = [{"Config": name, "RepoTags": [image.name, *image.aliases], "Layers": files}]
        _add(tar, name, config)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        for digest, path in written:
            tar.add(path, arcname=f"{digest}.tar", filter=_clean)


def _config(image: Image, digests: list[str]) -> dict[str, Any]:
    run = {"Entrypoint": list(image.entrypoint), "User": USER, "Env": list(image.env), "WorkingDir": image.workdir}
    return {
        "architecture": "amd64", "os": "linux", "config": run,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "tests.cluster.bed"} for _ in digests],
    }  # fmt: skip


def _write_layer(path: Path, layer: Layer) -> tuple[str, Path]:
    """Uncompressed: it travels no further than this machine."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        if layer.source.is_dir():
            tar.add(layer.source, arcname=layer.dest.strip("/") or ".", filter=_clean)
        else:
            _add_file(tar, layer)
        for name, target in layer.links:
            link = tarfile.TarInfo(name.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        _add_folder(tar, "tmp", 0o1777)
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest(), path


def _add_file(tar: tarfile.TarFile, layer: Layer) -> None:
    parts = layer.dest.strip("/").split("/")
    for depth in range(1, len(parts)):
        _add_folder(tar, "/".join(parts[:depth]), 0o755)
    info = _clean(tar.gettarinfo(str(layer.source.resolve()), arcname="/".join(parts)))
    info.mode |= 0o555
    with open(layer.source, "rb") as stream:
        tar.addfile(info, stream)


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, mode
    tar.addfile(folder)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    stream: BinaryIO = io.BytesIO(content)
    tar.addfile(info, stream)


def _clean(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drops what would make two archives of one tree differ."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info
