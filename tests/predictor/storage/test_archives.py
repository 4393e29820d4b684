import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.archives import unpack
from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.store_interface import FetchOptions

FILES = {"config.pbtxt": b"name", "1/model.onnx": b"m" * 10_000}


def _tar(files: dict[str, bytes], mode: str, extra: list[tarfile.TarInfo] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        for member in extra or []:
            tar.addfile(member)
    return buffer.getvalue()


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, body in files.items():
            bundle.writestr(name, body)
    return buffer.getvalue()


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def _tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("iris.tar", _tar(FILES, "w")),
        ("iris.tar.gz", _tar(FILES, "w:gz")),
        ("iris.tgz", _tar({f"./{name}": body for name, body in FILES.items()}, "w:gz")),
        ("iris.zip", _zip(FILES)),
        ("IRIS.ZIP", _zip(FILES)),
    ],
)
def test_an_archive_becomes_a_directory(
    web: Any, tmp_path: Path, options: FetchOptions, name: str, body: bytes
) -> None:
    web.files[f"/{name}"] = body
    found = fetch(web.url(f"/{name}"), tmp_path, options=options)
    assert found.name.lower() == "iris"
    assert _tree(found) == FILES
    assert not list(tmp_path.rglob(name))  # the archive itself is not kept


def test_an_archive_is_left_alone_when_asked(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    packed = web.files["/iris.zip"] = _zip(FILES)
    found = fetch(web.url("/iris.zip"), tmp_path, options=replace(options, unpack=False))
    assert found.read_bytes() == packed


def test_links_inside_become_second_names(tmp_path: Path, options: FetchOptions) -> None:
    links = [_link("2/model.onnx", "../1/model.onnx"), _link("3/model.onnx", "1/model.onnx", tarfile.LNKTYPE)]
    (tmp_path / "a.tar").write_bytes(_tar(FILES, "w", links))
    unpack(tmp_path / "a.tar", tmp_path / "out", "a.tar", options)
    assert (tmp_path / "out/2/model.onnx").read_bytes() == (tmp_path / "out/3/model.onnx").read_bytes() == b"m" * 10_000
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]


def _device() -> tarfile.TarInfo:
    member = tarfile.TarInfo("null")
    member.type, member.devmajor, member.devminor = tarfile.CHRTYPE, 1, 3
    return member


def _zip_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        bundle.writestr(info, "/etc/passwd")
    return buffer.getvalue()


EVIL: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "parent in tar": ("a.tar", lambda: _tar({"../evil": b"x"}, "w"), "is outside of it"),
    "parent within": ("a.tar", lambda: _tar({"a/../../evil": b"x"}, "w"), "is outside of it"),
    "absolute in tar": ("a.tar", lambda: _tar({"/tmp/evil": b"x"}, "w"), "is outside of it"),
    "parent in zip": ("a.zip", lambda: _zip({"../evil": b"x"}), "is outside of it"),
    "absolute in zip": ("a.zip", lambda: _zip({"/tmp/evil": b"x"}), "is outside of it"),
    "backslashes in zip": ("a.zip", lambda: _zip({"..\\evil": b"x"}), "is outside of it"),
    "link out": ("a.tar", lambda: _tar({}, "w", [_link("evil", "../../etc/passwd")]), "is outside of it"),
    "absolute link": ("a.tar", lambda: _tar({}, "w", [_link("evil", "/etc/passwd")]), "is outside of it"),
    "hard link out": ("a.tar", lambda: _tar({}, "w", [_link("e", "../x", tarfile.LNKTYPE)]), "is outside of it"),
    "link to nothing": ("a.tar", lambda: _tar({}, "w", [_link("evil", "missing")]), "no file of the archive"),
    "link in zip": ("a.zip", _zip_link, "neither file nor directory"),
    "device": ("a.tar", lambda: _tar({}, "w", [_device()]), "neither file nor directory"),
    "not an archive": ("a.tar.gz", lambda: b"hello", "cannot be unpacked"),
    "cut off": ("a.tar.gz", lambda: _tar({"a": b"x" * 99_999}, "w:gz")[:50], "cannot be unpacked"),
}


@pytest.mark.parametrize("case", EVIL)
def test_an_archive_that_means_harm_is_refused_and_leaves_nothing(
    tmp_path: Path, options: FetchOptions, case: str
) -> None:
    name, make, reason = EVIL[case]
    home = tmp_path / "home"
    home.mkdir()
    (home / name).write_bytes(make())
    with pytest.raises(LoadFailed, match=reason):
        unpack(home / name, home / "out", "uri", options)
    assert [path.name for path in home.iterdir()] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_member_cannot_be_written_through_a_link_before_it(tmp_path: Path, options: FetchOptions) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(_link("dir", "."))
        member = tarfile.TarInfo("dir/../../evil")
        tar.addfile(member)
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    with pytest.raises(LoadFailed, match="is outside of it"):
        unpack(tmp_path / "a.tar", tmp_path / "out", "uri", options)


@pytest.mark.parametrize(("name", "make"), [("a.tar.gz", lambda files: _tar(files, "w:gz")), ("a.zip", _zip)])
def test_a_bomb_is_stopped_by_bytes_and_by_members(tmp_path: Path, options: FetchOptions, name: str, make: Any) -> None:
    (tmp_path / name).write_bytes(make({"zeros": bytes(1_000_000)}))
    with pytest.raises(LoadFailed, match="unpacks to more than 999999 bytes"):
        unpack(tmp_path / name, tmp_path / "out", "uri", replace(options, max_unpacked_bytes=999_999))
    (tmp_path / name).write_bytes(make({str(n): b"" for n in range(11)}))
    with pytest.raises(LoadFailed, match="more than 10 members"):
        unpack(tmp_path / name, tmp_path / "out", "uri", replace(options, max_members=10))


def test_modes_of_strangers_are_not_kept(tmp_path: Path, options: FetchOptions) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("tool")
        member.mode = 0o6777
        tar.addfile(member)
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    unpack(tmp_path / "a.tar", tmp_path / "out", "uri", options)
    assert stat.S_IMODE((tmp_path / "out/tool").stat().st_mode) & 0o7022 == 0
