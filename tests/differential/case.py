"""One request of the comparison: what is sent, and the name that docs/how-to/migrate-triton.md may use for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HttpCase:
    """A body that is not bytes is sent as JSON. `kinds_only`: numbers in the answer are compared by kind."""

    name: str
    method: str
    path: str
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    kinds_only: bool = False


@dataclass(frozen=True, slots=True)
class RpcCase:
    """A call of GRPCInferenceService; `request` is the message's fields as protobuf's JSON form has them."""

    name: str
    method: str
    request: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    kinds_only: bool = False
