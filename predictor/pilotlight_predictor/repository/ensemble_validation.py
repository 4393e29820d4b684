"""Validation of ensembles, part of `validate`: steps with their maps, and the data flow between them. Pure."""

from collections.abc import Sequence
from typing import Final

from pilotlight_predictor.repository.document import ConfigDocument, Values

_FORBIDDEN: Final = ("instance_group", "optimization", "model_warmup")


def check_ensemble(document: ConfigDocument) -> None:
    values = document.values
    steps = values.get("ensemble_scheduling", {}).get("step", [])
    named = "ensemble" in {values.get("platform"), values.get("backend")}
    if "ensemble_scheduling" not in values:
        if named:
            raise document.failure((), "platform is ensemble, so ensemble_scheduling { step [ … ] } must be given")
        return
    if not named:
        raise document.failure(
            ("ensemble_scheduling",), 'is for ensembles alone; add platform: "ensemble" or remove it'
        )
    for field in _FORBIDDEN:
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
                sentence = f"writes {tensor!r}, which step {writers[tensor]} writes already; a tensor has one writer"
                raise document.failure((*path, "output_map", output), sentence)
            writers[tensor] = index


def _check_flow(document: ConfigDocument, steps: Sequence[Values]) -> None:
    """Check that every step can run and every tensor is used; steps that never get their inputs are unconnected or
    cyclic."""
    inputs = [tensor["name"] for tensor in document.values.get("input", [])]
    outputs = [tensor["name"] for tensor in document.values.get("output", [])]
    read = {tensor for step in steps for tensor in step["input_map"].values()}
    for index, name in enumerate(inputs):
        if name not in read:
            raise document.failure(("input", index), f"{name!r} is not read by any step")
    _check_written(document, steps, _reachable(steps, set(inputs)), outputs)
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
            sentence = f"reads {missing[0]!r}, which no input and no step that can run gives (missing, or in a circle)"
            raise document.failure(path, sentence)
    for index, name in enumerate(outputs):
        if name not in written:
            raise document.failure(("output", index), f"{name!r} is not written by any step")


def _reachable(steps: Sequence[Values], tensors: set[str]) -> set[str]:
    waiting = list(steps)
    while ready := [step for step in waiting if set(step["input_map"].values()) <= tensors]:
        waiting = [step for step in waiting if step not in ready]
        tensors = tensors.union(*(step["output_map"].values() for step in ready))
    return tensors
