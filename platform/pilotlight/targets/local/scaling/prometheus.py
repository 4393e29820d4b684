"""Instant queries of triggers to a Prometheus server, used when an address is configured."""

from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError

if TYPE_CHECKING:
    from aiohttp import ClientSession

Json = Any
TIMEOUT_S: Final = 5.0
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
