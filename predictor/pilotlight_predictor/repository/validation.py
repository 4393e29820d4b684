"""Validation of a whole configuration, in either notation; each error has the field and its position.

The rules are Triton's; settings that Triton silently drops are rejected. Properties of the model file (its tensors,
whether it batches) are checked later, in `complete`.
"""

import re
from collections.abc import Iterator
from typing import Final

from pilotlight_predictor.repository.document import ConfigDocument, Path, Values
from pilotlight_predictor.repository.ensemble_validation import check_ensemble
from pilotlight_predictor.repository.graph_validation import check_graphs
from pilotlight_predictor.repository.names import stays_inside
from pilotlight_predictor.repository.sequence_validation import check_sequences
from pilotlight_predictor.repository.tensor_validation import check_batch_tensors, check_dims, check_tensors

_BACKEND_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_WARMUP_SOURCES: Final = frozenset({"zero_data", "random_data", "input_data_file"})


def validate(document: ConfigDocument) -> None:
    _check_identity(document)
    _check_filenames(document)
    check_tensors(document)
    check_batch_tensors(document)
    _check_dynamic_batching(document)
    _check_sequence_batching(document)
    check_ensemble(document)
    _check_instance_groups(document)
    _check_version_policy(document)
    _check_warmups(document)
    check_graphs(document)
    _check_cache(document)


def _check_identity(document: ConfigDocument) -> None:
    values = document.values
    if values.get("max_batch_size", 0) < 0:
        raise document.failure(("max_batch_size",), f"= {values['max_batch_size']}, must be 0 (no batching) or more")
    for field in ("platform", "backend"):
        if field in values and values[field] and not _BACKEND_NAME.fullmatch(values[field]):
            raise document.failure((field,), f"= {values[field]!r}, must be a name such as onnxruntime")


def _check_filenames(document: ConfigDocument) -> None:
    values = document.values
    names: list[tuple[Path, str]] = []
    if values.get("default_model_filename"):
        names.append((("default_model_filename",), values["default_model_filename"]))
    for capability, filename in values.get("cc_model_filenames", {}).items():
        names.append((("cc_model_filenames", capability), filename))
    for path, filename in names:
        if not stays_inside(filename):
            raise document.failure(path, f"= {filename!r}, must be a path inside the version's directory")


def _check_dynamic_batching(document: ConfigDocument) -> None:
    batching = document.values.get("dynamic_batching")
    if batching is None:
        return
    path: Path = ("dynamic_batching",)
    if _max_batch_size(document) == 0 and _needs_batches(batching):
        raise document.failure(path, "needs max_batch_size > 0; set it, or remove dynamic_batching")
    _check_preferred(document, batching, path)
    _check_priorities(document, batching, path)
    _check_ordering(document, batching, path)


def _max_batch_size(document: ConfigDocument) -> int | None:
    """Return the value; None if it and the tensors are unset, so that the model file decides."""
    values = document.values
    if "max_batch_size" in values or (values.get("input") and values.get("output")):
        return int(values.get("max_batch_size", 0))
    return None


def _needs_batches(batching: Values) -> bool:
    """Whether the block does more than set queue policies, priorities or ordering, which work without batches."""
    queueing = {"preserve_ordering", "priority_levels", "default_priority_level", "default_queue_policy"}
    return not batching or not set(batching) <= queueing | {"priority_queue_policy"}


def _check_preferred(document: ConfigDocument, batching: Values, path: Path) -> None:
    largest = _max_batch_size(document)
    for index, size in enumerate(batching.get("preferred_batch_size", [])):
        place = (*path, "preferred_batch_size", index)
        if size < 1:
            raise document.failure(place, f"= {size}, must be 1 or more")
        if largest is not None and size > largest:
            raise document.failure(place, f"= {size}, must be at most max_batch_size, which is {largest}")


def _check_priorities(document: ConfigDocument, batching: Values, path: Path) -> None:
    levels = batching.get("priority_levels", 0)
    default = batching.get("default_priority_level", 0)
    place = (*path, "default_priority_level")
    if levels == 0 and default:
        raise document.failure(place, f"= {default} has no effect without priority_levels; set both or neither")
    if levels and not 1 <= default <= levels:
        raise document.failure(place, f"= {default}, must be from 1 to priority_levels, which is {levels}")
    for priority in batching.get("priority_queue_policy", {}):
        if not 1 <= priority <= levels:
            sentence = f"is for priority {priority}, must be from 1 to priority_levels, which is {levels}"
            raise document.failure((*path, "priority_queue_policy", str(priority)), sentence)


def _check_ordering(document: ConfigDocument, batching: Values, path: Path) -> None:
    if not batching.get("preserve_ordering"):
        return
    if batching.get("priority_levels", 0) > 1:
        raise document.failure(
            (*path, "preserve_ordering"), "cannot stand beside priority_levels > 1; drop one of them"
        )
    for place, policy in _policies(batching, path):
        if policy.get("default_timeout_microseconds") and policy.get("timeout_action") == "DELAY":
            raise document.failure(
                (*place, "timeout_action"), "= DELAY cannot stand beside preserve_ordering; use REJECT"
            )


def _policies(batching: Values, path: Path) -> Iterator[tuple[Path, Values]]:
    yield (*path, "default_queue_policy"), batching.get("default_queue_policy", {})
    for priority, policy in batching.get("priority_queue_policy", {}).items():
        yield (*path, "priority_queue_policy", str(priority)), policy


def _check_sequence_batching(document: ConfigDocument) -> None:
    batching = document.values.get("sequence_batching", {})
    _check_preferred(document, batching.get("oldest", {}), ("sequence_batching", "oldest"))
    check_sequences(document)


def _check_instance_groups(document: ConfigDocument) -> None:
    for index, group in enumerate(document.values.get("instance_group", [])):
        path: Path = ("instance_group", index)
        if group.get("count", 1) < 1:
            raise document.failure((*path, "count"), f"= {group['count']}, must be 1 or more")
        kind, gpus = group.get("kind", "KIND_AUTO"), group.get("gpus", [])
        if gpus and kind in {"KIND_CPU", "KIND_MODEL"}:
            raise document.failure(
                (*path, "gpus"), f"= {gpus} cannot stand beside kind: {kind}; use KIND_GPU or drop gpus"
            )
        for number, gpu in enumerate(gpus):
            if gpu < 0:
                raise document.failure((*path, "gpus", number), f"= {gpu}, must be 0 or more")


def _check_version_policy(document: ConfigDocument) -> None:
    policy = document.values.get("version_policy", {})
    path: Path = ("version_policy",)
    if policy.get("latest", {}).get("num_versions", 1) < 1:
        raise document.failure((*path, "latest", "num_versions"), "= 0, must be 1 or more")
    if "specific" in policy:
        versions = policy["specific"].get("versions", [])
        if not versions:
            raise document.failure((*path, "specific"), "lists no versions; add versions: [ 1, … ]")
        for index, version in enumerate(versions):
            if version < 0:
                raise document.failure((*path, "specific", "versions", index), f"= {version}, must be 0 or more")


def _check_warmups(document: ConfigDocument) -> None:
    known = {tensor["name"] for tensor in document.values.get("input", [])}
    largest = _max_batch_size(document)
    for index, warmup in enumerate(document.values.get("model_warmup", [])):
        path: Path = ("model_warmup", index)
        batch = warmup.get("batch_size", 1)
        if batch < 1 or (largest is not None and batch > max(largest, 1)):
            sentence = f"= {batch}, must be from 1 to max_batch_size, which is {largest}"
            raise document.failure((*path, "batch_size"), sentence)
        for name, tensor in warmup.get("inputs", {}).items():
            place = (*path, "inputs", name)
            if known and name not in known:
                raise document.failure(
                    place, f"is for {name!r}, which is no input; known are {', '.join(sorted(known))}"
                )
            _check_warmup_input(document, tensor, place)


def _check_warmup_input(document: ConfigDocument, tensor: Values, path: Path) -> None:
    if tensor.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
        raise document.failure(path, "has no data_type; add data_type: TYPE_…")
    if not _WARMUP_SOURCES & set(tensor):
        raise document.failure(path, "has no data; add zero_data: true, random_data: true or input_data_file")
    check_dims(document, tensor.get("dims", []), (*path, "dims"), variable=False)
    filename = tensor.get("input_data_file", "file")
    if not stays_inside(filename):
        raise document.failure((*path, "input_data_file"), f"= {filename!r}, must be a path inside <model>/warmup")


def _check_cache(document: ConfigDocument) -> None:
    values = document.values
    if not values.get("response_cache", {}).get("enable"):
        return
    decoupled = values.get("model_transaction_policy", {}).get("decoupled")
    if decoupled or "sequence_batching" in values:
        other = "a decoupled model" if decoupled else "sequence_batching"
        raise document.failure(("response_cache",), f"cannot serve {other}; remove one of them")
