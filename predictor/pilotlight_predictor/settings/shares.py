"""Version labels (`v1.2.0=3`) and traffic weights (`v1.2.0=90`, `iris/v1.2.0=90`): value kinds and validation."""

import re
from collections.abc import Iterator, Mapping

from pilotlight_predictor.settings.kinds import ValueKind

TOTAL = 100.0
# Not compiled at import: few servers have labels, and every start would pay for it.
_LABEL = r"(?:[^/=]+/)?[^/=\s]*[^/=\s\d][^/=\s]*"
_VERSION = r"(?:[^/=]+/)?[^/=\s]+"


def weights_by_model(weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Group weights of "model/version" by model; those of every model are under the empty name."""
    by_model: dict[str, dict[str, float]] = {}
    for key, weight in weights.items():
        model, _, version = key.rpartition("/")
        by_model.setdefault(model, {})[version] = weight
    return by_model


def check_weights(weights: Mapping[str, float], labels: Mapping[str, int]) -> Iterator[str]:
    """Yield problems: a model's weights must add up to 100, and their versions must be numbers or known labels."""
    for model, versions in weights_by_model(weights).items():
        total = sum(versions.values())
        if abs(total - TOTAL) > 1e-6:
            values = ", ".join(f"{version}={weight:g}" for version, weight in versions.items())
            owner = f" of '{model}'" if model else ""
            yield f"model.version_weights{owner} = {values}, must be 100 together, not {total:g}"
        for version in versions:
            if not version.isdigit() and version not in labels and f"{model}/{version}" not in labels:
                yield f"model.version_weights = {version}, must be a number or a label given with --version-label"


def _label(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not re.fullmatch(_LABEL, name) or not re.fullmatch(r"[0-9]{1,18}", number):
        raise ValueError
    return name, int(number)


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    weight = float(number)
    if not re.fullmatch(_VERSION, name) or not 0 <= weight <= TOTAL:
        raise ValueError
    return name, weight


LABELS = ValueKind("[MODEL/]LABEL=N", "a label that is no number, = and the number of a version", _label, "map")
WEIGHTS = ValueKind(
    "[MODEL/]VERSION=PERCENT", "a version's number or label, = and a percentage from 0 to 100", _weight, "map"
)
