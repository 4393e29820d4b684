"""Headers that become parameters of a request (`--http-header-forward-pattern`, and the same of gRPC). Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BadRequest

# Parameters that mean something to the server; a header must not become one.
RESERVED: Final = frozenset({
    "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output",
})  # fmt: skip
RESERVED_PREFIX: Final = "triton_"


class HeaderForwarding:
    """Filter of one transport. `pattern` is searched in the name, in any case; an empty one forwards nothing."""

    def __init__(self, pattern: str) -> None:
        self._search = re.compile(pattern, re.IGNORECASE).search if pattern else None

    def __bool__(self) -> bool:
        return self._search is not None

    def forwarded(self, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the headers to forward, with their names as the client wrote them."""
        search = self._search
        return {name: value for name, value in headers if search(name)} if search is not None else {}


def add_headers(request: InferRequest, forwarded: Mapping[str, str]) -> None:
    """Add forwarded headers to the parameters of a request; one of the same name is replaced. Raise BadRequest."""
    if not forwarded:
        return
    for name in forwarded:
        if name in RESERVED or name.startswith(RESERVED_PREFIX):
            raise BadRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    request.parameters = {**request.parameters, **forwarded}
