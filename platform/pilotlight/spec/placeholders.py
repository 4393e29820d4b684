"""Go template placeholders of runtimes, which both projects fill in from the service's metadata. Pure.

Only `{{.Name}}`, `{{.Namespace}}`, `{{.Labels.x}}` and `{{.Annotations.x}}` are supported; any other placeholder is an
error instead of reaching a container.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from pilotlight.spec.model import ModelSpec, Runtime, Service
from pilotlight.spec.problems import Problems, SourceLocation

Json = Any
_PLACEHOLDER: Final = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_FIELD: Final = re.compile(r"\.(Name|Namespace)|\.(Labels|Annotations)\.([A-Za-z_][A-Za-z0-9_]*)")
_MLSERVER_CLASSES: Final = {
    "xgboost": "mlserver_xgboost.XGBoostModel",
    "lightgbm": "mlserver_lightgbm.LightGBMModel",
    "mlflow": "mlserver_mlflow.MLflowRuntime",
}


def expand(value: Json, service: Service, runtime: Runtime, problems: Problems, path: str = "") -> Json:
    """Fill in all placeholders of a value. `path` is its path inside the runtime."""
    if isinstance(value, str):
        return _text(value, service, runtime, problems, path) if "{{" in value else value
    if isinstance(value, Mapping):
        return {key: expand(item, service, runtime, problems, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item, service, runtime, problems, f"{path}[{at}]") for at, item in enumerate(value)]
    return value


def _text(text: str, service: Service, runtime: Runtime, problems: Problems, path: str) -> str:
    implied = implied_metadata(service, runtime)
    location = runtime.locations.get(path, SourceLocation(runtime.origin))

    def fill(match: re.Match[str]) -> str:
        field = _FIELD.fullmatch(match[1])
        if field is None:
            message = (
                f"runtime {runtime.name} says {match[0]}; only .Name, .Namespace, .Labels.x, .Annotations.x are known"
            )
            problems.error("PL230", location, path.lstrip("."), message)
            return match[0]
        if field[1]:
            return service.name if field[1] == "Name" else service.namespace
        kind = field[2].lower()
        metadata = {**(service.labels if kind == "labels" else service.annotations), **implied.get(kind, {})}
        if field[3] not in metadata:
            message = f"runtime {runtime.name} asks for {field[0]}, the service has none: it becomes empty"
            problems.warn("PL231", location, path.lstrip("."), message)
        return metadata.get(field[3], "")

    return _PLACEHOLDER.sub(fill, text)


def implied_metadata(service: Service, runtime: Runtime) -> Mapping[str, Mapping[str, str]]:
    """Return labels and annotations that KServe's defaulting adds before it fills in its stock runtimes."""
    predictor = service.components.get("predictor")
    model = predictor.model if predictor is not None else None
    if model is None:
        return {}
    implied: dict[str, Mapping[str, str]] = {"annotations": {"modelFormat": model.format}}
    if runtime.server_type == "mlserver":
        implied["labels"] = {"modelClass": _MLSERVER_CLASSES.get(model.format, "mlserver_sklearn.SKLearnModel")}
    if runtime.server_type == "torchserve":
        implied["labels"] = {"serviceEnvelope": "kservev2" if model.protocol in ("v2", "grpc-v2") else "kserve"}
    return implied


def implied_env(service: Service, runtime: Runtime, model: ModelSpec) -> list[dict[str, str]]:
    """Return variables that KServe's defaulting sets for MLServer and TorchServe; the user's own win."""
    stored = bool(model.storage_uri or model.storage)
    if runtime.server_type == "mlserver" and stored:
        return [
            {"name": "MLSERVER_MODEL_NAME", "value": service.name},
            {"name": "MLSERVER_MODEL_URI", "value": "/mnt/models"},
        ]
    if runtime.server_type == "mlserver":
        return [{"name": "MLSERVER_LOAD_MODELS_AT_STARTUP", "value": "false"}]
    if runtime.server_type == "torchserve":
        return [{"name": "PROTOCOL_VERSION", "value": model.protocol or "v1"}]
    return []
