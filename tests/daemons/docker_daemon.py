"""A Docker daemon for tests, of Debian's package, with files of its own and no network; and our image in it.

The image is the one that the test bed of clusters packs, with a shell, as images made by Containerfile have one.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cluster.bed.archive import Image, pack
from tests.cluster.bed.places import Places
from tests.cluster.bed.predictor_image import predictor_image
from tests.daemons.availability import Unavailable
from tests.daemons.daemons import DidNotStart, daemon
from tests.daemons.debian import environment, unpacked

PACKAGES = ("docker.io",)
CAP_SYS_RESOURCE = 24
PLUGINS = Path("/run/docker/plugins")  # where every daemon looks, and which it makes
IMAGE = "dev.local/pilotlight/predictor:0.1.0"
IRIS = "/models/iris/model.onnx"  # in the image


def options() -> dict[str, str]:
    """Of jobs on this daemon. Where even root may raise no limit, containers cannot have theirs raised."""
    capabilities = re.search(r"^CapEff:\s+(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    may_raise = capabilities is None or bool(int(capabilities[1], 16) & 1 << CAP_SYS_RESOURCE)
    return {"network": "host", **({} if may_raise else {"ulimits": "stack=67108864"})}


@contextmanager
def docker(base: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of who calls docker, once the image is there. Raises Unavailable with the reason."""
    if os.getuid() != 0:
        raise Unavailable("needs root: a Docker daemon of one's own does")
    root = unpacked(*PACKAGES)
    with _folder() as folder:
        socket = f"unix://{folder}/docker.sock"
        environ = {**environment(root, base), "DOCKER_HOST": socket, "DOCKER_CONFIG": str(folder / "config")}
        try:
            with daemon(_words(folder, socket, environ), folder / "dockerd.log", environ, lambda: _answers(environ)):
                _load(folder, environ)
                yield environ
        except DidNotStart as reason:
            raise Unavailable(f"the Docker daemon cannot run here: {reason}") from None


def _words(folder: Path, socket: str, environ: Mapping[str, str]) -> list[str]:
    program = shutil.which("dockerd", path=environ["PATH"])
    if program is None:
        raise Unavailable("dockerd is not in docker.io")
    return [
        program, f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--host={socket}",
        f"--pidfile={folder}/docker.pid", "--iptables=false", "--ip6tables=false", "--bridge=none",
    ]  # fmt: skip


@contextmanager
def _folder() -> Iterator[Path]:
    """Not one of pytest's, which it would try to remove with whatever is still mounted there."""
    folder = Path(tempfile.mkdtemp(prefix="pilotlight-docker-"))
    were_there = PLUGINS.exists()
    try:
        yield folder
    finally:
        if not were_there and PLUGINS.exists():
            os.removedirs(PLUGINS)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if Path(each).is_relative_to(folder)), reverse=True):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def _answers(environ: Mapping[str, str]) -> bool:
    done = subprocess.run(["docker", "version"], env=dict(environ), capture_output=True, timeout=60)
    return done.returncode == 0


def _load(folder: Path, environ: Mapping[str, str]) -> None:
    archive = folder / "image.tar"
    pack(_image(), archive)
    subprocess.run(["docker", "load", f"--input={archive}"], env=dict(environ), check=True, capture_output=True)
    archive.unlink()


def _image() -> Image:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilotlight" / "platforms"
    places = Places(cache, cache)
    return replace(predictor_image(places), name=IMAGE, aliases=())
