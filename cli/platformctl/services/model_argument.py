"""Arguments of `deploy`: documents, services by name, or a model (path, URI, `model.py:Class`), inspected.

`deploy` and `init` share the description of a model; scaffold.py makes a document of it.
"""

import io
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from pilotlight.contract import ENV_MODEL_PARAMETER, ENV_TRUST_PICKLE, trust_pickle_setting
from pilotlight.errors import PlatformError, UsageError
from pilotlight.release.model_check import check_code, check_module, code_file, pins_of, untrusted_files, why_untrusted
from pilotlight.targets.table import EMBEDDED
from pilotlight.wire.model_formats import (
    FORMATS,
    PICKLE_SUFFIXES,
    Detected,
    ModelFormat,
    by_name,
    detect,
    detect_file,
    find_format,
    is_in_repository,
    is_repository,
    is_script,
    model_name,
    split_object,
)
from pilotlight.wire.model_formats.python_code import imported_packages, served_modules
from platformctl.manifest_files import SUFFIXES, no_such_file
from platformctl.services import scaffold

Kind = Literal["name", "documents", "model"]
_OBJECT: Final = re.compile(r"^[ \t]*\"?kind\"?[ \t]*:[ \t]*\"?[A-Z]", re.MULTILINE)
_HEAD: Final = 1 << 16  # of a file that may be a model in JSON


def kind_of(word: str) -> Kind:
    """Return what an argument of `deploy` names. Raise UsageError for a missing file, or if it is ambiguous."""
    path = Path(word)
    if "://" in word or split_object(word)[1]:
        return "model"
    is_path = word.startswith((".", "/")) or by_name(word) is not None or path.suffix in SUFFIXES
    if not path.exists():
        if is_path or "." in word:  # which the name of a service cannot have
            raise no_such_file(word)
        return "name"
    if not is_path and os.sep not in word and "." not in word:
        what = "a folder" if path.is_dir() else "a file"
        raise UsageError(f"{word} is {what} here: write ./{word} for it, or NAMESPACE/{word} for the service")
    model, documents = detect(path), list(_documents(path))
    if model is not None and documents and path.is_dir():
        message = f"{word} has a model ({model.phrase}) and a document ({documents[0].name})"
        raise UsageError(message, f"platformctl deploy {shlex.quote(str(documents[0]))}, or name the model's own file")
    return "documents" if documents and model is None else "model"


def _documents(path: Path) -> Iterator[Path]:
    """Yield the files that hold objects of Kubernetes; of a single YAML file it is assumed, to show what is wrong."""
    if path.suffix in (".yaml", ".yml") and path.is_file():
        yield path
        return
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.suffix in SUFFIXES and file.is_file():
            with file.open(errors="replace") as text:
                if _OBJECT.search(text.read(_HEAD)):
                    yield file


def describe(word: str, *, model_format: str = "", trust_pickle: bool = False) -> scaffold.Model:
    """Inspect a path or URI. Raise UsageError if it does not exist or its format is unknown."""
    path, name_of_class = split_object(word)
    if (local := "://" not in path) and not Path(path).exists():
        raise no_such_file(path)
    detected = detect(code_file(path, name_of_class) if name_of_class else Path(path)) if local else None
    if os.path.isdir(path) and model_format == "python" and (detected is None or detected.format.name != "python"):
        name_of_class = _only_served(path)
        detected = detect(code_file(path, name_of_class))
    known = find_format(model_format) if model_format else detected.format if detected else _by_uri(path)
    own = detected.format if detected else None
    if local and not model_format:
        _check_place(word, Path(path), detected)
    if known and own and own.name != known.name and own.backend and known.backend not in ("", own.backend):
        message = f"{word} has format {own.name} ({own.phrase}), not {known.name}"
        raise UsageError(message, "leave --format out: our predictor detects the format of a local model itself")
    if local and not name_of_class:
        _check_only_model(word, Path(path), known)
    if known is None and not model_format:
        raise _unknown_format(word, Path(path) if local else None)
    if detected is not None and known == own:
        check_module(word, detected)
    ambiguous = Path(path).suffix in (".json", ".txt")  # of several backends
    if known and known.backend and known.suffixes and local and not detected and Path(path).is_file() and not ambiguous:
        message = f"{Path(path).name}: our predictor knows a model of format {known.name} by its ending"
        raise UsageError(message, f"rename it to {Path(path).with_suffix(known.suffixes[0]).name}")
    name = known.name if known else model_format
    phrase = detected.phrase if detected and not model_format else known.phrase if known else name
    real = Path(path).resolve()
    files = () if not local else real.rglob("*") if real.is_dir() else (real,)
    size = sum(each.stat().st_size for each in files if each.is_file())
    code = detected.file if detected and detected.format.name == "python" else Path(path)
    libraries = _libraries(code, name) if local else set[str]()
    model = scaffold.Model(model_name(word), path, name, phrase=phrase, size=size, libraries=libraries)
    if local and (name_of_class or (own and own.name == "python")):
        check_code(path, name_of_class)
    if name_of_class:
        env = {ENV_MODEL_PARAMETER: f"class={name_of_class}"}
        described = f"{phrase}, {_kind(name_of_class)} {name_of_class}"
        model = replace(model, phrase=described, env=env)
    return _with_pickles(model, local, trust_pickle)


def _libraries(path: Path, model_format: str) -> set[str]:
    """Return what the code of Python models imports, and of a Triton repository the extras of its other models."""
    if model_format not in ("python", "triton"):
        return set()
    formats = map(by_name, (each.name for each in path.rglob("*")) if model_format == "triton" else ())
    return imported_packages(path).union(row.extra for row in formats if row)


def _unknown_format(word: str, path: Path | None) -> UsageError:
    """Return the error of a model of no known format; `path` is None of one in a store."""
    if path is not None and path.is_dir() and not any(path.iterdir()):
        return UsageError(f"{word} is an empty folder")
    if PurePosixPath(word).suffix in (".h5", ".hdf5", ".keras"):
        hint = 'convert it to ONNX by tf2onnx (docs/how-to/onnx.md) or export it: model.export("FOLDER.savedmodel")'
        return UsageError(f"{word} is a Keras model, whose format is not served", hint)
    names = ", ".join(dict.fromkeys(row.name for row in FORMATS))
    return UsageError(f"{word} is of no known format; name it with --format: {names}")


def unserved_code(word: str, model: scaffold.Model) -> str:
    """Return a note if a folder is deployed for its weights and also has Python code that could be served."""
    if "://" in word or not os.path.isdir(word) or model.format == "python":
        return ""
    served = ((file, name) for file, names in served_modules(Path(word)).items() for name in names)
    file, name = next(served, (None, ""))
    if file is None:
        return ""
    defined = f"{_kind(name)} {name}" + (" with predict" if name != "predict" else "")
    fix = f"platformctl deploy {shlex.quote(word.rstrip('/') + ':' + name)}"
    return f"{file.name} defines {defined}, which is not served; to serve it: {fix}"


def _only_served(folder: str) -> str:
    """Return the class or function that a folder with other models can serve. Raise UsageError if that is not one."""
    served = [(file, name) for file, names in served_modules(Path(folder)).items() for name in names]
    if not served:
        raise UsageError(f"{folder} has no module with a function predict or a class with a method predict")
    if len(served) > 1:
        names = ", ".join(f"{name} in {file.name}" for file, name in served)
        word = shlex.quote(f"{folder.rstrip('/')}/{served[0][0].name}:{served[0][1]}")
        raise UsageError(f"{folder} can serve {names}", f"name one: platformctl deploy {word}")
    return served[0][1]


def _kind(name: str) -> str:
    return "class" if name[0].isupper() else "function"


def _check_only_model(word: str, folder: Path, known: ModelFormat | None) -> None:
    """Raise UsageError for a folder with several models, of its format if it has one, of which none is called model."""
    if not folder.is_dir() or (known is not None and (not known.backend or known.name == "safetensors")):
        return
    files = [each for each in sorted(folder.iterdir()) if each.is_file() and each.name[0] not in "._"]
    formats = [(each, detected.format) for each in files if (detected := detect_file(each))]
    models = [each for each, row in formats if (row == known if known else row.backend and row.name != "python")]
    if len(models) > 1 and not any(each.stem == "model" for each in models):
        message = f"{word} has {len(models)} models: {', '.join(each.name for each in models)}"
        file = shlex.quote(f"{word.rstrip('/')}/{models[0].name}")
        raise UsageError(message, f"name the file: platformctl deploy {file}")


def _check_place(word: str, path: Path, detected: Detected | None) -> None:
    """Raise UsageError for a file whose folder is the model, or a folder, such as a project's, with a repository."""
    message, model = f"{word} holds only the weights of a Hugging Face model, which its folder describes", path
    if (folder := _hugging_face_folder(path)) is not None:
        model = folder
    elif path.is_dir() and (detected is None or is_script(detected.file)):
        visible = (each for each in sorted(path.iterdir()) if each.name[0] not in "._" and each.is_dir())
        model = next((each for each in visible if is_repository(each)), path)
        message = f"{word} holds no model, but a Triton model repository: {model.name}"
    if model != path:
        raise UsageError(message, f"platformctl deploy {shlex.quote(seen_from(str(model), '-'))}")


def _hugging_face_folder(path: Path) -> Path | None:
    """Return the folder of a Hugging Face model that this file holds the weights of; None: it is no such file."""
    if not path.is_file() or path.suffix not in (".safetensors", ".bin"):
        return None
    whole = detect(path.parent)
    return path.parent if whole is not None and whole.format.name == "huggingface" else None


def _by_uri(uri: str) -> ModelFormat | None:
    """Return the format of a URI, of a remote folder by the names of its files; None if of none, or of several.

    Raise UsageError with the store's reason if they cannot be listed.
    """
    from pilotlight.k8s.model_pins import REMOTE_SCHEMES, scheme_of
    from pilotlight.release.remote_pins import remote_files

    named, scheme = by_name(uri) or by_name(uri.partition("?")[0]), scheme_of(uri)
    if named or scheme not in REMOTE_SCHEMES:
        return named
    if scheme in ("hf", "hf_model"):
        return find_format("huggingface")
    try:
        files = remote_files(uri)
    except PlatformError as error:
        message, hint = f"its format cannot be detected: {error}", "name it with --format: onnx, sklearn, …"
        raise UsageError(message, hint) from None
    for row in FORMATS:
        if any(fnmatch(name, sign) for name in files for sign in row.signs):
            return row
    models = [
        each for each in files if "/" not in each and by_name(each) and (each == "model.py" or each[-3:] != ".py")
    ]
    if not models and any(is_in_repository(PurePosixPath(each)) for each in files):
        return find_format("triton")
    if "config.json" in files:
        return find_format("huggingface")
    formats = {known.name: known for name in files if (known := by_name(name))}
    return next(iter(formats.values())) if len(formats) == 1 else None


def _with_pickles(model: scaffold.Model, local: bool, trust: bool) -> scaffold.Model:
    """Name the first pickle of a model; `trust` pins all of them by their SHA-256."""
    path = Path(model.uri)
    if trust and not local:
        raise UsageError(
            f"--trust-pickle reads the file, and {model.uri} is not on this machine",
            trust_pickle_setting("FILE=SHA256"),
        )
    if not local:
        may_be = model.format == "sklearn" and not model.uri.endswith(".skops")
        return replace(model, pickle=PurePosixPath(model.uri).name if may_be else "")
    if not trust:
        pickles = untrusted_files(path) if model.format != "python" else []
        return replace(model, pickle=pickles[0].name, untrusted=why_untrusted(pickles[0])) if pickles else model
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    pinned = [each for each in files if each.suffix in (*PICKLE_SUFFIXES, ".skops", ".pt", ".pth", ".pt2", ".ckpt")]
    if not pinned:
        raise UsageError(f"--trust-pickle: {model.uri} holds no pickle")
    pins = pins_of(pinned)
    return replace(model, pickle=pinned[0].name, env={**model.env, ENV_TRUST_PICKLE: pins})


def pickle_warning(model: scaffold.Model) -> str:
    """Return what is wrong with a model that our predictor would refuse: it is a pickle that is not pinned."""
    if not model.pickle or not model.ours or ENV_TRUST_PICKLE in model.env:
        return ""
    return f"{model.pickle} {model.untrusted}"


def seen_from(uri: str, file: str) -> str:
    """Return a path as a document in `file` must write it; `-` is a document of the working directory."""
    if "://" in uri or os.path.isabs(uri):
        return uri
    seen = Path(os.path.relpath(uri, Path(file).parent if file != "-" else Path())).as_posix()
    return seen if seen.startswith("..") else f"./{seen}"


def on_target(model: scaffold.Model, target: str) -> scaffold.Model:
    """Return the model as the target will serve it: by our predictor if that is selected, or alone can read it.

    Raise UsageError for a path that the target cannot read.
    """
    from pilotlight.catalogue.catalogue import builtin
    from pilotlight.catalogue.runtime_selection import select_runtime
    from pilotlight.plan.component_runtime import runtime_host
    from pilotlight.plan.types import Capabilities
    from pilotlight.spec.service import Component, ModelSpec, Service

    if "://" not in model.uri and target not in EMBEDDED:
        message = f"{model.uri} is a local path, which {target} cannot read"
        raise UsageError(message, "put it into a store first and give its URI: s3://BUCKET/PATH, hf://ORG/MODEL, …")
    env = [{"name": name, "value": value} for name, value in model.env.items()]
    for protocol in ("", "v2"):  # KServe's default is v1, which some runtimes do not speak
        spec = ModelSpec(model.format, storage_uri=model.uri, protocol=protocol, container={"env": env})
        component = Component("predictor", model=spec)
        service = Service("kserve", model.name, "default", {"predictor": component})
        host = runtime_host(Capabilities(target=target), service)
        if (runtime := select_runtime(service, component, builtin(), host).runtime) is not None:
            break
    known = find_format(model.format)
    if runtime is None or runtime.is_pilotlight:
        return replace(model, ours=runtime is not None, protocol="v2" if runtime is not None else "")
    archive = model.uri.endswith(".mar")  # of TorchServe, which KServe has for the format and which reads no other file
    own = "://" not in model.uri or (model.format == "pytorch" and not archive)
    if own and known is not None and known.backend:
        return replace(model, ours=True, runtime="pilotlight", protocol="v2")
    return replace(model, protocol=protocol)


def check(text: str, target: str) -> None:
    """Plan a document for a target. Raise UsageError with the first problem if it could not be deployed there."""
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.plan_and_render import Sources, plan_all
    from pilotlight.spec.problems import InvalidDocument
    from pilotlight.targets.local.capabilities import capabilities_of

    known = capabilities_of(target, {}) if target in EMBEDDED else {"target": target}
    try:
        plan_all(Sources(("-",), stdin=io.StringIO(text)), replace(Capabilities(), **known))
    except InvalidDocument as error:
        first = next(problem for problem in error.problems if problem.severity == "error")
        raise UsageError(f"{first.path}: {first.message}") from None
