"""The images of the bed's own programs, and how any image reaches its containerd."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.cluster.bed.archive import Image, Layer, pack
from tests.cluster.bed.envoy import ENVOY_KEY, envoy_folder
from tests.cluster.bed.places import BedError, Places
from tests.cluster.bed.programs import KNATIVE, program

PAUSE: Final = "dev.local/pause:1"
ROOT_LABEL: Final = "containerd.io/gc.root"  # what has it is never collected


def name_of(program_name: str) -> str:
    """The tag is the key, so that a changed program rolls out by itself."""
    return f"dev.local/{program_name}:{program(program_name).key}"


def own_images(places: Places) -> list[Image]:
    base = [_single(places, "pause", PAUSE), _single(places, "coredns"), _single(places, "hello", "dev.local/hello:1")]
    knative = [_single(places, f"knative-{name}", dest=f"/ko-app/{name}") for name in (*KNATIVE, "kourier")]
    gateway = _single(places, "envoy-gateway", dest="/usr/local/bin/envoy-gateway")
    return [*base, *knative, _envoy(places), gateway, _keda(places), _single(places, "lws", dest="/manager")]


def _single(places: Places, name: str, image: str = "", dest: str = "") -> Image:
    path = dest or f"/{name}"
    each = program(name)
    return Image(image or name_of(name), each.key, (Layer(each.product(places), path),), (path,))


def _envoy(places: Places) -> Image:
    return Image(f"dev.local/envoy:{ENVOY_KEY}", ENVOY_KEY, (Layer(envoy_folder(places)),), ("/usr/local/bin/envoy",))


def _keda(places: Places) -> Image:
    """One binary, three programs: the image has it under its three names."""
    each = program("keda")
    links = (("/keda-adapter", "keda"), ("/keda-admission-webhooks", "keda"))
    return Image(name_of("keda"), each.key, (Layer(each.product(places), "/keda", links),), ("/keda",))


def import_images(places: Places, images: list[Image]) -> list[str]:
    """Imports those whose content containerd does not have; their names."""
    known = set(ctr(places, "images", "ls", "-q").split())
    wanted = [image for image in images if image.name not in known or _mark(places, image) != image.key]
    for image in wanted:
        with tempfile.TemporaryDirectory(dir=places.state) as scratch:
            archive = Path(scratch) / "image.tar"
            pack(image, archive)
            with _kept_layers(places):
                ctr(places, "images", "import", str(archive))
        _mark_file(places, image).write_text(image.key)
    return [image.name for image in wanted]


@contextmanager
def _kept_layers(places: Places) -> Iterator[None]:
    """An import gives the image's name away before it takes hold of the layers that it shares with the old one:
    containerd's collector, if it looks in between, would remove them under it."""
    rows = [line.split() for line in ctr(places, "snapshots", "ls").splitlines()]
    layers = [row[0] for row in rows if row[-1] == "Committed"]
    for layer in layers:
        try_ctr(places, "snapshots", "label", layer, f"{ROOT_LABEL}=import")
    try:
        yield
    finally:
        for layer in layers:
            try_ctr(places, "snapshots", "label", layer, f"{ROOT_LABEL}=")


def ctr(places: Places, *words: str) -> str:
    command = ["ctr", "-a", str(places.socket), "-n", "k8s.io", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def containerd_answers(places: Places) -> bool:
    try:
        return bool(ctr(places, "version"))
    except BedError:
        return False


def try_ctr(places: Places, *words: str) -> None:
    """For what may have ended by itself in between."""
    with suppress(BedError):
        ctr(places, *words)


def _mark(places: Places, image: Image) -> str:
    path = _mark_file(places, image)
    return path.read_text() if path.exists() else ""


def _mark_file(places: Places, image: Image) -> Path:
    places.images.mkdir(parents=True, exist_ok=True)
    return places.images / image.name.replace("/", "_").replace(":", "_")
