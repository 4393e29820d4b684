"""Asks a real Prometheus for a trigger's value, over its HTTP API: the one edge of scaling that waits for a network.

For queries that promql.py refuses, and wherever an address is given.
"""

from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError

if TYPE_CHECKING:
    from aiohttp import ClientSession

Json = Any
TIMEOUT_S: Final = 5.0
LONGEST: Final = 1 << 20


class ScalerFailed(PlatformError):
    """A trigger's source gave no answer that can be used; the fallback counts these."""


async def ask(server: str, query: str, now: float, session: "ClientSession | None" = None) -> float | None:
    """One number; None for an empty result. `now` is Unix time, as Prometheus keeps it; 0: the server's own."""
    from aiohttp import ClientError, ClientSession, ClientTimeout

    own = session is None
    session = session or ClientSession(trust_env=False)
    form = {"query": query, **({"time": f"{now:.3f}"} if now else {})}
    url = f"{server.rstrip('/')}/api/v1/query"
    try:
        async with session.post(url, data=form, timeout=ClientTimeout(total=TIMEOUT_S)) as reply:
            body = await reply.content.read(LONGEST)
            return _number(server, reply.status, body)
    except (ClientError, OSError, TimeoutError) as wrong:
        raise ScalerFailed(f"Prometheus at {server} cannot be asked: {wrong or type(wrong).__name__}") from wrong
    finally:
        if own:
            await session.close()


def _number(server: str, status: int, body: bytes) -> float | None:
    import orjson

    try:
        answer: Json = orjson.loads(body)
        if answer["status"] != "success":
            raise ScalerFailed(f"Prometheus at {server} refused the query: {answer.get('error', status)}")
        return _result(server, answer["data"])
    except (ValueError, KeyError, TypeError, IndexError) as wrong:
        raise ScalerFailed(f"Prometheus at {server} answered {status} with something else than a result") from wrong


def _result(server: str, data: Json) -> float | None:
    if data["resultType"] == "scalar":
        return float(data["result"][1])
    if data["resultType"] != "vector":
        raise ScalerFailed(
            f"Prometheus at {server} answered with a {data['resultType']}; the query must give one number"
        )
    found = data["result"]
    if len(found) > 1:
        raise ScalerFailed(f"Prometheus at {server} answered with {len(found)} series; the query must give one number")
    return float(found[0]["value"][1]) if found else None
