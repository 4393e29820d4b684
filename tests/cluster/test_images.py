"""How images reach containerd: a containerd of the test's own, whose collector is kept busy."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.bed.archive import Image, Layer, pack
from tests.cluster.bed.images import containerd_answers, ctr, import_images, try_ctr
from tests.cluster.bed.places import Places
from tests.cluster.bed.processes import start, stop, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("containerd") is None, reason="needs root and containerd"),
]
CONFIGURATION = """version = 2
root = "{state}/root"
state = "{state}/running"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
"""


@pytest.fixture
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    where = Places(tmp_path_factory.mktemp("c"), tmp_path_factory.mktemp("cache"))
    for folder in (where.run, where.log, where.etc):
        folder.mkdir()
    settings = where.etc / "containerd.toml"
    settings.write_text(CONFIGURATION.format(state=where.state, socket=where.socket))
    start(where, "containerd", ["containerd", "--config", settings])
    until("containerd answers", 120, lambda: containerd_answers(where), where.log / "containerd.log")
    yield where
    stop(where, "containerd")


def test_an_image_is_replaced_while_layers_are_collected(containerd: Places, tmp_path: Path) -> None:
    """One import in six failed: its shared layers belonged to no image for a moment."""
    shared = tuple(Layer(_folder(tmp_path / f"shared-{number}", "the same"), f"/{number}") for number in range(6))
    with _collecting(containerd, tmp_path):
        for number in range(20):
            layers = (*shared, Layer(_folder(tmp_path / "own", str(number)), "/own"))
            assert import_images(containerd, [Image("dev.local/it:1", str(number), layers, ("/own/file",))])
    left = [line.split()[0] for line in ctr(containerd, "snapshots", "ls").splitlines()[1:]]
    held = [layer for layer in left if "gc.root" in ctr(containerd, "snapshots", "info", layer)]
    assert left
    assert not held, "what was held for an import is let go after it"


@contextmanager
def _collecting(where: Places, scratch: Path) -> Iterator[None]:
    """Removes another image again and again: each time containerd looks for what nobody holds."""
    archive = scratch / "other.tar"
    pack(Image("dev.local/other:1", "k", (Layer(_folder(scratch / "other", "x"), "/x"),), ("/x/file",)), archive)
    enough = threading.Event()

    def collect() -> None:
        while not enough.is_set():
            try_ctr(where, "images", "import", "--no-unpack", str(archive))
            try_ctr(where, "images", "rm", "--sync", "dev.local/other:1")

    threads = [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _folder(path: Path, text: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "file").write_text(text)
    return path
