"""Validation of a whole configuration, in either notation; each error has the field and its position.

The rules are Triton's; settings that Triton silently drops are rejected. Properties of the model file (its tensors,
whether it batches) are checked later, in `complete`.
"""

import re
from collections.abc import Sequence
from typing import Final

from pilotlight_predictor.repository.config_tensor_validation import check_batch_tensors, check_dims, check_tensors
from pilotlight_predictor.repository.json_config import ConfigDocument, Path, Values
from pilotlight_predictor.repository.model_config import stays_inside

_BACKEND_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_QUEUEING: Final = frozenset({
    "preserve_ordering", "priority_levels", "default_priority_level", "default_queue_policy", "priority_queue_policy",
})  # fmt: skip
_WARMUP_SOURCES: Final = frozenset({"zero_data", "random_data", "input_data_file"})
MAX_INSTANCES: Final = 1024  # of a model; each has a thread
_NOT_OF_ENSEMBLES: Final = ("instance_group", "optimization", "model_warmup")
_PAIRS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_IDS: Final = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def validate(document: ConfigDocument) -> None:
    values = document.values
    if values.get("max_batch_size", 0) < 0:
        raise document.failure(("max_batch_size",), f"= {values['max_batch_size']}, must be 0 (no batching) or more")
    for field in ("platform", "backend"):
        if values.get(field) and not _BACKEND_NAME.fullmatch(values[field]):
            raise document.failure((field,), f"= {values[field]!r}, must be a name such as onnxruntime")
    _check_filenames(document)
    check_tensors(document)
    check_batch_tensors(document)
    _check_dynamic_batching(document)
    _check_sequences(document)
    _check_ensemble(document)
    _check_instance_groups(document)
    _check_version_policy(document)
    _check_warmups(document)
    _check_graphs(document)
    _check_cache(document)


def _check_filenames(document: ConfigDocument) -> None:
    values, folder = document.values, "the version's directory"
    _check_inside(document, values.get("default_model_filename") or "file", ("default_model_filename",), folder)
    for capability, filename in values.get("cc_model_filenames", {}).items():
        _check_inside(document, filename, ("cc_model_filenames", capability), folder)


def _check_inside(document: ConfigDocument, filename: str, path: Path, folder: str) -> None:
    if not stays_inside(filename):
        raise document.failure(path, f"= {filename!r}, must be a path inside {folder}")


def _check_dynamic_batching(document: ConfigDocument) -> None:
    batching = document.values.get("dynamic_batching")
    if batching is None:
        return
    path: Path = ("dynamic_batching",)
    # Queue policies, priorities and ordering work without batches.
    if _max_batch_size(document) == 0 and (not batching or not set(batching) <= _QUEUEING):
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
        raise document.failure((*path, "preserve_ordering"), "cannot be combined with priority_levels > 1; remove one")
    policies: dict[Path, Values] = {(*path, "default_queue_policy"): batching.get("default_queue_policy", {})}
    for priority, policy in batching.get("priority_queue_policy", {}).items():
        policies[(*path, "priority_queue_policy", str(priority))] = policy
    for place, policy in policies.items():
        if policy.get("default_timeout_microseconds") and policy.get("timeout_action") == "DELAY":
            raise document.failure(
                (*place, "timeout_action"), "= DELAY cannot be combined with preserve_ordering; use REJECT"
            )


def _check_instance_groups(document: ConfigDocument) -> None:
    instances = 0
    for index, group in enumerate(document.values.get("instance_group", [])):
        path: Path = ("instance_group", index)
        if group.get("count", 1) < 1:
            raise document.failure((*path, "count"), f"= {group['count']}, must be 1 or more")
        kind, gpus = group.get("kind", "KIND_AUTO"), group.get("gpus", [])
        instances += group.get("count", 1) * max(len(gpus), 1)
        if instances > MAX_INSTANCES:
            raise document.failure(
                (*path, "count"), f"= {group.get('count', 1)}, must leave {MAX_INSTANCES:,} instances or fewer in all"
            )
        if gpus and kind in {"KIND_CPU", "KIND_MODEL"}:
            raise document.failure(
                (*path, "gpus"), f"= {gpus} cannot be combined with kind: {kind}; use KIND_GPU or remove gpus"
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
    largest = _max_batch_size(document)
    for index, warmup in enumerate(document.values.get("model_warmup", [])):
        path: Path = ("model_warmup", index)
        batch = warmup.get("batch_size", 1)
        if batch < 1 or (largest is not None and batch > max(largest, 1)):
            sentence = f"= {batch}, must be from 1 to max_batch_size, which is {largest}"
            raise document.failure((*path, "batch_size"), sentence)
        for name, tensor in warmup.get("inputs", {}).items():
            place = (*path, "inputs", name)
            _check_input_name(document, name, place)
            _check_warmup_input(document, tensor, place)


def _check_input_name(document: ConfigDocument, name: str, path: Path) -> None:
    known = {tensor["name"] for tensor in document.values.get("input", [])}
    if known and name not in known:
        raise document.failure(path, f"is for {name!r}, which is not an input; known: {', '.join(sorted(known))}")


def _check_warmup_input(document: ConfigDocument, tensor: Values, path: Path) -> None:
    if tensor.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
        raise document.failure(path, "has no data_type; add data_type: TYPE_…")
    if not _WARMUP_SOURCES & set(tensor):
        raise document.failure(path, "has no data; add zero_data: true, random_data: true or input_data_file")
    check_dims(document, tensor.get("dims", []), (*path, "dims"), variable=False)
    _check_inside(document, tensor.get("input_data_file", "file"), (*path, "input_data_file"), "<model>/warmup")


def _check_cache(document: ConfigDocument) -> None:
    values = document.values
    if not values.get("response_cache", {}).get("enable"):
        return
    decoupled = values.get("model_transaction_policy", {}).get("decoupled")
    if decoupled or "sequence_batching" in values:
        other = "a decoupled model" if decoupled else "sequence_batching"
        raise document.failure(("response_cache",), f"cannot be combined with {other}; remove one")


def _check_sequences(document: ConfigDocument) -> None:
    batching, path = document.values.get("sequence_batching", {}), ("sequence_batching",)
    _check_preferred(document, batching.get("oldest", {}), (*path, "oldest"))
    slots = batching.get("direct", {}).get("minimum_slot_utilization", 0.0)
    if not 0.0 <= slots <= 1.0:
        raise document.failure((*path, "direct", "minimum_slot_utilization"), f"= {slots}, must be from 0 to 1")
    candidates = batching.get("oldest", {}).get("max_candidate_sequences", 0)
    if candidates < 0:
        raise document.failure((*path, "oldest", "max_candidate_sequences"), f"= {candidates}, must be 0 or more")
    if batching.get("iterative_sequence"):
        raise document.failure((*path, "iterative_sequence"), "= true is not supported; remove it")
    _check_controls(document, batching)
    for index, state in enumerate(batching.get("state", [])):
        _check_state(document, state, (*path, "state", index))


def _check_controls(document: ConfigDocument, batching: Values) -> None:
    seen: set[str] = set()
    for index, tensor in enumerate(batching.get("control_input", [])):
        path: Path = ("sequence_batching", "control_input", index)
        if not tensor.get("name"):
            raise document.failure(path, "has no name; add that of the model's input")
        if len(tensor.get("control", [])) != 1:
            raise document.failure(path, f"has {len(tensor.get('control', []))} controls; an input takes exactly one")
        (control,) = tensor["control"]
        kind = control.get("kind", "CONTROL_SEQUENCE_START")
        place = (*path, "control", 0)
        if kind in seen:
            raise document.failure(place, f"is a second {kind}; a kind may be set once")
        seen.add(kind)
        _check_control(document, control, kind, place)


def _check_control(document: ConfigDocument, control: Values, kind: str, path: Path) -> None:
    pairs = [field for field in _PAIRS if control.get(field)]
    if kind == "CONTROL_SEQUENCE_CORRID":
        if pairs or control.get("data_type") not in _IDS:
            sentence = f"must have a data_type, one of {', '.join(_IDS)}, and no {' or '.join(_PAIRS)}"
            raise document.failure(path, f"is a {kind}: it {sentence}")
    elif len(pairs) != 1 or len(control[pairs[0]]) != 2:
        raise document.failure(path, f"is a {kind}: it must have two values in one of {', '.join(_PAIRS)}")


def _check_state(document: ConfigDocument, state: Values, path: Path) -> None:
    for field in ("input_name", "output_name", "dims"):
        if not state.get(field):
            raise document.failure(path, f"has no {field}; add it")
    if state.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
        raise document.failure(path, "has no data_type; add data_type: TYPE_…")
    initial = state.get("initial_state", [])
    if len(initial) > 1:
        raise document.failure((*path, "initial_state"), f"has {len(initial)} entries; at most one is possible")
    for each in initial:
        place = (*path, "initial_state", 0, "data_file")
        _check_inside(document, each.get("data_file", "file"), place, "<model>/initial_state")
        if any(dim < 1 for dim in each.get("dims", [])):
            raise document.failure((*path, "initial_state", 0, "dims"), "must be of numbers from 1 upwards")


def _check_ensemble(document: ConfigDocument) -> None:
    values = document.values
    steps = values.get("ensemble_scheduling", {}).get("step", [])
    named = "ensemble" in {values.get("platform"), values.get("backend")}
    if "ensemble_scheduling" not in values:
        if named:
            raise document.failure((), "platform is ensemble, so ensemble_scheduling { step [ … ] } must be given")
        return
    if not named:
        raise document.failure(("ensemble_scheduling",), 'is for ensembles only; add platform: "ensemble" or remove it')
    for field in _NOT_OF_ENSEMBLES:
        if values.get(field):
            raise document.failure((field,), "has no meaning for an ensemble; set it on the models of its steps")
    if not steps:
        raise document.failure(("ensemble_scheduling",), "has no step; add step [ { model_name: … } ]")
    _check_steps(document, steps)
    _check_flow(document, steps)


def _check_steps(document: ConfigDocument, steps: Sequence[Values]) -> None:
    writers: dict[str, int] = {}
    for index, step in enumerate(steps):
        path = ("ensemble_scheduling", "step", index)
        for field in ("model_name", "input_map", "output_map"):
            if not step.get(field):
                raise document.failure(
                    (*path, field), "is missing; every step needs a model, an input and an output map"
                )
        if step.get("model_version", -1) < -1:
            raise document.failure((*path, "model_version"), f"= {step['model_version']}, must be a version or -1")
        for output, tensor in step["output_map"].items():
            if tensor in writers:
                sentence = f"writes {tensor!r}, which step {writers[tensor]} writes too; a tensor has one writer"
                raise document.failure((*path, "output_map", output), sentence)
            writers[tensor] = index


def _check_flow(document: ConfigDocument, steps: Sequence[Values]) -> None:
    """Check that every step can run and every tensor is used; steps that never run are unconnected or cyclic."""
    inputs = [tensor["name"] for tensor in document.values.get("input", [])]
    outputs = [tensor["name"] for tensor in document.values.get("output", [])]
    read = {tensor for step in steps for tensor in step["input_map"].values()}
    for index, name in enumerate(inputs):
        if name not in read:
            raise document.failure(("input", index), f"{name!r} is not read by any step")
    waiting, written = list(steps), set(inputs)
    while ready := [step for step in waiting if set(step["input_map"].values()) <= written]:
        waiting = [step for step in waiting if step not in ready]
        written = written.union(*(step["output_map"].values() for step in ready))
    _check_written(document, steps, written, outputs)
    for number, step in enumerate(steps):
        for output, tensor in step["output_map"].items():
            if tensor not in read and tensor not in outputs:
                path = ("ensemble_scheduling", "step", number, "output_map", output)
                raise document.failure(path, f"writes {tensor!r}, which nothing reads")


def _check_written(
    document: ConfigDocument, steps: Sequence[Values], written: set[str], outputs: Sequence[str]
) -> None:
    for number, step in enumerate(steps):
        missing = sorted(set(step["input_map"].values()) - written)
        if missing:
            path = ("ensemble_scheduling", "step", number, "input_map")
            sentence = f"reads {missing[0]!r}, which no input or runnable step provides (missing, or in a cycle)"
            raise document.failure(path, sentence)
    for index, name in enumerate(outputs):
        if name not in written:
            raise document.failure(("output", index), f"{name!r} is not written by any step")


def _check_graphs(document: ConfigDocument) -> None:
    cuda = document.values.get("optimization", {}).get("cuda", {})
    specs, path = cuda.get("graph_spec", []), ("optimization", "cuda", "graph_spec")
    if specs and not cuda.get("graphs"):
        raise document.failure(path, "has no effect without graphs: true; add that, or remove it")
    for index, spec in enumerate(specs):
        _check_graph(document, spec, (*path, index))


def _check_graph(document: ConfigDocument, spec: Values, path: Path) -> None:
    largest, rows = document.values.get("max_batch_size", 0), spec.get("batch_size", 0)
    if not (1 <= rows <= largest or rows == largest == 0):
        expected = f"from 1 to max_batch_size, which is {largest}" if largest else "0, as max_batch_size is"
        raise document.failure((*path, "batch_size"), f"= {rows}, must be {expected}")
    bound = spec.get("graph_lower_bound", {})
    least = bound.get("batch_size", 1 if rows else 0)
    if not min(rows, 1) <= least <= rows:
        sentence = f"= {least}, must be from {min(rows, 1)} to the graph's batch_size, which is {rows}"
        raise document.failure((*path, "graph_lower_bound", "batch_size"), sentence)
    if bound.get("input"):
        sentence = "is not supported: a graph has the dims that it was captured with; remove it"
        raise document.failure((*path, "graph_lower_bound", "input"), sentence)
    for name, shape in spec.get("input", {}).items():
        place = (*path, "input", name)
        _check_input_name(document, name, place)
        check_dims(document, shape.get("dim", []), (*place, "dim"), variable=False)
