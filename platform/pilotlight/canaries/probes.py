"""Probes: synthetic requests to a variant of a canary with too little traffic, by repeating its example request.

The responses count in the metrics of the service, so that the next measurement includes them. The stable revision gets
the example first: if it cannot answer it, the example says nothing about the canary.
"""

import json
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.spec.canary_policy import request_path, zero_request
from pilotlight.targets.target import RevisionStatus, ServiceStatus, Target
from pilotlight.wire.http_client import FAILURES, MAX_RESPONSE_BYTES, HttpClient, decode_json

REFUSED: Final = 400
NO_DATA_OPTIONS: Final = "--on-no-data pause|fail|pass"
RESPONSE_TIMEOUT_S: Final = 10.0
MAX_ROUND_S: Final = 20.0  # of one round, without its last response: the lease must be renewed in time
COMPLETION: Final = {"prompt": "Hello", "max_tokens": 8}  # of language models, beside the model
HEADERS: Final = {"content-type": "application/json", "user-agent": "pilotlight-canary"}


class Deadline(NamedTuple):
    """Deadline of one round: check of the example, and probes of both variants."""

    at: float
    clock: Callable[[], float]

    @classmethod
    def of_round(cls, clock: Callable[[], float]) -> "Deadline":
        return cls(clock() + MAX_ROUND_S, clock)

    def left(self) -> float:
        return self.at - self.clock()

    def part(self, variants: int) -> "Deadline":
        """Return the share of one of the remaining variants, so that a slow one leaves time for the other."""
        return self._replace(at=self.clock() + self.left() / variants)


def example_error(
    target: Target, status: ServiceStatus, stable: RevisionStatus, example: str, deadline: Deadline
) -> str:
    """Return why the stable revision rejects the example; empty if it accepts it or does not respond."""
    try:
        code = max(send_probes(target, status, stable, example, 1, deadline), default=0)
    except PlatformError:
        return ""
    if code < REFUSED:
        return ""
    request = "the example" if example else "the default request"
    problem = f"{stable.name}, which is serving, responds with {code} to {request}, so it cannot be used as a probe"
    fix = f"set a valid one with --example, send requests to {status.name}, or choose {NO_DATA_OPTIONS}"
    return f"{problem}; {fix}"


def send_probes(
    target: Target, status: ServiceStatus, revision: RevisionStatus, example: str, count: int, deadline: Deadline
) -> list[int]:
    """Send requests; return the status codes, 0 without a response. Raise PlatformError if none can be sent."""
    codes: list[int] = []
    if deadline.left() <= 0:
        return codes
    in_cluster = f"http://{revision.workload}.{status.namespace}.svc.cluster.local"
    with (
        target.open_route(replace(status, url=revision.url or in_cluster)) as route,
        HttpClient(
            route.url, RESPONSE_TIMEOUT_S, {**HEADERS, **route.headers}, MAX_RESPONSE_BYTES, RESPONSE_TIMEOUT_S
        ) as client,
    ):
        body = example or _default_request(client, status, revision)
        path = request_path(json.loads(body), status.name)
        while len(codes) < count and deadline.left() > 0:
            codes.append(_request(client, "POST", path, body.encode())[0])
    return codes


def _default_request(client: HttpClient, status: ServiceStatus, revision: RevisionStatus) -> str:
    """Return a short completion for a language model, else zeros in the shapes of the V2 metadata."""
    path = f"/v2/models/{quote(status.name, safe='')}"
    code, metadata = _request(client, "GET", path)
    try:
        described = decode_json(metadata) if code == 200 else {}
        if code != 200 or any(each["name"] == "text_input" for each in described.get("inputs") or ()):
            listed, models = _request(client, "GET", "/v1/models")
            if listed == 200 and (models := decode_json(models).get("data")):
                return json.dumps({"model": models[0]["id"], **COMPLETION})
        if code != 200:
            message = f"{revision.name} has no metadata (GET {path} returned {code}), so no probe can be built"
            raise PlatformError(message, f"set --example, send requests to it, or choose {NO_DATA_OPTIONS}")
        return json.dumps(zero_request(described))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise PlatformError(f"{revision.name} has unreadable metadata: {error}") from error


def _request(client: HttpClient, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Return status and body, status 0 without a response; a lost response does not stop the round."""
    try:
        reply = client.request(method, path, body)
    except FAILURES:
        return 0, b""
    return reply.status, reply.body
