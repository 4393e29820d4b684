"""Request of probes: the example of the policy, or zeros by the metadata of the model.

An example is a request body; its first known key determines the protocol and the path.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import Any, Final
from urllib.parse import quote

from pilotlight.errors import UsageError
from pilotlight.spec.types import display

Json = Any
MAX_EXAMPLE_BYTES: Final = 65_536  # it is stored with the canary in an annotation
PATH_BY_KEY: Final = {
    "inputs": "/v2/models/{model}/infer",
    "instances": "/v1/models/{model}:predict",
    "messages": "/openai/v1/chat/completions",
    "prompt": "/openai/v1/completions",
    "input": "/openai/v1/embeddings",
}


def parse_example(key: str, value: Json) -> str:
    """Return the JSON of a request body, which is a map or its JSON. Raise UsageError."""
    body = value
    if isinstance(value, str):
        try:
            body = json.loads(value)
        except ValueError as error:
            raise UsageError(f"{key} is no JSON: {error}") from None
    if not isinstance(body, Mapping) or not PATH_BY_KEY.keys() & body.keys():
        raise UsageError(
            f"{key} is {display(value)}, must be the body of a request, with one of {', '.join(PATH_BY_KEY)}"
        )
    text = json.dumps(body)
    if len(text) > MAX_EXAMPLE_BYTES:
        raise UsageError(f"{key} has {len(text)} bytes, must have {MAX_EXAMPLE_BYTES} at most")
    return text


def request_path(body: Mapping[str, Json], model: str) -> str:
    known = next(key for key in PATH_BY_KEY if key in body)
    return PATH_BY_KEY[known].format(model=quote(model, safe=""))


def zero_request(metadata: Mapping[str, Json]) -> dict[str, Json]:
    """Return a V2 request of zeros and empty strings, with size 1 for variable dimensions."""
    return {"inputs": [_zeros(each) for each in metadata.get("inputs") or ()]}


def _zeros(tensor: Mapping[str, Json]) -> dict[str, Json]:
    shape = [max(1, int(size)) for size in tensor.get("shape") or (1,)]
    datatype = str(tensor["datatype"])
    value: Json = "" if datatype == "BYTES" else False if datatype == "BOOL" else 0
    return {"name": tensor["name"], "datatype": datatype, "shape": shape, "data": [value] * prod(shape)}
