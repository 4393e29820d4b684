"""Instant queries, blocking and async.

Queries of a Prometheus server with prometheus-api-client. Blocks: call it in a thread.

Results become `Sample`, errors PlatformError.

Instant queries of triggers to a Prometheus server, used when an address is configured.
"""

import importlib.util
import json
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.target import Sample

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from requests import Session

Json = Any
TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 1 << 16
CLIENT: Final = "prometheus_api_client"
INSTALL: Final = "pip install 'pilotlight[prometheus]'"


def query_prometheus(url: str, promql: str, session: "Session | None" = None) -> list[Sample]:
    """Return every element of an instant query; empty without results."""
    try:
        from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
        from requests.exceptions import RequestException
        from urllib3.util import Retry
    except ModuleNotFoundError as error:
        raise PlatformError(f"the client library of Prometheus is not installed: {INSTALL}", INSTALL) from error
    options = {"retry": Retry(total=0), "session": session or _session(), "timeout": TIMEOUT_S}
    try:
        with PrometheusConnect(url, **options) as client:
            result: Json = client.custom_query(promql)
    except PrometheusApiClientException as error:
        message = " ".join(str(error).split())[:300]  # `HTTP Status Code 400 (b'{"error": …}')`, on one line
        raise PlatformError(f"Prometheus at {url} refused the query: {message}") from error
    except (RequestException, ValueError, KeyError) as error:
        raise PlatformError(f"Prometheus at {url} cannot be asked: {error}", "is its address right?") from error
    return _samples(result)


def installed() -> bool:
    """Whether the client library is installed, without importing it."""
    return importlib.util.find_spec(CLIENT) is not None


def unavailable_reason(url: str) -> str:
    """Return why the URL answers no queries; empty if it does. Needs no client library."""
    import http.client
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/api/v1/query?query=1", timeout=TIMEOUT_S) as reply:
            body = json.loads(reply.read(MAX_RESPONSE_BYTES))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", "") or error)
    return "" if isinstance(body, dict) and body.get("status") == "success" else "it is no Prometheus"


def _session() -> "Session":
    """Return a session without the proxies of the environment: a Prometheus is nearby."""
    from requests import Session

    session = Session()
    session.trust_env = False
    return session


def _samples(result: Json) -> list[Sample]:
    """Return the samples of a vector or a scalar, which is `[time, "value"]`."""
    if len(result) == 2 and isinstance(result[1], str):
        return [Sample({}, float(result[1]), float(result[0]))]
    samples = []
    for each in result:
        labels = {name: value for name, value in each["metric"].items() if name != "__name__"}
        samples.append(Sample(labels, float(each["value"][1]), float(each["value"][0])))
    return samples


LONGEST: Final = 1 << 20


class ScalerFailed(PlatformError):
    """No usable result from a trigger's source; the fallback counts these."""


async def query(server: str, query: str, now: float, session: "ClientSession | None" = None) -> float | None:
    """Return one number; None for an empty result. `now` is Unix time; 0: the server's own.

    Raise ScalerFailed.
    """
    from aiohttp import ClientError, ClientSession, ClientTimeout

    own = session is None
    session = session or ClientSession(trust_env=False)
    form = {"query": query, **({"time": f"{now:.3f}"} if now else {})}
    url = f"{server.rstrip('/')}/api/v1/query"
    try:
        async with session.post(url, data=form, timeout=ClientTimeout(total=TIMEOUT_S)) as reply:
            body = await reply.content.read(LONGEST)
            return _number(server, reply.status, body)
    except (ClientError, OSError, TimeoutError) as error:
        raise ScalerFailed(f"Prometheus at {server} cannot be asked: {error or type(error).__name__}") from error
    finally:
        if own:
            await session.close()


def _number(server: str, status: int, body: bytes) -> float | None:
    import orjson

    try:
        document: Json = orjson.loads(body)
        if document["status"] != "success":
            raise ScalerFailed(f"Prometheus at {server} refused the query: {document.get('error', status)}")
        return _result(server, document["data"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ScalerFailed(f"Prometheus at {server} answered {status} with something else than a result") from error


def _result(server: str, data: Json) -> float | None:
    if data["resultType"] == "scalar":
        return float(data["result"][1])
    if data["resultType"] != "vector":
        raise ScalerFailed(
            f"Prometheus at {server} answered with a {data['resultType']}; the query must give one number"
        )
    series = data["result"]
    if len(series) > 1:
        raise ScalerFailed(f"Prometheus at {server} answered with {len(series)} series; the query must give one number")
    return float(series[0]["value"][1]) if series else None
