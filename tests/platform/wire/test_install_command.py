"""Hints that install an extra: into the environment that reports the error, from where Pilotlight came."""

import json
import sys
from pathlib import Path

import pytest

from pilotlight.wire.environments.install_command import install_command


def install(site: Path, origin: dict[str, object] | None) -> None:
    """Write what an installer records about the origin of a package."""
    folder = site / "pilotlight-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pilotlight\nVersion: 9\n")
    if origin:
        (folder / "direct_url.json").write_text(json.dumps(origin))


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (None, "'pilotlight[onnx,grpc]'"),
        ({"url": "https://example.com{}"}, "'pilotlight[onnx,grpc]'"),
        ({"url": "file:///gone"}, "'pilotlight[onnx,grpc]'"),
        ({"url": "file://{}/my%20clone", "dir_info": {}}, "'{}/my clone[onnx,grpc]'"),
        ({"url": "file://{}/my%20clone", "dir_info": {"editable": True}}, "-e '{}/my clone[onnx,grpc]'"),
    ],
)
def test_pip_of_this_interpreter_installs_from_the_origin(
    origin: dict[str, object] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my clone").mkdir()
    install(tmp_path, origin and {**origin, "url": str(origin["url"]).format(tmp_path)})
    monkeypatch.syspath_prepend(tmp_path)
    expected = f"{sys.executable} -m pip install {words.format(tmp_path)}"
    assert install_command("onnx", "grpc") == expected


def test_uv_installs_where_the_environment_has_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, None)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "pip", None)
    assert install_command("onnx") == f"uv pip install --python {sys.executable} 'pilotlight[onnx]'"
