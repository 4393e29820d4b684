"""Pins of a component: the URIs that are pinned, and the variable that makes our predictor honour those of stores."""

from collections.abc import Sequence
from typing import Any

from pilotlight.contract import ENV_MODEL_PINS
from pilotlight.k8s.model_pins import ModelPin, decode, encode, is_local
from pilotlight.k8s.names import ANNOTATION_PINS
from pilotlight.plan.component_context import PlanContext

Json = Any


def follows_repository(context: PlanContext) -> bool:
    """Whether the predictor loads what changes in its repository (poll, versions), or what clients name (explicit)."""
    modes = context.predictor_setting("--model-control-mode")
    polls = ("--allow-poll-model-repository", "--model-store")
    return any(mode and mode != "none" for mode in modes) or any(map(context.predictor_setting, polls))


def pins_of(context: PlanContext, uris: Sequence[str]) -> dict[str, ModelPin]:
    """Return the pins of the URIs, as far as they were resolved."""
    pins = decode(context.service.annotations.get(ANNOTATION_PINS, ""))
    return {uri: pins[uri] for uri in uris if uri in pins}


def remote_pins_env(context: PlanContext, *uris: str) -> tuple[dict[str, Json], ...]:
    """Return the variable that makes our predictor refuse other content of a store than the pinned one."""
    remote = pins_of(context, [uri for uri in uris if not is_local(uri)])
    return ({"name": ENV_MODEL_PINS, "value": encode(remote)},) if remote else ()
