"""Pickles of local models, which our predictor loads only by their SHA-256: refused before a release is applied."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pilotlight.contract import ENV_SETTINGS_PREFIX, ENV_TRUST_PICKLE, trust_pickle_setting
from pilotlight.errors import UsageError
from pilotlight.wire.model_formats import WHOLE_MODULE, detect, pickle_files

if TYPE_CHECKING:
    from pilotlight.plan.types import Workload
    from pilotlight.spec.service import Service

RUNS_CODE: Final = "is a pickle, which runs code of its author when it is loaded"
_FLAGS: Final = ("--trust-pickle", "--config")  # by which a container may pin pickles itself


def pins_of(files: Iterable[Path]) -> str:
    """Return the pins of files: FILE=SHA256, with commas between them."""
    pins = []
    for each in files:
        with each.open("rb") as file:
            pins.append(f"{each.name}={hashlib.file_digest(file, 'sha256').hexdigest()}")
    return ",".join(pins)


def safe_formats(phrase: str) -> str:
    """Return how else to save a pickle, so that it needs no trust; `phrase` is that of its format."""
    return (
        "as a state dict, TorchScript or .pt2" if phrase == WHOLE_MODULE else "in another format, such as skops or ONNX"
    )


def check_pickles(path: str, workload: "Workload", service: "Service") -> None:
    """Raise UsageError for a model of this machine that the predictor of a workload would refuse as a pickle."""
    if not workload.is_pilotlight or not (pickles := pickle_files(Path(path))):
        return
    container = workload.template["spec"]["containers"][0]
    words = [str(word).replace("_", "-") for word in (*container.get("command", ()), *container.get("args", ()))]
    env = {each["name"]: each.get("value") for each in container.get("env", ())}
    trusted = env.get(ENV_TRUST_PICKLE, "")
    if trusted is None or f"{ENV_SETTINGS_PREFIX}CONFIG" in env or any(word.startswith(_FLAGS) for word in words):
        return  # pinned in a place that only a replica reads
    pins, name = pins_of(pickles), pickles[0].name
    if not {pin.lower() for pin in pins.split(",")}.isdisjoint(trusted.lower().split(",")):
        return
    changed = f"{name}=" in trusted
    what = f"has changed: {ENV_TRUST_PICKLE} pins another SHA-256" if changed else RUNS_CODE
    model, where = detect(Path(path)), service.location("spec.predictor.model.storageUri")
    other = safe_formats(model.phrase if model else "")
    fix = f"if you trust it: the same command with {_setting(service, pins)}; else save it {other}"
    raise UsageError(f"{where}: {name} {what}" if str(where) else f"{name} {what}", fix)


def _setting(service: "Service", pins: str) -> str:
    """Return what pins the pickles in the manifest of a service, beside the variables that it has."""
    model = (service.document["spec"].get("predictor") or {}).get("model")
    if not isinstance(model, dict):
        return f"{ENV_TRUST_PICKLE}={pins} in the env of its container"
    names = [variable.get("name") for variable in model.get("env") or ()]
    index = names.index(ENV_TRUST_PICKLE) if ENV_TRUST_PICKLE in names else len(names)
    return trust_pickle_setting(pins, index if names else None)
