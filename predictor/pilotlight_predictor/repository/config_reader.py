"""Conversion of a configuration text to a `ModelConfig`: parse, check by the schema, validate, convert.

Imported only for models with a configuration, so that others do not pay for the readers.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import convert

from pilotlight_predictor.repository.config_validation import validate
from pilotlight_predictor.repository.json_config import ConfigDocument, Values, document_from_json
from pilotlight_predictor.repository.model_config import (
    DynamicBatching,
    EnsembleStep,
    GraphSpec,
    InstanceGroup,
    ModelConfig,
    TensorConfig,
    VersionPolicy,
    Warmup,
    WarmupInput,
    raw_config,
)
from pilotlight_predictor.repository.pbtxt import document_from_message, parse_pbtxt
from pilotlight_predictor.repository.schema import MODEL_CONFIG, datatype_of


def config_from_pbtxt(text: str, filename: str) -> ModelConfig:
    """Return the configuration of a text. Raise LoadFailed with `filename:line:column` in front."""
    return _config(document_from_message(parse_pbtxt(text, filename), MODEL_CONFIG))


def config_from_json(document: Mapping[str, Any], where: str) -> ModelConfig:
    """Return the configuration of proto3 JSON; `where` prefixes each error."""
    return _config(document_from_json(document, where, MODEL_CONFIG))


def _config(document: ConfigDocument) -> ModelConfig:
    validate(document)
    values = document.values
    raw = raw_config(values)
    return ModelConfig(
        name=values.get("name", ""), backend=values.get("backend", ""), platform=values.get("platform", ""),
        max_batch_size=values.get("max_batch_size", 0), inputs=tuple(map(_tensor, values.get("input", []))),
        outputs=tuple(map(_tensor, values.get("output", []))),
        instance_groups=tuple(map(_instance_group, values.get("instance_group", []))),
        dynamic_batching=_dynamic_batching(values.get("dynamic_batching")),
        version_policy=_version_policy(values.get("version_policy", {})),
        default_model_filename=values.get("default_model_filename", ""),
        cc_model_filenames=values.get("cc_model_filenames", {}),
        warmups=tuple(map(_warmup, values.get("model_warmup", []))),
        response_cache=values.get("response_cache", {}).get("enable", False),
        cuda_graphs=_cuda_graphs(values.get("optimization", {}).get("cuda", {})),
        ensemble=convert(values.get("ensemble_scheduling", {}).get("step", []), tuple[EnsembleStep, ...]),
        parameters={key: item.get("string_value", "") for key, item in values.get("parameters", {}).items()},
        metric_tags=values.get("metric_tags", {}),
        decoupled=values.get("model_transaction_policy", {}).get("decoupled", False),
        sequence_batching=raw.get("sequence_batching"), explicit_fields=frozenset(values), raw=raw,
    )  # fmt: skip


def _tensor(values: Values) -> TensorConfig:
    reshape = values["reshape"].get("shape", ()) if "reshape" in values else None
    datatype = datatype_of(values.get("data_type", ""))
    return convert({**values, "data_type": datatype, "reshape": reshape}, TensorConfig)


def _instance_group(values: Values) -> InstanceGroup:
    return convert({**values, "kind": values.get("kind", "KIND_AUTO").removeprefix("KIND_")}, InstanceGroup)


def _dynamic_batching(values: Values | None) -> DynamicBatching | None:
    if values is None:
        return None
    sizes = sorted(set(values.get("preferred_batch_size", ())))
    return convert({**values, "preferred_batch_size": sizes}, DynamicBatching)


def _version_policy(values: Values) -> VersionPolicy:
    if "all" in values:
        return VersionPolicy("all")
    if "specific" in values:
        return VersionPolicy("specific", versions=tuple(values["specific"]["versions"]))
    return VersionPolicy("latest", num_versions=values.get("latest", {}).get("num_versions", 1))


def _warmup(values: Values) -> Warmup:
    return Warmup(
        name=values.get("name", ""),
        inputs={name: _warmup_input(tensor) for name, tensor in values.get("inputs", {}).items()},
        batch_size=values.get("batch_size", 1),
        count=values.get("count", 1) or 1,
    )


def _warmup_input(values: Values) -> WarmupInput:
    return WarmupInput(
        datatype=datatype_of(values["data_type"]),
        dims=tuple(values.get("dims", ())),
        source="file" if "input_data_file" in values else "random" if "random_data" in values else "zero",
        filename=values.get("input_data_file", ""),
    )


def _cuda_graphs(values: Values) -> tuple[GraphSpec, ...] | None:
    if not values.get("graphs"):
        return None
    return tuple(
        GraphSpec(
            rows=spec.get("batch_size", 0),
            min_rows=spec.get("graph_lower_bound", {}).get("batch_size", 0),
            dims={name: tuple(shape.get("dim", ())) for name, shape in spec.get("input", {}).items()},
        )
        for spec in values.get("graph_spec", [])
    )
