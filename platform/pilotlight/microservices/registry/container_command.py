"""From a network architecture to the image and the shell command of its container. First step of a start.

`{network_arch}.config.json` has the image key, whether the model is a folder, the command and the secrets it may need.
The package's own are in reference/archs; a folder in PILOTLIGHT_ARCHS extends and overrides them.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.registry.records import check_pattern
from pilotlight.wire.messages import suggestion

ENV_FOLDER: Final = "PILOTLIGHT_ARCHS"
OWN: Final = Path(__file__).parent / "reference"
DEFAULT_IMAGE_KEY: Final = "COSMOS_RL"  # if the config file is missing or names none
SUFFIX: Final = ".config.json"
HUB: Final = "hf_model://"
CLOUD: Final = ("s3", "gs", "gcs", "az", "azure", "abfs", "abfss", "wasbs", "http", "https", "hf")
PREFIX: Final = "umask 0 && "
PORT: Final = 8080
ENV_PYTHON: Final = "PILOTLIGHT_PYTHON"  # the predictor's interpreter, if not the first `python` of the PATH
MODEL_NAME: Final = "model"  # name of the predictor's only model
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Arch(Struct, frozen=True):
    image_key: str = DEFAULT_IMAGE_KEY
    command: str = ""  # a row of COMMANDS
    folder: bool = False  # its model is a directory
    secrets: tuple[str, ...] = ()  # names of variables that are passed if set


class ModelPath(Struct, frozen=True):
    kind: Literal["hub", "local", "remote"]
    value: str  # org/model, or a path, or a URI

    @property
    def uri(self) -> str:
        return HUB + self.value if self.kind == "hub" else self.value


class CommandInputs(Struct, frozen=True):
    """Inputs of a command."""

    job_id: str
    network_arch: str
    model: ModelPath
    env: Mapping[str, str]
    num_gpus: int = 1
    fetches: bool = False  # whether the platform fetches models for images that read no stores


def arch(name: str, environ: Mapping[str, str], kind: str = "") -> Arch:
    """Return the architecture, with the default image if neither it nor its `kind` has a config file.

    The command is checked later.
    """
    check_pattern(_NAME, "network_arch", name, "letters, digits, dots, dashes and underscores")
    files = (
        folder / f"{each}{SUFFIX}" for each in (name, kind) if each for folder in (*_own_folder(environ), OWN / "archs")
    )
    document = next((_read(path) for path in files if path.is_file()), {})
    parameters = document.get("api_params") or {}
    inference = (document.get("spec_params") or {}).get("inference") or {}
    return Arch(
        image_key=str(parameters.get("image") or DEFAULT_IMAGE_KEY),
        command=str(document.get("container_command") or name),
        folder="folder" in str(inference.get("model_path") or ""),
        secrets=tuple(map(str, document.get("secrets") or ())),
    )


def names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all architectures with a config file."""
    files = (file for each in (*_own_folder(environ), OWN / "archs") for file in each.glob(f"*{SUFFIX}"))
    return sorted({file.name.removesuffix(SUFFIX) for file in files})


def reference(file: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return service.json or versions.yaml of the package, merged with the user's own."""
    merged: dict[str, Any] = {}
    for folder in (OWN, *_own_folder(environ)):
        if (folder / file).is_file():
            merged = _merge(merged, _read(folder / file))
    return merged


def _own_folder(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get(ENV_FOLDER, "")
    if named and not Path(named).is_dir():
        raise UsageError(f"{ENV_FOLDER} = {named}, must be a folder with files called NETWORK_ARCH{SUFFIX}")
    return [Path(named)] if named else []


def _read(path: Path) -> dict[str, Any]:
    decode = msgspec.yaml.decode if path.suffix == ".yaml" else msgspec.json.decode
    try:
        return decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: {error}") from None


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merge(below[key], value) if both else value
    return merged


def resolve(network_arch: str, environ: Mapping[str, str], kind: str = "") -> str:
    key = arch(network_arch, environ, kind).image_key
    service = reference("service.json", environ)
    mapping = (service.get("docker_image_defaults") or {}).get("mapping") or {}
    return resolve_key(key, mapping, reference("versions.yaml", environ), environ)


def resolve_key(key: str, mapping: Mapping[str, str], versions: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Resolve an image key: IMAGE_<KEY> of the environment, else the table of defaults, then `images` of versions.yaml.

    A value with a slash or a colon is a URI and is returned unchanged, at any step.
    """
    if is_uri(key):
        return key
    override = environ.get(f"IMAGE_{key}", "").strip()
    value = override or mapping.get(key, "")
    where = f"IMAGE_{key}" if override else f"docker_image_defaults.mapping.{key}"
    if not value:
        raise UsageError(f"no image is configured for {key}", f"set IMAGE_{key} to the URI of one")
    if is_uri(value):
        return value
    group, _, name = value.partition(".")
    image = ((versions.get("images") or {}).get(group) or {}).get(name)
    if not isinstance(image, str) or not image:
        message = f"{where} = {value}, which is not in images of versions.yaml"
        raise UsageError(message, f"set IMAGE_{key} to the URI of an image")
    return image


def is_uri(value: str) -> bool:
    return "/" in value or ":" in value


def parse(text: str, *, remote: bool = False) -> ModelPath:
    """Parse a model path. `remote`: allow cloud storage, for which the caller provides credentials."""
    if not text.strip():
        raise UsageError("model_path is missing", "--model-path hf_model://ORG/MODEL, or a path in the container")
    if any(ord(letter) < 32 or letter == "\x7f" for letter in text):
        raise UsageError("model_path has a control character")
    if text.startswith(HUB):
        name = text.removeprefix(HUB)
        if not _HUB_NAME.fullmatch(name):
            raise UsageError(f"model_path = {text}, must be hf_model://ORG/MODEL")
        return ModelPath("hub", name)
    if text.startswith("/"):
        return ModelPath("local", text)
    if (match := _SCHEME.match(text)) is None:
        raise UsageError(f"model_path = {text}, must be an absolute path in the container or hf_model://ORG/MODEL")
    scheme = match.group(1).lower()
    if scheme not in CLOUD:
        raise UsageError(f"model_path = {text}: {scheme}:// is not supported; use hf_model://ORG/MODEL or a path")
    if not remote:
        reason = f"{scheme}:// is not supported: an inference microservice has no access to cloud storage"
        raise UsageError(f"model_path = {text}: {reason}", "first copy the model to a path that the container can read")
    return ModelPath("remote", text)


def build(row: str, inputs: CommandInputs, environ: Mapping[str, str] = {}) -> str:
    """Return the shell command in the container, which every platform runs unchanged with `sh -c`."""
    if row not in COMMANDS:
        message = f"network_arch {inputs.network_arch} has no container command, so it cannot be started"
        every = sorted({*names(environ), *COMMANDS})
        known = suggestion(inputs.network_arch, every) or f"; there are {', '.join(every)}"
        own = f"container_command in your own config file ({ENV_FOLDER}) is one of {', '.join(COMMANDS)}"
        raise UsageError(f"{message}{known}", own)
    return PREFIX + COMMANDS[row](inputs)


def _cosmos_rl(inputs: CommandInputs) -> str:
    """Return the command of Cosmos-RL: the job and the environment as JSON."""
    job = {
        "job_id": inputs.job_id,
        "neural_network_name": inputs.network_arch,
        "specs": {"model_path": _contained(inputs).uri, "num_gpus": inputs.num_gpus},
        "cloud_metadata": {},
    }
    program = shlex.quote(f"{inputs.network_arch}-inference-microservice")
    return f"{program} --job {_quoted(job)} --docker_env_vars {_quoted(dict(inputs.env))}"


def _cosmos_predict(inputs: CommandInputs) -> str:
    """Return the command of Cosmos-Predict; parameters of requests are not part of it."""
    model = _contained(inputs)
    flag = "--model" if model.kind == "hub" else "--checkpoint-path"
    return f"cosmos_predict inference_microservice start {flag} {shlex.quote(model.value)} --port {PORT}"


def _pilotlight(inputs: CommandInputs) -> str:
    """Return the command of the predictor. INFERENCE_PORT and INFERENCE_HOST override port 8080 on all addresses.

    gRPC and metrics are off: their ports are in the range of microservices, and /metrics is on the HTTP port too. Other
    users of the machine reach it on loopback, so that is trusted with nothing.
    """
    flags = ["--microservice", "--model-name", MODEL_NAME, "--log-format", "json"]
    off = ["--grpc-port", "-1", "--metrics-port", "-1", "--admin-loopback=false"]
    words = shlex.join([*flags, *off, "--model-path", inputs.model.uri])
    return f'exec "${{{ENV_PYTHON}:-python}}" -m pilotlight_predictor {words}'


def fetched_model_path(job_id: str) -> str:
    """Return the path in the container of a model that is fetched before its start."""
    return f"/models/{job_id}"


def _contained(inputs: CommandInputs) -> ModelPath:
    if inputs.model.kind == "remote" and inputs.fetches:
        return ModelPath("local", fetched_model_path(inputs.job_id))
    if inputs.model.kind == "remote":
        message = f"model_path = {inputs.model.value}: a {inputs.network_arch} container cannot read cloud storage"
        hint = "docker, slurm and kubernetes fetch it; elsewhere name hf_model://ORG/MODEL or a path in the container"
        raise UsageError(message, hint)
    return inputs.model


def _quoted(document: object) -> str:
    return shlex.quote(json.dumps(document))


COMMANDS: Final[Mapping[str, Callable[[CommandInputs], str]]] = {
    "cosmos-rl": _cosmos_rl,
    "cosmos-predict2.5": _cosmos_predict,
    "pilotlight": _pilotlight,
}
