"""A Docker daemon for tests, of Debian's package, with files and a bridge of its own; and our image in it.

It runs in a view of the file system that is its alone: mounts of containers end with it, and it neither finds another
containerd of this machine nor leaves anything in /run. The image is the one that the test bed of clusters packs, with a
shell, as images made by Containerfile have one.
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
from tests.cluster.bed.predictor_image import framework_image, predictor_image
from tests.daemons.availability import Unavailable
from tests.daemons.bridge import bridge
from tests.daemons.daemons import DidNotStart, daemon
from tests.daemons.debian import environment, unpacked

PACKAGES = ("docker.io",)
CAP_SYS_RESOURCE = 24
VIEW = 'mount -t tmpfs tmpfs /run && exec "$@"'
IMAGE = "dev.local/pilotlight/predictor:0.1.0"
IRIS = "/models/iris/model.onnx"  # in the image


def options() -> dict[str, str]:
    """Of jobs on this daemon. Where even root may raise no limit, containers cannot have theirs raised."""
    capabilities = re.search(r"^CapEff:\s+(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    may_raise = capabilities is None or bool(int(capabilities[1], 16) & 1 << CAP_SYS_RESOURCE)
    return {} if may_raise else {"ulimits": "stack=67108864"}


@contextmanager
def docker(base: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of who calls docker, once the image is there. Raises Unavailable with the reason."""
    if os.getuid() != 0:
        raise Unavailable("needs root: a Docker daemon of one's own does")
    root = unpacked(*PACKAGES)
    with bridge() as network, _folder() as folder:
        socket = f"unix://{folder}/docker.sock"
        environ = {**environment(root, base), "DOCKER_HOST": socket, "DOCKER_CONFIG": str(folder / "config")}
        try:
            words = _words(folder, socket, network, environ)
            with daemon(words, folder / "dockerd.log", environ, lambda: _answers(environ)):
                _load(environ, replace(predictor_image(_places()), name=IMAGE, aliases=()))
                try:
                    yield environ
                finally:
                    _remove_containers(environ)
        except DidNotStart as reason:
            raise Unavailable(f"the Docker daemon cannot run here: {reason}") from None


def bridge_address(environ: Mapping[str, str]) -> str:
    """Where containers of the bridge reach servers of this machine, which must listen there."""
    return _docker(environ, "network", "inspect", "bridge", "--format={{(index .IPAM.Config 0).Gateway}}").strip()


def _words(folder: Path, socket: str, network: str, environ: Mapping[str, str]) -> list[str]:
    program = shutil.which("dockerd", path=environ["PATH"])
    if program is None:
        raise Unavailable("dockerd is not in docker.io")
    return [
        "unshare", "--mount", "sh", "-c", VIEW, "sh",
        program, f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--host={socket}",
        f"--pidfile={folder}/docker.pid", f"--bridge={network}", "--iptables=false",
        "--ip6tables=false", "--ip-forward=false",
    ]  # fmt: skip


@contextmanager
def _folder() -> Iterator[Path]:
    """Not one of pytest's, which keeps those of three runs: an image has hundreds of megabytes."""
    folder = Path(tempfile.mkdtemp(prefix="pilotlight-docker-"))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def _answers(environ: Mapping[str, str]) -> bool:
    done = subprocess.run(["docker", "version"], env=dict(environ), capture_output=True, timeout=60)
    return done.returncode == 0


def load_variant(environ: Mapping[str, str], variant: str) -> str:
    """Load a variant of our image with libraries of a framework, and return its name; it has hundreds of megabytes."""
    name = f"{IMAGE}-{variant}"
    _load(environ, replace(framework_image(_places(), variant), name=name, aliases=()))
    return name


def _load(environ: Mapping[str, str], image: Image) -> None:
    with _folder() as folder:
        archive = folder / "image.tar"
        pack(image, archive)
        _docker(environ, "load", f"--input={archive}")


def _remove_containers(environ: Mapping[str, str]) -> None:
    """Else the daemon waits ten seconds for each, and those of one that must be killed live on."""
    if containers := _docker(environ, "ps", "--all", "--quiet").split():
        _docker(environ, "rm", "--force", "--volumes", *containers)


def _docker(environ: Mapping[str, str], *words: str) -> str:
    return subprocess.run(
        ["docker", *words], env=dict(environ), check=True, capture_output=True, text=True, timeout=300
    ).stdout


def _places() -> Places:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilotlight" / "platforms"
    return Places(cache, cache)
