"""`make dist` builds a release whose bytes depend on nothing but the commit."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "requirements"))

import dist
from dist import ROOT

EPOCH = 1_700_000_000


def blobs(layout: Path) -> dict[str, bytes]:
    return {f"sha256:{path.name}": path.read_bytes() for path in (layout / "blobs/sha256").iterdir()}


def manifest_of(layout: Path) -> dict[str, Any]:
    """The tagged manifest, found as a client finds it."""
    (tagged,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert tagged["annotations"] == {"org.opencontainers.image.ref.name": "0.1.0"}
    return json.loads(blobs(layout)[tagged["digest"]])


@pytest.mark.parametrize("name", dist.CHARTS)
def test_a_chart_is_an_oci_layout_with_helms_media_types(name: str, tmp_path: Path) -> None:
    dist.write_layout(ROOT / "helm" / name, tmp_path, EPOCH)
    found = blobs(tmp_path)
    assert all(digest == f"sha256:{hashlib.sha256(content).hexdigest()}" for digest, content in found.items())
    manifest = manifest_of(tmp_path)
    (layer,) = manifest["layers"]
    assert (manifest["config"]["mediaType"], layer["mediaType"]) == (dist.CONFIG, dist.CONTENT)
    assert json.loads(found[manifest["config"]["digest"]])["name"] == name
    assert layer["size"] == len(found[layer["digest"]])


def test_a_packed_chart_depends_on_contents_alone(tmp_path: Path) -> None:
    copied = shutil.copytree(ROOT / "helm/inference-service", tmp_path / "inference-service")
    (copied / "values.yaml").touch(0o600)
    assert dist.pack(copied, EPOCH) == dist.pack(ROOT / "helm/inference-service", EPOCH)


@pytest.mark.long
def test_two_builds_of_a_commit_have_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert dist.main([str(tmp_path / name)]) == 0
    one, two = ((tmp_path / name / "SHA256SUMS").read_text() for name in ("one", "two"))
    assert one == two
    built = [line.split()[1] for line in one.splitlines() if not line.split()[1].startswith("charts/")]
    assert built == ["pilotlight-0.1.0-py3-none-any.whl", "pilotlight-0.1.0.cdx.json", "pilotlight-0.1.0.tar.gz"]
    bill = json.loads((tmp_path / "one/pilotlight-0.1.0.cdx.json").read_text())
    wheel = (tmp_path / "one/pilotlight-0.1.0-py3-none-any.whl").read_bytes()
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(wheel).hexdigest()
    assert "onnxruntime" in {component["name"] for component in bill["components"]}
