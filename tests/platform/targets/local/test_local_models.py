"""Pins of the models of documents: what is read, copied and warned of, as `platformctl` and the console show it."""

import io
import sys
from pathlib import Path

import pytest
from tests.embedded import IRIS

from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import decode
from pilotlight.k8s.names import ANNOTATION_PINS
from pilotlight.plan.types import Capabilities
from pilotlight.release.model_pins import PinMode, resolve_pins
from pilotlight.release.plan_and_render import Documents, Sources, read
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.local_models import LocalModels
from pilotlight.wire.environments.install_command import install_command

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}}}
spec: {{predictor: {{model: {{modelFormat: {{name: onnx}}, runtime: pilotlight, storageUri: "{uri}"}}}}}}
"""
VOLUME = "pvc://models/iris"


def documents(*uris: str) -> Documents:
    text = "---".join(SERVICE.format(name=f"iris-{number}", uri=uri) for number, uri in enumerate(uris))
    return read(Sources(["-"], stdin=io.StringIO(text)))


class Steps:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, step: str, text: str, done: int = 0, total: int = 0, /) -> None:
        assert 0 <= done <= total
        self.lines += [(step, text)] if (step, text) not in self.lines else []


@pytest.mark.parametrize(("mode", "copies"), [("snapshot", 1), ("record", 0), ("compare", 0)])
def test_a_path_is_pinned_and_what_cannot_be_is_a_warning(mode: PinMode, copies: int, tmp_path: Path) -> None:
    home, steps = Home(tmp_path), Steps()
    pinned = resolve_pins(documents(str(IRIS), VOLUME), Capabilities(), LocalModels(home), mode, steps)
    assert list(decode(pinned.services[0].annotations[ANNOTATION_PINS])) == [str(IRIS)]
    assert len(list(home.models.glob("*/content/*"))) == copies
    warning = f"{VOLUME} is not pinned, a replica serves what is there at its start: pvc:// cannot be pinned"
    assert steps.lines == [("Reading", str(IRIS)), ("Warning", warning)]


def test_a_snapshot_that_is_served_instead_of_the_original_is_a_warning(tmp_path: Path) -> None:
    home, steps = Home(tmp_path), Steps()
    modes: tuple[PinMode, ...] = ("snapshot", "compare", "record")
    for mode in modes:
        assert steps.lines in ([], [("Reading", str(IRIS))])
        resolve_pins(documents(str(IRIS)), Capabilities(), LocalModels(home), mode, steps)
    warning = f"{IRIS} is served from an existing snapshot of the same content, not in place"
    assert steps.lines[-1] == ("Warning", warning)


@pytest.mark.parametrize(("uri", "library"), [("s3://models/iris", "obstore"), ("hf://org/iris", "huggingface_hub")])
def test_a_store_without_its_library_is_refused_on_this_machine(
    uri: str, library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    here = Capabilities(target="local")
    with pytest.raises(PlatformError, match=f"{uri} needs {library}, which is not installed") as raised:
        resolve_pins(documents(uri), here, LocalModels(Home(tmp_path)), "snapshot", Steps())
    assert raised.value.hint == install_command("cloud")


def test_without_a_home_a_path_is_one_of_the_image(tmp_path: Path) -> None:
    steps = Steps()
    assert resolve_pins(given := documents("/mnt/models/iris"), Capabilities(), None, "snapshot", steps) == given
    assert steps.lines == []


def test_a_warning_has_no_credentials_of_the_uri() -> None:
    steps = Steps()
    resolve_pins(documents("https://me:hunter2@127.0.0.1:9/m.onnx?sig=hunter3"), Capabilities(), None, "compare", steps)
    ((step, text),) = steps.lines
    assert (step, text.startswith("https://***@127.0.0.1:9/m.onnx?*** is not pinned")) == ("Warning", True)
    assert "hunter" not in text


def test_a_model_that_cannot_be_copied_is_an_error_with_both_paths(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.models.write_text("a file, where the folder of snapshots would be")
    with pytest.raises(PlatformError, match=f"{IRIS} cannot be read or copied: {home.models}") as raised:
        resolve_pins(documents(str(IRIS)), Capabilities(), LocalModels(home), "snapshot", Steps())
    assert "platformctl deploy --no-snapshot" in raised.value.hint
