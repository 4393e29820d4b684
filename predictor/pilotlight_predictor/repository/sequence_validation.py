"""Validation of `sequence_batching`, part of `validate`. Pure."""

from typing import Final

from pilotlight_predictor.repository.document import ConfigDocument, Path, Values
from pilotlight_predictor.repository.names import stays_inside

_PAIRS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_IDS: Final = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_PATH: Final[Path] = ("sequence_batching",)


def check_sequences(document: ConfigDocument) -> None:
    batching = document.values.get("sequence_batching", {})
    slots = batching.get("direct", {}).get("minimum_slot_utilization", 0.0)
    if not 0.0 <= slots <= 1.0:
        raise document.failure((*_PATH, "direct", "minimum_slot_utilization"), f"= {slots}, must be from 0 to 1")
    candidates = batching.get("oldest", {}).get("max_candidate_sequences", 0)
    if candidates < 0:
        raise document.failure((*_PATH, "oldest", "max_candidate_sequences"), f"= {candidates}, must be 0 or more")
    if batching.get("iterative_sequence"):
        raise document.failure((*_PATH, "iterative_sequence"), "= true is not served; remove it")
    _check_controls(document, batching)
    for index, state in enumerate(batching.get("state", [])):
        _check_state(document, state, (*_PATH, "state", index))


def _check_controls(document: ConfigDocument, batching: Values) -> None:
    seen: set[str] = set()
    for index, tensor in enumerate(batching.get("control_input", [])):
        path: Path = (*_PATH, "control_input", index)
        if not tensor.get("name"):
            raise document.failure(path, "has no name; add that of the model's input")
        if len(tensor.get("control", [])) != 1:
            raise document.failure(path, f"has {len(tensor.get('control', []))} controls; an input takes exactly one")
        (control,) = tensor["control"]
        kind = control.get("kind", "CONTROL_SEQUENCE_START")
        place = (*path, "control", 0)
        if kind in seen:
            raise document.failure(place, f"is a second {kind}; a kind may be given once")
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
        filename = each.get("data_file", "file")
        if not stays_inside(filename):
            place = (*path, "initial_state", 0, "data_file")
            raise document.failure(place, f"= {filename!r}, must be a path inside <model>/initial_state")
        if any(dim < 1 for dim in each.get("dims", [])):
            raise document.failure((*path, "initial_state", 0, "dims"), "must be of numbers from 1 upwards")
