"""Models that our predictor would refuse, checked before a release is applied.

These are pickles, which it loads only by their SHA-256, weights of torch without the class of their module, and code
that cannot be served.
"""

import ast
import hashlib
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from pilotlight.catalogue.adapter_files import ADAPTER_CONFIG
from pilotlight.contract import ENV_MODEL_PARAMETER, ENV_SETTINGS_PREFIX, ENV_TRUST_PICKLE, trust_pickle_setting
from pilotlight.errors import UsageError
from pilotlight.wire.messages import suggestion
from pilotlight.wire.model_formats import (
    PICKLE_SUFFIXES,
    SAVE_TOKENIZER,
    SKOPS_TYPES,
    WHOLE_MODULE,
    Detected,
    detect,
    detect_file,
    foreign_types,
    has_tokenizer,
    holds_only_weights,
    huggingface_config,
    missing_module,
    model_name,
    pickled_weights,
)
from pilotlight.wire.model_formats.python_code import (
    METHODS,
    bound_names,
    definitions,
    has_method,
    may_serve,
    module_classes,
    modules_with,
    read_source,
)

if TYPE_CHECKING:
    from pilotlight.plan.types import Workload
    from pilotlight.spec.service import Service

_PICKLE: Final = "is a pickle, which runs code of its author when it is loaded"
_FLAGS: Final = ("--trust-pickle", "--config")  # by which a container may pin pickles itself


def pins_of(files: Iterable[Path]) -> str:
    """Return the pins of files: FILE=SHA256, with commas between them."""
    pins = []
    for each in files:
        with each.open("rb") as file:
            pins.append(f"{each.name}={hashlib.file_digest(file, 'sha256').hexdigest()}")
    return ",".join(pins)


def untrusted_files(path: Path) -> list[Path]:
    """Return the files of a model that our predictor loads only by their SHA-256, since reading them may run code."""
    model = detect(path)
    if model is None or model.format.name not in ("sklearn", "mlflow", "pytorch"):
        return []
    files = [model.file] if model.file.is_file() else sorted(filter(Path.is_file, path.rglob("*")))
    if model.format.name == "pytorch":
        files = [each for each in files if (known := detect_file(each)) and known.format == model.format]
    return [each for each in files if why_untrusted(each)]


def why_untrusted(file: Path) -> str:
    """Return why a file is loaded only by its SHA-256, as the predicate of its name; empty for one that is not.

    That is a pickle, or one of skops or torch.save with types that may be unsafe; damaged ones are left to the
    predictor, and those of skops where it is not installed.
    """
    known, types = detect_file(file), list[str]()
    if known and (known.phrase == WHOLE_MODULE or (known.format.name == "sklearn" and file.suffix in PICKLE_SUFFIXES)):
        return _PICKLE
    if known and known.format.name == "pytorch":
        types = foreign_types(file)
    elif file.suffix == ".skops":
        with suppress(Exception):  # of many types
            from skops import io

            types = sorted(set(io.get_untrusted_types(file=file)) - SKOPS_TYPES)
    unsafe = f"holds types that are not known to be safe ({', '.join(types)}): loading them may run any code"
    return unsafe if types else ""


def safe_formats(phrase: str, file: str) -> str:
    """Return how else to save a pickle, so that it needs no trust; `phrase` is that of its format."""
    if phrase == WHOLE_MODULE or file.endswith((".pt", ".pth", ".ckpt")):
        return "as a state dict, TorchScript or .pt2"
    return f"in another format, such as {'' if file.endswith('.skops') else 'skops or '}ONNX"


def check_module(subject: str, model: Detected) -> None:
    """Raise UsageError for weights without what reads them: the class of their module, or a tokenizer."""
    classes = _architectures(model)
    if any(name.endswith("ForCausalLM") for name in classes) and not has_tokenizer(model.file):
        raise UsageError(f"{subject} has no tokenizer.json", SAVE_TOKENIZER)
    whole = model.file.is_dir()
    folder = model.file if whole else model.file.parent
    if any(next(folder.glob(sign), None) for sign in ("model.py", "aot", *(["*/model.py"] if whole else ()))):
        return  # the last one lies in the folder of a version
    pickled = model.format.name == "pytorch" and not whole and holds_only_weights(model.file)
    if pickled or model.format.name == "safetensors":
        raise UsageError(f"{subject} holds only weights, without the class of their module", missing_module(folder))


def _architectures(model: Detected) -> list[str]:
    """Return the classes of a model in Hugging Face's layout; none of others."""
    config = huggingface_config(model.file) if model.format.name == "huggingface" else {}
    return list(map(str, config.get("architectures") or ()))


def code_file(path: str, served: str = "") -> Path:
    """Return the file of a Python model: itself, or the module of a folder that has the served class or function.

    Raise UsageError if several modules of a folder define it, or none does.
    """
    if not Path(path).is_dir():
        return Path(path)
    modules = modules_with(Path(path), served) if served else [Path(path, "model.py")]
    if len(modules) > 1:
        message = f"{path}: {served} is defined in {' and '.join(module.name for module in modules)}"
        word = shlex.quote(f"{path.rstrip('/')}/{modules[0].name}:{served}")
        raise UsageError(message, f"name the file: platformctl deploy {word}")
    if modules:
        return modules[0]
    names = [name for file in sorted(Path(path).glob("*.py")) for name in definitions(read_source(file))]
    hint = suggestion(served, names) or (f"; they define {', '.join(names)}" if names else "")
    raise UsageError(f"{path} has no module that defines {served}{hint}")


def check_code(path: str, served: str | None = "") -> None:
    """Raise UsageError for a file, or that of a folder, that is not valid or cannot have what is served.

    `served` names a class or function; empty: one that the predictor finds by itself; None: anything.
    """
    if not path.endswith(".py") and (any(Path(path).glob("[0-9]*/*.py")) or not any(Path(path).glob("*.py"))):
        return  # in the folder of a version, if at all
    file = code_file(path, served or "")
    if not file.is_file() or file.suffix != ".py":
        return
    shown = path if file == Path(path) else f"{path.rstrip('/')}/{file.name}"
    try:
        tree = ast.parse(file.read_bytes(), shown)
    except (SyntaxError, ValueError) as error:
        place, reason = f"{shown}:{getattr(error, 'lineno', 1)}", getattr(error, "msg", error)
        raise UsageError(f"{place} is not valid Python: {reason}") from None
    names = definitions(file.read_bytes())
    if served and bound_names(tree).isdisjoint((served, "*")):
        hint = suggestion(served, names) or (f"; it has {', '.join(names)}" if names else "")
        raise UsageError(f"{shown} has no {'class' if served[0].isupper() else 'function'} {served}{hint}")
    if served in {each.name for each in module_classes(tree) if not has_method(each, (*METHODS, "initialize"))}:
        fix = "put its weights beside it as model.pt, name this file model.py, and deploy the folder"
        raise UsageError(f"{served} is a torch.nn.Module, not a model in Python", fix)
    if served == "" and names and not may_serve(file.read_bytes()):
        message = f"{shown} defines neither a function predict nor a class with a method predict"
        word = shlex.quote(f"{path.rstrip('/')}:{names[0]}")
        raise UsageError(message, f"name what to serve: platformctl deploy {word} --name {model_name(path)}")


def check_model(path: str, workload: "Workload", service: "Service") -> None:
    """Raise UsageError for a model of this machine that the predictor of a workload would refuse."""
    model, subject = detect(Path(path)), _subject(service)
    if not workload.is_pilotlight or model is None or Path(path, ADAPTER_CONFIG).exists():
        return
    check_module(f"{subject}{Path(path).name}", model)
    if (classes := _architectures(model)) and (reason := pickled_weights(model.file, classes[0])):
        raise UsageError(f"{subject}{reason}")
    container = workload.template["spec"]["containers"][0]
    parameters = (each.get("value") for each in container.get("env", ()) if each["name"] == ENV_MODEL_PARAMETER)
    words = (*container.get("command", ()), *container.get("args", ()), *parameters)
    named = re.search(r"\bclass=([^,\s]+)", " ".join(map(str, words)))
    found = model.format.name == "python" and not Path(path, "config.pbtxt").exists()
    check_code(path, named[1] if named else "" if found else None)
    if named or not (pickles := untrusted_files(Path(path))):
        return
    trusted, pins, name = _trusted(workload), pins_of(pickles), pickles[0].name
    if trusted is None or not {pin.lower() for pin in pins.split(",")}.isdisjoint(trusted.lower().split(",")):
        return
    what, new, other = why_untrusted(pickles[0]), "it", f"save it {safe_formats(model.phrase, name)}"
    if old := {file: digest for file, _, digest in (pin.rpartition("=") for pin in trusted.split(","))}.get(name):
        now = pins.partition(",")[0].rpartition("=")[2]
        what = f"has changed since it was pinned: its SHA-256 was {old} and is {now}"
        new, other = "the new file", "deploy the file that was pinned"
    fix = f"if you trust {new}: the same command with {_setting(service, pins)}; else {other}"
    raise UsageError(f"{subject}{name} {what}", fix)


def check_stored_pickle(uri: str, workload: "Workload", service: "Service") -> None:
    """Raise UsageError for a file of a store that is a pickle by its name and has no pin."""
    name, trusted = PurePosixPath(uri.partition("?")[0]).name, _trusted(workload)
    pinned = trusted is None or any(pin.startswith(f"{name}=") for pin in trusted.split(","))
    if workload.is_pilotlight and name.endswith(PICKLE_SUFFIXES) and not pinned:
        fix = f"if you trust it: the same command with {_setting(service, f'{name}=SHA256')}"
        raise UsageError(f"{_subject(service)}{name} {_PICKLE}", f"{fix}; else save it {safe_formats('', name)}")


def _subject(service: "Service") -> str:
    where = str(service.location("spec.predictor.model.storageUri"))
    return f"{where}: " if where else ""


def _trusted(workload: "Workload") -> str | None:
    """Return the pins of a container's pickles; None: they are, or may be, in a place that only a replica reads."""
    container = workload.template["spec"]["containers"][0]
    words = [str(word).replace("_", "-") for word in (*container.get("command", ()), *container.get("args", ()))]
    env = {each["name"]: each.get("value") for each in container.get("env", ())}
    elsewhere = f"{ENV_SETTINGS_PREFIX}CONFIG" in env or any(word.startswith(_FLAGS) for word in words)
    return None if elsewhere else env.get(ENV_TRUST_PICKLE, "")


def _setting(service: "Service", pins: str) -> str:
    """Return what pins the pickles in the manifest of a service, beside the variables that it has."""
    model = (service.document["spec"].get("predictor") or {}).get("model")
    if not isinstance(model, dict):
        return f"{ENV_TRUST_PICKLE}={pins} in the env of its container"
    names = [variable.get("name") for variable in model.get("env") or ()]
    index = names.index(ENV_TRUST_PICKLE) if ENV_TRUST_PICKLE in names else len(names)
    return trust_pickle_setting(pins, index if names else None)
