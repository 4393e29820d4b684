"""Sampling parameters of text generation: parsing and validation for every protocol. Pure.

Used by the OpenAI protocol and V2's `sampling_parameters`, for the text backend. Names and ranges are OpenAI's, with
`top_k` and `ignore_eos` added.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pilotlight_predictor.errors import BadRequest

MAX_BIASES: Final = 1024  # each is added at every token
MAX_STOPS: Final = 16
MAX_SEED: Final = 2**63 - 1
MAX_INT: Final = 2**31 - 1
MIN_TEMPERATURE: Final = 1e-6  # below it, scores overflow; only the best token would have a probability anyway
_Token = Annotated[int, Meta(ge=0, le=2**31)]


class BadField(BadRequest):
    """Invalid field; `field` is its name, for protocols that report it separately from the message."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. `max_tokens` 0: up to the context's length; `logprobs` -1: none."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_INT)] = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=MAX_INT)] = 0
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    seed: Annotated[int, Meta(ge=-MAX_SEED, le=MAX_SEED)] | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=MAX_STOPS)] = ()
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[dict[_Token, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] = {}
    logprobs: Annotated[int, Meta(ge=0, le=20)] = -1
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
    fields: dict[str, Any] = {"max_tokens": default_max_tokens} if default_max_tokens else {}
    for name, value in parameters.items():
        if name not in _MUST:
            raise BadField(name, f"{prefix}{name} is not known, must be one of {', '.join(_MUST)}")
        if name == "stop" and isinstance(value, str):
            fields[name] = [value]
        elif isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:  # 5.0 is a whole number too
            fields[name] = int(value)
        elif value is not None:
            fields[name] = value
    try:
        return msgspec.convert(fields, SamplingParameters, str_keys=True)
    except msgspec.ValidationError as error:
        name = re.findall(r"\$\.(\w+)", str(error))[-1]
        value = parameters[name]
        text = "an object" if isinstance(value, dict) else msgspec.json.encode(value).decode()
        shown = text if len(text) <= 60 else text[:57] + "…"
        raise BadField(name, f"{prefix}{name} = {shown}, must be {_MUST[name]}") from None


_MUST: Final = {
    "max_tokens": "a whole number of 1 or greater",
    "temperature": "a number from 0 to 2",
    "top_p": "a number above 0, at most 1",
    "top_k": "a whole number; 0 is all tokens",
    "n": "a whole number from 1 to 128",
    "seed": f"a whole number from {-MAX_SEED} to {MAX_SEED}",
    "stop": f"a string or a list of at most {MAX_STOPS} strings, none of them empty",
    "presence_penalty": "a number from -2 to 2",
    "frequency_penalty": "a number from -2 to 2",
    "logit_bias": f"an object of at most {MAX_BIASES} token numbers and biases from -100 to 100",
    "logprobs": "a whole number from 0 to 20",
    "ignore_eos": "true or false",
}
