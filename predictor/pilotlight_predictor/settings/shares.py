"""Labels and shares of versions as settings write them: `v1.2.0=3`, `v1.2.0=90`, `iris/v1.2.0=90`.

The kinds that read one of them, and the check over all that `parse.py` makes.
"""

import re
from collections.abc import Iterator, Mapping

from pilotlight_predictor.settings.kinds import Kind

WHOLE = 100.0
# Text, not patterns: few starts have labels, and compiling these would be a part of every one.
_LABEL = r"(?:[^/=]+/)?[^/=\s]*[^/=\s\d][^/=\s]*"
_VERSION = r"(?:[^/=]+/)?[^/=\s]+"


def shares_by_model(weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The weights of "model/version" gathered by model; those that bind every model are under the empty name."""
    shares: dict[str, dict[str, float]] = {}
    for key, weight in weights.items():
        model, _, version = key.rpartition("/")
        shares.setdefault(model, {})[version] = weight
    return shares


def wrong_shares(weights: Mapping[str, float], labels: Mapping[str, int]) -> Iterator[str]:
    """Each model's shares are 100 together, and each is of a number or a label that is known."""
    for model, shares in shares_by_model(weights).items():
        total = sum(shares.values())
        if abs(total - WHOLE) > 1e-6:
            told = ", ".join(f"{version}={weight:g}" for version, weight in shares.items())
            whose = f" of '{model}'" if model else ""
            yield f"model.version_weights{whose} = {told}, must be 100 together, not {total:g}"
        for version in shares:
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
    if not re.fullmatch(_VERSION, name) or not 0 <= weight <= WHOLE:
        raise ValueError
    return name, weight


LABELS = Kind("[MODEL/]LABEL=N", "a label that is no number, = and the number of a version", _label, "map")
WEIGHTS = Kind(
    "[MODEL/]VERSION=PERCENT", "a version's number or label, = and a percentage from 0 to 100", _weight, "map"
)
