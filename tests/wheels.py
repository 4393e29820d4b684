"""Tiny wheels and source distributions in a folder: an index that needs no network."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile


def write_wheel(
    folder: Path, name: str, version: str = "1.0", *, source: str = "", requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write a wheel with one module; `files` are others of its site-packages, by path."""
    folder.mkdir(parents=True, exist_ok=True)
    info, wheel = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    needed = "".join(f"Requires-Dist: {each}\n" for each in requires)
    content = {
        f"{name}.py": source,
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    with ZipFile(wheel, "w") as archive:
        for path, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def write_source(folder: Path, name: str, setup: str, version: str = "1.0") -> None:
    """Write a source distribution that runs `setup` when it is built."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path, text in {"setup.py": setup, "PKG-INFO": f"Name: {name}\nVersion: {version}\n"}.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def offline(folder: Path) -> dict[str, str]:
    """Return the variables that make uv use this folder alone."""
    return {"UV_FIND_LINKS": str(folder), "UV_OFFLINE": "1", "UV_CACHE_DIR": str(folder / "cache")}
