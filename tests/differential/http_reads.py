"""HTTP cases that ask what there is: server, models, versions, readiness, configuration, statistics, wrong routes."""

from collections.abc import Iterator
from typing import Final

from tests.differential.case import HttpCase
from tests.differential.models import AT_START

MODELS: Final = (*AT_START, "spare", "unknown")
VERSIONS: Final = ("", "1", "2", "3", "007", "x", "-1", "18446744073709551616")
SUFFIXES: Final = ("", "ready", "config", "stats")
PATHS: Final = {
    "server": "/v2", "server/slash": "/v2/", "live": "/v2/health/live", "ready": "/v2/health/ready",
    "all-stats": "/v2/models/stats", "index": "/v2/repository/index",
    "infer": "/v2/models/add/infer", "model": "/v2/models/add", "load": "/v2/repository/models/add/load",
}  # fmt: skip
ASTRAY: Final = ("/", "/v2/x", "/v3", "/v2/health", "/v2/health/x", "/v2/models", "/v2/models/add/x", "/v2/repository")


def reads() -> Iterator[HttpCase]:
    for name, path in PATHS.items():
        yield HttpCase(f"{name}/get", "GET", path, kinds_only=name == "all-stats")
    for model in MODELS:
        yield from _of_model(model)
    yield HttpCase("model/escaped", "GET", "/v2/models/%61dd")
    yield HttpCase("model/query", "GET", "/v2/models/add?a=b")
    yield HttpCase("model/slash", "GET", "/v2/models/add/")
    for path in ASTRAY:
        yield HttpCase(f"astray{path}", "GET", path)
    for method in ("POST", "PUT", "DELETE"):
        for name in ("server", "live", "model"):
            yield HttpCase(f"method/{name}/{method.lower()}", method, PATHS[name])
    yield HttpCase("method/infer/put", "PUT", PATHS["infer"], {"inputs": []})


def _of_model(model: str) -> Iterator[HttpCase]:
    for version in VERSIONS:
        versioned = f"/versions/{version}" if version else ""
        for suffix in SUFFIXES:
            path = f"/v2/models/{model}{versioned}" + (f"/{suffix}" if suffix else "")
            name = f"{suffix or 'metadata'}/{model}" + (f"/{version}" if version else "")
            yield HttpCase(name, "GET", path, kinds_only=suffix == "stats")
