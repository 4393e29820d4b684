"""Queries of a Prometheus server, for canaries, the local autoscaler, dashboards and checks of an address.

`query_prometheus` takes any `requests` session and needs the client library (extra `prometheus`); `instant_query` needs
the standard library only. Both return `Sample`, raise QueryFailed and block: async callers use a thread.
"""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.target import Sample
from pilotlight.wire.environments.install_command import install_command

if TYPE_CHECKING:
    from requests import Session

Json = Any
RangeValues = dict[int, float]
TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 1 << 20


class QueryFailed(PlatformError):
    """No usable response. The fallback of a scaling trigger counts these."""


def query_prometheus(url: str, promql: str, session: "Session | None" = None) -> list[Sample]:
    """Return every element of the result. The default session ignores the environment's proxies."""
    try:
        from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
        from requests import Session
        from requests.exceptions import RequestException
        from urllib3.util import Retry
    except ModuleNotFoundError as error:
        hint = install_command("prometheus")
        raise PlatformError(f"the Prometheus client library is not installed: {hint}", hint) from error
    if session is None:
        session = Session()
        session.trust_env = False
    try:
        with PrometheusConnect(url, retry=Retry(total=0), session=session, timeout=TIMEOUT_S) as client:
            return _samples(client.custom_query(promql))
    except PrometheusApiClientException as error:
        message = " ".join(str(error).split())[:300]  # `HTTP Status Code 400 (b'{"error": …}')`, on one line
        raise QueryFailed(f"Prometheus at {url} rejected the query: {message}") from error
    except (RequestException, ValueError, KeyError) as error:
        raise QueryFailed(f"Prometheus at {url} cannot be queried: {error}", "is its address right?") from error


def instant_query(url: str, promql: str, at: float = 0.0) -> list[Sample]:
    """Return every element of the result at a Unix time; 0: the server's own time."""
    status, document = _post(url, "query", {"query": promql, **({"time": f"{at:.3f}"} if at else {})})
    return decode(url, document, status)


def range_query(url: str, promql: str, start: int, end: int, step: int) -> list[tuple[dict[str, str], RangeValues]]:
    """Return labels and finite values by Unix time of every series, at each step of the range."""
    form = {"query": promql, "start": str(start), "end": str(end), "step": str(step)}
    status, document = _post(url, "query_range", form)
    try:
        if document["status"] != "success":
            raise QueryFailed(f"Prometheus at {url} rejected the query: {document.get('error', status)}")
        return [
            (each["metric"], {int(at): float(value) for at, value in each["values"] if math.isfinite(float(value))})
            for each in document["data"]["result"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise QueryFailed(f"Prometheus at {url} returned {status} without a result") from error


def _post(url: str, path: str, fields: Mapping[str, str]) -> tuple[int, Json]:
    """Return status and JSON body of a query. Raise QueryFailed without one."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import urlencode
    from urllib.request import ProxyHandler, build_opener

    form = urlencode(fields).encode()
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/api/v1/{path}", form, TIMEOUT_S) as response:
            status, body = response.status, response.read(MAX_RESPONSE_BYTES)
    except HTTPError as error:
        status, body = error.code, error.read(MAX_RESPONSE_BYTES)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", "") or error or type(error).__name__
        raise QueryFailed(f"Prometheus at {url} cannot be reached: {reason}") from error
    try:
        return status, json.loads(body)
    except ValueError as error:
        raise QueryFailed(f"Prometheus at {url} returned {status} without a result") from error


def query_number(url: str, promql: str, at: float = 0.0) -> float | None:
    """Return the only element of the result; None without one. Raise QueryFailed for several."""
    samples = instant_query(url, promql, at)
    if len(samples) > 1:
        raise QueryFailed(f"Prometheus at {url} returned {len(samples)} series; the query must return one number")
    return samples[0].value if samples else None


def unavailable_reason(url: str) -> str:
    """Return why the URL serves no queries; empty if it does."""
    try:
        instant_query(url, "1")
    except QueryFailed as error:
        cause = error.__cause__
        return str(getattr(cause, "reason", "") or cause) if isinstance(cause, OSError) else "not a Prometheus"
    return ""


def decode(url: str, document: Json, status: int = 200) -> list[Sample]:
    """Return the samples of a response. Raise QueryFailed for an error, and for a matrix, which is not instant."""
    try:
        if document["status"] != "success":
            raise QueryFailed(f"Prometheus at {url} rejected the query: {document.get('error', status)}")
        kind, result = document["data"]["resultType"], document["data"]["result"]
        if kind not in ("scalar", "vector"):
            raise QueryFailed(f"Prometheus at {url} returned a {kind}; the query must return one number")
        return _samples(result)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise QueryFailed(f"Prometheus at {url} returned {status} without a result") from error


def _samples(result: Json) -> list[Sample]:
    """Return the samples of a vector or a scalar, which is `[time, "value"]`."""
    if len(result) == 2 and isinstance(result[1], str):
        return [Sample({}, float(result[1]), float(result[0]))]
    samples = []
    for each in result:
        labels = {name: value for name, value in each["metric"].items() if name != "__name__"}
        samples.append(Sample(labels, float(each["value"][1]), float(each["value"][0])))
    return samples
