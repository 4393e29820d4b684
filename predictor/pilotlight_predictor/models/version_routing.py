"""Version routing: labels such as v1.2.0 for version numbers, and traffic weights of an A/B test.

Used by protocols without a version in their path, for each request. A key "model/label" applies to one model, a key
without "/" to all.
"""

from collections.abc import Collection, Mapping
from itertools import count
from typing import Final

from pilotlight_predictor.config.setting_definitions import ModelSettings
from pilotlight_predictor.config.value_types import weights_by_model
from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.errors import NotFound
from pilotlight_predictor.observability.logs import log

LATEST: Final = "latest"
_GOLDEN: Final = 0.6180339887498949  # its multiples are evenly spread over [0, 1): weights hold over few requests too


class VersionRouter:
    """Router of requests to versions, by label or by weight."""

    def __init__(self, settings: ModelSettings) -> None:
        self._labels = dict(settings.version_labels)
        if settings.version != LATEST and not settings.version.isdigit():
            self._labels.setdefault(settings.version, 1)  # a file without versions is served as version 1
        self._shares = weights_by_model(settings.version_weights)
        self._counter = count(1)
        self._warned: set[tuple[str, str]] = set()

    def number(self, model: str, text: str) -> int:
        """Return the version number of a label or number. Raises NotFound with the known labels."""
        labelled = self._labels.get(f"{model}/{text}", self._labels.get(text))
        if labelled is not None:
            return labelled
        if not text or text == LATEST:
            return NEWEST
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
        known = dict.fromkeys([*self._names(model), LATEST])
        raise NotFound(f"model_version = '{text[:60]}' is not found, must be a number or one of {', '.join(known)}")

    def label(self, model: str, version: int) -> str:
        """Return the first label of a version, else its number."""
        return next((name for name, number in self._names(model).items() if number == version), str(version))

    def is_weighted(self, model: str) -> bool:
        return model in self._shares or "" in self._shares

    def choose(self, model: str, ready: Collection[int], key: str) -> int:
        """Choose one of the `ready` versions by weight; equal keys get the same one while it is ready."""
        shares = self._shares.get(model) or self._shares.get("", {})
        weights = {self.number(model, text): weight for text, weight in shares.items()}
        if key:
            from hashlib import blake2b  # not needed at start

            digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
            point = int.from_bytes(digest, "big") / 2**64
        else:
            point = next(self._counter) * _GOLDEN % 1
        chosen = _version_at(weights, point)
        for absent in [text for text in shares if self.number(model, text) not in ready]:
            if (model, absent) not in self._warned:
                self._warned.add((model, absent))
                message = f"'{model}' has traffic for version {absent}, which is not ready: the other versions get it"
                log("model.share_absent", message, level="WARNING", model=model)
        if chosen in ready:
            return chosen
        return _version_at({version: weight for version, weight in weights.items() if version in ready}, point)

    def _names(self, model: str) -> dict[str, int]:
        own = {key.partition("/")[2]: number for key, number in self._labels.items() if key.startswith(f"{model}/")}
        return own | {key: number for key, number in self._labels.items() if "/" not in key and key not in own}


def _version_at(weights: Mapping[int, float], point: float) -> int:
    """Return the version whose weight covers `point` of [0, 1); the newest if there are no weights."""
    left = point * sum(weights.values())
    for version, weight in weights.items():
        left -= weight
        if left < 0:
            return version
    return NEWEST
