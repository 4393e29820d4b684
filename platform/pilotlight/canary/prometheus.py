"""Asks a real Prometheus, through the client library that its users know. Blocks: asked in a thread.

Its answers and its ways to fail become `Sample` and PlatformError, as everywhere else.
"""

import importlib.util
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.target import Sample

if TYPE_CHECKING:
    from requests import Session

Json = Any
TIMEOUT_S: Final = 5.0
LONGEST: Final = 1 << 16
CLIENT: Final = "prometheus_api_client"
INSTALL: Final = "pip install 'pilotlight[prometheus]'"


def ask(url: str, promql: str, session: "Session | None" = None) -> list[Sample]:
    """Every element of an instant query's answer; none where nothing was found."""
    try:
        from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
        from requests.exceptions import RequestException
        from urllib3.util import Retry
    except ModuleNotFoundError as error:
        raise PlatformError(f"the client library of Prometheus is not installed: {INSTALL}", INSTALL) from error
    given = {"retry": Retry(total=0), "session": session or _session(), "timeout": TIMEOUT_S}
    try:
        with PrometheusConnect(url, **given) as client:
            found: Json = client.custom_query(promql)
    except PrometheusApiClientException as error:
        raise PlatformError(f"Prometheus at {url} refused the query: {_said(error)}") from error
    except (RequestException, ValueError, KeyError) as error:
        raise PlatformError(f"Prometheus at {url} cannot be asked: {error}", "is its address right?") from error
    return _samples(found)


def installed() -> bool:
    """Whether the client library is there, without its import."""
    return importlib.util.find_spec(CLIENT) is not None


def silent(url: str) -> str:
    """Why nothing that answers queries is at this address; empty where it does. Needs no client library."""
    import http.client
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/api/v1/query?query=1", timeout=TIMEOUT_S) as reply:
            found = json.loads(reply.read(LONGEST))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", "") or error)
    return "" if isinstance(found, dict) and found.get("status") == "success" else "it is no Prometheus"


def _session() -> "Session":
    """Without the proxies of the environment: a Prometheus is near."""
    from requests import Session

    made = Session()
    made.trust_env = False
    return made


def _samples(found: Json) -> list[Sample]:
    """A vector; a scalar is `[time, "value"]`."""
    if len(found) == 2 and isinstance(found[1], str):
        return [Sample({}, float(found[1]), float(found[0]))]
    return [Sample(_labels(each["metric"]), float(each["value"][1]), float(each["value"][0])) for each in found]


def _labels(metric: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in metric.items() if name != "__name__"}


def _said(error: Exception) -> str:
    """`HTTP Status Code 400 (b'{"error": …}')` as one short sentence."""
    return " ".join(str(error).split())[:300]
