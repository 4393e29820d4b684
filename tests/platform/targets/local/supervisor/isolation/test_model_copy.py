"""Copies of an org's models: what is copied, and what is refused. tests/security swaps links during the copies."""

import os
from itertools import count
from pathlib import Path, PurePosixPath

import pytest

from pilotlight.errors import UsageError
from pilotlight.targets.local.supervisor.isolation import model_copy
from pilotlight.targets.local.supervisor.isolation.model_copy import copy_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "evil/m/1").mkdir(parents=True)
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/model.onnx").write_text("theirs")
    (tmp_path / "evil/m/1/model.onnx").write_text("own")
    return tmp_path / "evil/m"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def test_a_folder_is_copied_with_its_permissions_but_no_setuid_into_a_private_one(model: Path, folder: Path) -> None:
    (model / "1/run").touch()
    (model / "1/run").chmod(0o4755)
    (model / "1/model.onnx").chmod(0o444)
    (model / "1").chmod(0o555)
    (model / "latest").symlink_to("1")
    copy = copy_model(model, folder, sandboxed=False)
    assert copy == folder / "m"
    assert (copy / "latest/model.onnx").read_text() == "own"
    modes = [oct(path.stat().st_mode & 0o7777) for path in (folder, copy / "1", copy / "1/run", copy / "1/model.onnx")]
    assert modes == ["0o700", "0o755", "0o755", "0o644"]


def test_a_file_is_copied_with_its_companions(model: Path, folder: Path) -> None:
    for name in ("model.onnx.data", "config.pbtxt", "other.onnx"):
        (model / "1" / name).touch()
    (model / "1/model_2.onnx").symlink_to(model.parent.parent / "acme/model.onnx")
    copy = copy_model(model / "1/model.onnx", folder, sandboxed=False)
    assert copy.read_text() == "own"
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.onnx.data", "config.pbtxt"}


def test_a_file_is_copied_with_its_packages_if_a_sandbox_runs_them(model: Path, folder: Path) -> None:
    for name in ("net.pt", "layers/__init__.py", "layers/deep/wide.py", "data/rows.csv"):
        (model / name).parent.mkdir(exist_ok=True, parents=True)
        (model / name).touch()
    (model / "other").symlink_to("layers")
    copy_model(model / "net.pt", folder, sandboxed=True)
    assert {path.name for path in folder.iterdir()} == {"net.pt", "layers"}
    assert (folder / "layers/deep/wide.py").exists()
    copy_model(model / "net.pt", folder.with_name("data"), sandboxed=False)
    assert {path.name for path in folder.with_name("data").iterdir()} == {"net.pt"}


def test_code_is_copied_with_the_files_that_it_names_unless_a_link_leads_there(model: Path, folder: Path) -> None:
    (model / "1/data").mkdir()
    (model / "1/link").symlink_to(model.parent.parent / "acme")
    (model / "1/theirs").symlink_to(model.parent.parent / "acme/model.onnx")
    for name in ("a.json", "data/b.json", "c.json"):
        (model / "1" / name).write_text(name)
    names = ["a.json", "data/b.json", "link/model.onnx", "theirs", "data", "../1/c.json", "code.py/x", "\udc80"]
    (model / "1/code.py").write_text(ascii(names))
    copy_model(model / "1/code.py", folder, sandboxed=True)
    copied = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert copied == {"code.py", "a.json", "data", "data/b.json"}


def test_a_named_file_is_not_written_through_a_link_of_a_copied_package(model: Path, folder: Path) -> None:
    for name in ("layers/__init__.py", "layers/link/new", "layers/link/__init__.py"):
        (model / name).parent.mkdir(exist_ok=True, parents=True)
        (model / name).touch()
    folder.mkdir()
    (folder / "layers").mkdir()
    (folder / "layers/link").symlink_to(model.parent.parent / "acme")  # that the org has replaced by a folder since
    siblings = os.open(model, os.O_RDONLY)
    try:
        model_copy._copy_named(PurePosixPath("layers/link/new"), siblings, folder, count(1))
    finally:
        os.close(siblings)
    assert {path.name for path in (model.parent.parent / "acme").iterdir()} == {"model.onnx"}


@pytest.mark.parametrize("link", ["m", "m/1", "m/1/model.onnx"])
def test_a_path_through_a_link_is_refused(model: Path, folder: Path, link: str) -> None:
    path = model.parent / link
    path.rename(model.parent / "old")
    path.symlink_to(model.parent / "old")
    with pytest.raises(UsageError, match=r"cannot be copied for the start: (Not a directory|Too many levels)"):
        copy_model(model / "1/model.onnx", folder, sandboxed=True)


@pytest.mark.parametrize("target", ["../../acme/model.onnx", "1/../../../acme", "/etc", "loop/../../../acme"])
def test_a_link_out_of_the_folder_is_refused_unless_a_sandbox_reads_it(model: Path, folder: Path, target: str) -> None:
    (model / "loop").symlink_to("1")
    (model / "out").symlink_to(target)
    assert (copy_model(model, folder, sandboxed=True) / "out").is_symlink()
    with pytest.raises(UsageError, match=r"m/out is a link out of the model's folder"):
        copy_model(model, folder.with_name("second"), sandboxed=False)


def test_what_is_no_file_is_refused_without_waiting_for_it(model: Path, folder: Path) -> None:
    os.mkfifo(model / "pipe")
    with pytest.raises(UsageError, match="pipe is not a file of at most"):
        copy_model(model, folder, sandboxed=True)


def test_files_depth_and_bytes_are_limited(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(model_copy, "MAX_FILES", 2)
    with pytest.raises(UsageError, match="it has more than 10000 files"):
        copy_model(model, folder / "files", sandboxed=True)
    monkeypatch.setattr(model_copy, "MAX_FILES", 100)
    model.joinpath(*["d"] * 65).mkdir(parents=True)
    with pytest.raises(UsageError, match="or a path of more than 64 folders"):
        copy_model(model, folder / "depth", sandboxed=True)
    with pytest.raises(UsageError, match="or a path of more than 64 folders"):
        copy_model(model.joinpath(*["d"] * 64), folder / "path", sandboxed=True)
    monkeypatch.setattr(model_copy, "disk_space", lambda _: (1000, 998))
    with pytest.raises(UsageError, match=r"model\.onnx is not a file of at most 2 bytes, the free disk space"):
        copy_model(model / "1/model.onnx", folder / "bytes", sandboxed=True)
