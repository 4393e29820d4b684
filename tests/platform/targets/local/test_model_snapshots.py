"""Digests and snapshots of local models: what is read again, what is copied, what is refused, what is collected."""

import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.model_pins import changed_files
from pilotlight.targets.local import model_snapshots
from pilotlight.targets.local.model_snapshots import GRACE_S, ModelChanged, ModelSnapshots

OLD_NS = time.time_ns() - 60_000_000_000
PINNED = "sha256:b549e6de065010e860841cd8e0d257c0b2f9ef072e0dc2b6c446bd1ab53779e0"  # of the model below


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1").mkdir(parents=True)
    write(folder / "config.pbtxt", "name: 'm'")
    write(folder / "1" / "weights.bin", "weights")
    return folder


@pytest.fixture
def snapshots(tmp_path: Path) -> ModelSnapshots:
    return ModelSnapshots(tmp_path / "models")


def write(path: Path, text: str) -> None:
    """Write with an mtime in the past, so that the digest may be cached."""
    path.write_text(text)
    os.utime(path, ns=(OLD_NS, OLD_NS))


def test_the_digest_is_that_of_the_content_and_not_of_times_or_caches(snapshots: ModelSnapshots, model: Path) -> None:
    first = snapshots.digest(str(model))
    assert first.size == len("name: 'm'") + len("weights")
    (model / "__pycache__").mkdir()
    (model / "__pycache__" / "model.pyc").write_text("x")
    os.utime(model / "config.pbtxt")
    assert snapshots.digest(str(model)) == first
    write(model / "1" / "weights.bin", "WEIGHTS")
    second = snapshots.digest(str(model))
    assert second.digest != first.digest
    assert changed_files(first, second) == ["~ 1/weights.bin"]
    os.rename(model / "config.pbtxt", model / "other.pbtxt")
    assert changed_files(second, snapshots.digest(str(model))) == ["- config.pbtxt", "+ other.pbtxt"]


def test_a_disk_without_space_for_the_cache_of_digests_refuses_nothing(snapshots: ModelSnapshots, model: Path) -> None:
    pin = snapshots.pin(str(model), snapshot=True)
    write(model / "config.pbtxt", "name: 'other'")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = sorted(snapshots._folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # every write to a file fails
    try:
        assert snapshots.digest(str(model)).digest != pin.digest
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(snapshots._folder.iterdir()) == folder


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("other", ["other", "elsewhere/model"])
def test_models_with_equal_content_do_not_disturb_each_other(
    snapshots: ModelSnapshots, model: Path, other: str, snapshot: bool
) -> None:
    copied = model.parent / other
    shutil.copytree(model, copied)
    pins = {str(path): snapshots.pin(str(path), snapshot=snapshot) for path in (model, copied)}
    for path, pin in pins.items():
        served = Path(snapshots.serving_path(pin, path))
        assert served.name == Path(path).name  # a server may call the model by it
        assert (served / "config.pbtxt").read_text() == "name: 'm'"


def test_unchanged_files_are_not_read_again(snapshots: ModelSnapshots, model: Path) -> None:
    first = snapshots.pin(str(model), snapshot=True)
    read: list[int] = []
    assert snapshots.pin(str(model), snapshot=True, progress=lambda done, total: read.append(done)) == first
    assert not read
    (model / "config.pbtxt").write_text("name: 'n'")  # just now: another write may follow within the same mtime
    snapshots.pin(str(model), snapshot=True)
    read.clear()
    snapshots.digest(str(model), lambda done, total: read.append(done))
    assert read


def test_a_snapshot_is_independent_of_its_original(snapshots: ModelSnapshots, model: Path) -> None:
    pin = snapshots.pin(str(model), snapshot=True)
    served = Path(snapshots.serving_path(pin, str(model)))
    assert served.name == "model"
    with (model / "1" / "weights.bin").open("r+") as file:  # in place: a hard link would change with it
        file.write("W")
    assert (served / "1" / "weights.bin").read_text() == "weights"
    assert snapshots.serving_path(pin, str(model)) == str(served)


def test_a_single_file_keeps_its_name(snapshots: ModelSnapshots, model: Path) -> None:
    pin = snapshots.pin(str(model / "1" / "weights.bin"), snapshot=True)
    served = Path(snapshots.serving_path(pin, str(model / "1" / "weights.bin")))
    assert (served.name, served.read_text()) == ("weights.bin", "weights")


def test_an_empty_folder_is_content(snapshots: ModelSnapshots, model: Path, tmp_path: Path) -> None:
    without = snapshots.digest(str(model))
    assert without.digest == PINNED  # of every release: pins of deployed revisions hold
    (model / "both" / "1").mkdir(parents=True)
    pin = snapshots.pin(str(model), snapshot=True)
    assert (pin.size, changed_files(without, pin)) == (without.size, ["+ both/1/"])
    assert snapshots.digest(str(model)) == pin
    served = Path(snapshots.serving_path(pin, str(model)))
    assert list((served / "both").iterdir()) == [served / "both" / "1"]
    os.rmdir(served / "both" / "1")
    (served / "both" / "1").touch()
    with pytest.raises(ModelChanged, match=r"its snapshot has changed .*: both/1/"):
        snapshots.serving_path(pin, str(model))
    assert snapshots.pin(str(model), snapshot=True) == pin
    assert (served / "both" / "1").is_dir()
    write(model / "both" / "1" / "weights.bin", "weights")
    assert changed_files(pin, snapshots.digest(str(model))) == ["- both/1/", "+ both/1/weights.bin"]
    (tmp_path / "empty" / "1").mkdir(parents=True)
    with pytest.raises(UsageError, match="does not exist or is empty"):
        snapshots.pin(str(tmp_path / "empty"), snapshot=True)


def test_an_empty_folder_beside_a_model_file_does_not_belong_to_it(snapshots: ModelSnapshots, tmp_path: Path) -> None:
    write(tmp_path / "iris.onnx", "x")
    (tmp_path / "iris_data").mkdir()
    assert set(snapshots.digest(str(tmp_path / "iris.onnx")).files) == {"iris.onnx"}


def test_links_are_followed_and_cycles_end(snapshots: ModelSnapshots, model: Path, tmp_path: Path) -> None:
    write(tmp_path / "blob", "linked")
    (model / "linked.bin").symlink_to(tmp_path / "blob")
    (model / "loop").symlink_to(model)
    pin = snapshots.pin(str(model), snapshot=True)
    served = Path(snapshots.serving_path(pin, str(model)))
    assert not (served / "linked.bin").is_symlink()
    assert (served / "linked.bin").read_text() == "linked"
    assert set(pin.files) == {"config.pbtxt", "1/weights.bin", "linked.bin"}


def test_damaged_and_lost_snapshots_are_refused_and_made_anew(snapshots: ModelSnapshots, model: Path) -> None:
    pin = snapshots.pin(str(model), snapshot=True)
    served = Path(snapshots.serving_path(pin, str(model)))
    write(served / "config.pbtxt", "damaged")
    with pytest.raises(ModelChanged, match=r"its snapshot has changed .*: config\.pbtxt"):
        snapshots.serving_path(pin, str(model))
    assert snapshots.pin(str(model), snapshot=True) == pin
    assert (Path(snapshots.serving_path(pin, str(model))) / "config.pbtxt").read_text() == "name: 'm'"
    snapshots.collect((), time.time() + 2 * GRACE_S)
    with pytest.raises(ModelChanged, match="no longer exists"):
        snapshots.serving_path(pin, str(model))


@pytest.mark.parametrize("change", ["rewrite", "replace", "add", "remove", "remove folder"])
def test_an_original_without_a_snapshot_must_stay_as_it_was(
    snapshots: ModelSnapshots, model: Path, change: str
) -> None:
    (model / "both" / "1").mkdir(parents=True)
    pin = snapshots.pin(str(model), snapshot=False)
    assert snapshots.serving_path(pin, str(model)) == str(model)
    weights = model / "1" / "weights.bin"
    if change == "rewrite":
        weights.write_text("WEIGHTS")
    elif change == "replace":  # same size and time, another inode
        write(model / "fresh", "WEIGHTS")
        os.replace(model / "fresh", weights)
    elif change == "add":
        write(model / "2.bin", "x")
    elif change == "remove folder":
        (model / "both" / "1").rmdir()
    else:
        weights.unlink()
    with pytest.raises(ModelChanged, match="has changed since this revision was deployed"):
        snapshots.serving_path(pin, str(model))


def test_what_no_release_needs_is_collected_after_a_while(snapshots: ModelSnapshots, model: Path) -> None:
    first = snapshots.pin(str(model), snapshot=True)
    write(model / "config.pbtxt", "other")
    second = snapshots.pin(str(model), snapshot=True)
    assert snapshots.usage().count == 2
    now = time.time()
    assert snapshots.collect((), now) == []  # the release may not be stored yet
    assert snapshots.collect({second.digest}, now + 2 * GRACE_S) == [first.digest.removeprefix("sha256:")]
    assert snapshots.usage() == model_snapshots.Usage(1, second.size)


def test_a_full_disk_is_said_before_anything_is_copied(
    snapshots: ModelSnapshots, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_snapshots, "SPARE_BYTES", 1 << 60)
    monkeypatch.setattr(model_snapshots, "SPARE_SHARE", 1)
    with pytest.raises(PlatformError, match="needs 16 bytes") as raised:
        snapshots.pin(str(model), snapshot=True)
    assert "--no-snapshot" in raised.value.hint
    assert snapshots.usage().count == 0


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("damage", ["record", "garbage", "content"])
def test_a_deploy_mends_whatever_is_damaged(
    snapshots: ModelSnapshots, model: Path, tmp_path: Path, damage: str, snapshot: bool
) -> None:
    pin = snapshots.pin(str(model), snapshot=True)
    home = tmp_path / "models" / pin.digest.removeprefix("sha256:")
    if damage == "content":
        (home / "content" / "model" / "config.pbtxt").unlink()
    else:
        (home / "files.json").write_text("" if damage == "record" else '{"files": [1]}')
    (tmp_path / "models" / "digests.json").write_text('{"x": 1}' if damage == "garbage" else "")
    assert snapshots.pin(str(model), snapshot=snapshot) == pin
    assert (Path(snapshots.serving_path(pin, str(model))) / "config.pbtxt").read_text() == "name: 'm'"


def test_equal_bytes_in_another_file_are_no_change(snapshots: ModelSnapshots, model: Path) -> None:
    pin = snapshots.pin(str(model), snapshot=False)
    (model / "fresh").write_text("weights")
    os.replace(model / "fresh", model / "1" / "weights.bin")
    assert snapshots.serving_path(pin, str(model)) == str(model)


@pytest.mark.parametrize("file", ["model.py", "model.pkl"])
def test_what_belongs_to_a_single_file_is_part_of_it(snapshots: ModelSnapshots, tmp_path: Path, file: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    for name in (file, "helper.py", "example.json", "model.weights", "notes.txt"):
        write(folder / name, name)
    for name in ("words/__init__.py", "words/stems/en.json", "words/__pycache__/words.pyc", "data/rows.py"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        write(folder / name, name)
    pin = snapshots.pin(str(folder / file), snapshot=True)
    package = {"words/__init__.py", "words/stems/en.json"}
    assert set(pin.files) == {file, "helper.py", "example.json", "model.weights", *package}
    served = Path(snapshots.serving_path(pin, str(folder / file)))
    assert (served.parent / "helper.py").read_text() == "helper.py"
    assert (served.parent / "words/stems/en.json").read_text() == "words/stems/en.json"
    assert set(snapshots.digest(str(folder / "notes.txt")).files) == {"notes.txt", "example.json"}
    write(folder / "helper.py", "HELPER.PY")
    assert snapshots.digest(str(folder / file)).digest != pin.digest


@pytest.mark.long
def test_links_that_make_too_many_paths_are_refused(snapshots: ModelSnapshots, model: Path) -> None:
    folders = [model / f"folder-{number}" for number in range(10)]
    for folder in folders:
        folder.mkdir()
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    with pytest.raises(UsageError, match="has more than 100,000 files and folders"):
        snapshots.digest(str(model))


def test_two_links_to_one_folder_are_both_there(snapshots: ModelSnapshots, model: Path) -> None:
    (model / "latest").symlink_to(model / "1")
    pin = snapshots.pin(str(model), snapshot=True)
    served = Path(snapshots.serving_path(pin, str(model)))
    assert (served / "latest" / "weights.bin").read_text() == (served / "1" / "weights.bin").read_text() == "weights"


def test_a_home_may_be_moved(snapshots: ModelSnapshots, model: Path, tmp_path: Path) -> None:
    pin = snapshots.pin(str(model), snapshot=True)
    shutil.copytree(tmp_path / "models", tmp_path / "moved", copy_function=shutil.copyfile)  # with other times
    assert Path(ModelSnapshots(tmp_path / "moved").serving_path(pin, str(model))).is_dir()


def test_a_name_that_no_document_can_carry_is_refused(snapshots: ModelSnapshots, model: Path) -> None:
    (Path(os.fsdecode(os.fsencode(model) + b"/\xff.bin"))).write_text("x")
    with pytest.raises(UsageError, match="is not UTF-8"):
        snapshots.pin(str(model), snapshot=True)
    assert snapshots.usage().count == 0


def test_a_time_that_was_set_back_does_not_hide_a_change_from_a_deploy(snapshots: ModelSnapshots, model: Path) -> None:
    pin = snapshots.pin(str(model), snapshot=True)
    write(model / "config.pbtxt", "name: 'n'")  # same size, same time
    assert snapshots.digest(str(model)).digest != pin.digest


def test_requirements_belong_to_a_python_model_and_to_no_other(snapshots: ModelSnapshots, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("churn.py", "iris.onnx", "requirements.txt", "uv.lock", "pyproject.toml"):
        write(folder / name, name)
    python = snapshots.digest(str(folder / "churn.py")).files
    assert set(python) == {"churn.py", "requirements.txt", "uv.lock", "pyproject.toml"}
    assert set(snapshots.digest(str(folder / "iris.onnx")).files) == {"iris.onnx"}


@pytest.mark.parametrize("name", ["weights.pt", "net.pth", "last.ckpt", "weights.safetensors"])
def test_a_snapshot_of_weights_has_the_modules_beside_them(
    name: str, snapshots: ModelSnapshots, tmp_path: Path
) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    for each in (name, "model.py", "layers.py", "train.csv"):
        write(folder / each, "x")
    served = Path(snapshots.serving_path(snapshots.pin(str(folder / name), snapshot=True), str(folder / name)))
    assert sorted(each.name for each in served.parent.iterdir()) == sorted([name, "model.py", "layers.py"])


def test_a_snapshot_of_code_has_the_files_that_it_names(snapshots: ModelSnapshots, tmp_path: Path) -> None:
    folder, code = tmp_path / "net", tmp_path / "net" / "scorer.py"
    (folder / "data").mkdir(parents=True)
    (folder / ".git").mkdir()
    names = ["weights.json", "data/words.txt", "linked.json"]
    for name in ("weights.json", "data/words.txt", "data/other.txt", "train.csv", ".git/HEAD", "../out.json"):
        write(folder / name, name)
    (folder / "linked.json").symlink_to(tmp_path / "out.json")
    write(code, f"import json\n{names!r}\n'../out.json', 'data', '.git/HEAD', 'missing.txt'")
    write(folder / "train.py", "open('train.csv')")
    pin = snapshots.pin(str(code), snapshot=True)
    assert set(pin.files) == {"scorer.py", "train.py", *names}
    write(folder / "weights.json", "new")
    write(folder / "train.csv", "new")
    assert changed_files(pin, snapshots.digest(str(code))) == ["~ weights.json"]
    served = Path(snapshots.serving_path(pin, str(code)))
    assert [(served.parent / name).read_text() for name in names] == ["weights.json", "data/words.txt", "../out.json"]
