"""Which version of a model answers: labels such as v1.2.0 that stand for numbers, and shares of an A/B test.

Settings → `VersionChoice`, which dialects without a version in their path ask for each request. A key "model/label"
binds one model, a key without "/" all of them.
"""

from collections.abc import Collection, Mapping
from itertools import count
from typing import Final

from pilotlight_predictor.errors import NotFound
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.logs import log
from pilotlight_predictor.settings.model import ModelSettings
from pilotlight_predictor.settings.shares import shares_by_model

LATEST: Final = "latest"
_GOLDEN: Final = 0.6180339887498949  # its multiples fall evenly into [0, 1): shares hold over few requests too


class VersionChoice:
    def __init__(self, settings: ModelSettings) -> None:
        self._labels = dict(settings.version_labels)
        if settings.version != LATEST and not settings.version.isdigit():
            self._labels.setdefault(settings.version, 1)  # a file without versions is served as its first
        self._shares = shares_by_model(settings.version_weights)
        self._turns = count(1)
        self._told: set[tuple[str, str]] = set()

    def number(self, model: str, text: str) -> int:
        """The version that a client means; raises NotFound with those that have a name."""
        found = self._labels.get(f"{model}/{text}", self._labels.get(text))
        if found is not None:
            return found
        if not text or text == LATEST:
            return NEWEST
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
        known = dict.fromkeys([*self._names(model), LATEST])
        raise NotFound(f"model_version = '{text[:60]}' is not found, must be a number or one of {', '.join(known)}")

    def label(self, model: str, version: int) -> str:
        """How the version is called: by its first label, else by its number."""
        return next((name for name, number in self._names(model).items() if number == version), str(version))

    def shared(self, model: str) -> bool:
        return model in self._shares or "" in self._shares

    def draw(self, model: str, ready: Collection[int], key: str) -> int:
        """One of the `ready` versions by the shares; a key gets the same one as long as that is ready."""
        shares = self._shares.get(model) or self._shares.get("", {})
        weights = {self.number(model, text): weight for text, weight in shares.items()}
        point = _point(key) if key else next(self._turns) * _GOLDEN % 1
        chosen = _at(weights, point)
        self._tell_absent(model, {text for text in shares if self.number(model, text) not in ready})
        if chosen in ready:
            return chosen
        return _at({version: weight for version, weight in weights.items() if version in ready}, point)

    def _tell_absent(self, model: str, versions: set[str]) -> None:
        """Once for each: an experiment without one of its sides should not go unseen."""
        for version in versions - {text for name, text in self._told if name == model}:
            self._told.add((model, version))
            message = f"'{model}' has a share for version {version}, which does not serve: the others take it"
            log("model.share_absent", message, level="WARNING", model=model)

    def _names(self, model: str) -> dict[str, int]:
        own = {key.partition("/")[2]: number for key, number in self._labels.items() if key.startswith(f"{model}/")}
        return own | {key: number for key, number in self._labels.items() if "/" not in key and key not in own}


def _at(weights: Mapping[int, float], point: float) -> int:
    """The version whose share covers `point` of [0, 1); the newest where none has a share."""
    left = point * sum(weights.values())
    for version, weight in weights.items():
        left -= weight
        if left < 0:
            return version
    return NEWEST


def _point(key: str) -> float:
    from hashlib import blake2b  # a start needs no hashes

    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
