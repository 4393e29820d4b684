"""Sampling parameters of text generation: parsing and validation for every protocol. Pure.

Used by the OpenAI protocol and V2's `sampling_parameters`, for the text backend. Names and ranges are OpenAI's, with
`top_k` and `ignore_eos` added.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pilotlight_predictor.errors import BadRequest

MAX_BIASES: Final = 1024  # each is added at every token
MAX_STOPS: Final = 16
MAX_SEED: Final = 2**63 - 1
MIN_TEMPERATURE: Final = 1e-6  # below it, scores overflow; only the best token would have a probability anyway


class BadField(BadRequest):
    """Invalid field; `field` is its name, for protocols that report it separately from the message."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. `max_tokens` 0: up to the context's length; `logprobs` -1: none."""

    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = {}
    logprobs: int = -1
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE or self.top_k == 1

    @property
    def plain(self) -> bool:
        """Whether sampling is a plain argmax without log probabilities: computed for a whole batch at once."""
        return self.greedy and not (
            self.presence_penalty or self.frequency_penalty or self.logit_bias or self.logprobs >= 0
        )


def read_sampling(parameters: Mapping[str, Any], default_max_tokens: int = 0, prefix: str = "") -> SamplingParameters:
    """Validate parameters. Raises BadField; `prefix`: put before a field's name in errors ("sampling_parameters.")."""
    read: dict[str, Any] = {"max_tokens": default_max_tokens}
    for name, value in parameters.items():
        if name not in _READERS:
            raise BadField(name, f"{prefix}{name} is not known, must be one of {', '.join(_READERS)}")
        if value is None:
            continue
        must, reader = _READERS[name]
        try:
            read[name] = reader(value)
        except (AttributeError, TypeError, ValueError, OverflowError):
            plain = isinstance(value, str | int | float | bool | list)
            text = msgspec.json.encode(value).decode() if plain else "an object"
            shown = text if len(text) <= 60 else text[:57] + "…"
            raise BadField(name, f"{prefix}{name} = {shown}, must be {must}") from None
    return SamplingParameters(**read)


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or int(value) != value or not least <= value <= most:
            raise ValueError
        return int(value)

    return read


def _number(least: float, most: float, *, above: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool | str) or not least <= value <= most or (above and value == least):
            raise ValueError
        return float(value)

    return read


def _stops(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str | list | tuple):
        raise ValueError
    stops = (value,) if isinstance(value, str) else tuple(value)
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError
    return stops


def _bias(value: Any) -> Mapping[int, float]:
    read = _number(-100, 100)
    if len(value) > MAX_BIASES:
        raise ValueError
    return {_integer(0, 2**31)(int(token)): read(bias) for token, bias in value.items()}


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


_READERS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "max_tokens": ("a whole number of 1 or greater", _integer(1, 2**31 - 1)),
    "temperature": ("a number from 0 to 2", _number(0, 2)),
    "top_p": ("a number above 0, at most 1", _number(0, 1, above=True)),
    "top_k": ("a whole number; 0 is all tokens", _integer(0, 2**31 - 1)),
    "n": ("a whole number from 1 to 128", _integer(1, 128)),
    "seed": (f"a whole number from {-MAX_SEED} to {MAX_SEED}", _integer(-MAX_SEED, MAX_SEED)),
    "stop": (f"a string or a list of at most {MAX_STOPS} strings, none of them empty", _stops),
    "presence_penalty": ("a number from -2 to 2", _number(-2, 2)),
    "frequency_penalty": ("a number from -2 to 2", _number(-2, 2)),
    "logit_bias": (f"an object of at most {MAX_BIASES} token numbers and biases from -100 to 100", _bias),
    "logprobs": ("a whole number from 0 to 20", _integer(0, 20)),
    "ignore_eos": ("true or false", _flag),
}
