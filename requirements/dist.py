"""Builds a release into dist/: wheel, sdist, both charts as OCI layouts, a bill of materials and checksums.

`make dist`. Everything is built from the last commit, with its time as SOURCE_DATE_EPOCH, so that the same commit gives
the same bytes; changes that are not committed are left out. docs/releasing.md says what to do with it.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import sbom
import yaml

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ("inference-service", "inference-platform")
LOCK = "requirements/run.txt"  # what the wheel with the extra `onnx` needs
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def build(source: Path, target: Path, epoch: int) -> None:
    """Write all artifacts of a source tree into an empty folder."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
    for name in CHARTS:
        write_layout(source / "helm" / name, target / "charts" / name, epoch)
    bill = target / f"{project['name']}-{project['version']}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(source, project, target, epoch), indent=1) + "\n")
    sums = [f"{_digest(path.read_bytes())}  {path.relative_to(target)}\n" for path in _files(target)]
    (target / "SHA256SUMS").write_text("".join(sums))


def bill_of_materials(source: Path, project: dict[str, Any], target: Path, epoch: int) -> dict[str, Any]:
    """Return the document of the locked dependencies, about the wheel in `target`."""
    document = sbom.document(project, sbom.pins((source / LOCK).read_text()))
    (wheel,) = target.glob("*.whl")
    document["metadata"]["timestamp"] = _time(epoch)
    document["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": _digest(wheel.read_bytes())}]
    return document


def write_layout(chart: Path, layout: Path, epoch: int) -> None:
    """Write a chart as an OCI image layout with the media types of Helm, tagged with its version."""
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    config = _blob(layout, CONFIG, json.dumps(metadata).encode())
    content = _blob(layout, CONTENT, pack(chart, epoch))
    annotations = {
        "org.opencontainers.image.created": _time(epoch),
        "org.opencontainers.image.description": metadata["description"],
        "org.opencontainers.image.title": metadata["name"],
        "org.opencontainers.image.version": metadata["version"],
    }
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [content], "annotations": annotations,
    }  # fmt: skip
    tagged = _blob(layout, MANIFEST, json.dumps(manifest).encode())
    tagged["annotations"] = {"org.opencontainers.image.ref.name": metadata["version"]}
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [tagged]}))


def pack(chart: Path, epoch: int) -> bytes:
    """Return a chart as `helm package` packs it, without times and owners of this machine."""
    ignored = (chart / ".helmignore").read_text().split()
    archive = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=archive, mode="wb", filename="", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in _files(chart):
            parts = path.relative_to(chart).parts
            if any(fnmatch(part, pattern.rstrip("/")) for part in parts for pattern in ignored):
                continue
            entry = tarfile.TarInfo("/".join((chart.name, *parts)))
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch, 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)
    return archive.getvalue()


def _blob(layout: Path, media_type: str, content: bytes) -> dict[str, Any]:
    """Write one blob and return its descriptor."""
    digest = _digest(content)
    path = layout / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S603, S607 - ours


def main(arguments: list[str]) -> int:
    target = Path(arguments[0] if arguments else ROOT / "dist").resolve()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if _git("status", "--porcelain"):
        sys.stderr.write("dist: changes that are not committed are left out\n")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "HEAD"))) as tree:
            tree.extractall(folder, filter="data")
        build(Path(folder), target, int(_git("log", "-1", "--format=%ct")))
    sys.stdout.write("".join(f"{path}\n" for path in sorted(target.iterdir())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
