"""The request that probes repeat: the one that a policy gives, or zeros by what the model says that it takes.

Written as the body alone; its first known key tells the dialect, and with it the path.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import Any, Final
from urllib.parse import quote

from pilotlight.errors import UsageError
from pilotlight.spec.types import shown

Json = Any
MOST_BYTES: Final = 65_536  # it is kept with the canary, in an object of the cluster
PATHS: Final = {
    "inputs": "/v2/models/{model}/infer",
    "instances": "/v1/models/{model}:predict",
    "messages": "/openai/v1/chat/completions",
    "prompt": "/openai/v1/completions",
    "input": "/openai/v1/embeddings",
}


def read_example(key: str, value: Json) -> str:
    """A map, or its JSON, as a policy keeps it."""
    body = value
    if isinstance(value, str):
        try:
            body = json.loads(value)
        except ValueError as error:
            raise UsageError(f"{key} is no JSON: {error}") from None
    if not isinstance(body, Mapping) or not PATHS.keys() & body.keys():
        raise UsageError(f"{key} is {shown(value)}, must be the body of a request, with one of {', '.join(PATHS)}")
    text = json.dumps(body)
    if len(text) > MOST_BYTES:
        raise UsageError(f"{key} has {len(text)} bytes, must have {MOST_BYTES} at most")
    return text


def path_of(body: Mapping[str, Json], model: str) -> str:
    known = next(key for key in PATHS if key in body)
    return PATHS[known].format(model=quote(model, safe=""))


def zeros(metadata: Mapping[str, Json]) -> dict[str, Json]:
    """A V2 request of zeros and empty strings, one element where a size is free."""
    return {"inputs": [_zeros(each) for each in metadata.get("inputs") or ()]}


def _zeros(tensor: Mapping[str, Json]) -> dict[str, Json]:
    shape = [max(1, int(size)) for size in tensor.get("shape") or (1,)]
    datatype = str(tensor["datatype"])
    value: Json = "" if datatype == "BYTES" else False if datatype == "BOOL" else 0
    return {"name": tensor["name"], "datatype": datatype, "shape": shape, "data": [value] * prod(shape)}
