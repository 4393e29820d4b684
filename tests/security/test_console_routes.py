"""Routes of the control process, called by strangers and by read-only sessions, over an engine that remembers."""

import re
from collections.abc import Iterator

import pytest
from tests.platform.api.conftest import TOKEN, Served, api
from tests.platform.console.test_routes import Visitor

from pilotlight.control_plane.app import make_app
from pilotlight.targets.target import Release

pytestmark = pytest.mark.security
__all__ = ["api"]  # the fixture
# What a browser needs before it has a session, and scrapes.
PUBLIC = {
    "/", "/healthz", "/metrics", "/metrics/replicas/{replica}", "/api/v1/openapi.json", "/api/v1/docs",
    "/api/v1/docs/{file}", "/console", "/console/", "/console/static/{file}",
}  # fmt: skip
# What a read-only session may send: requests to models, queries, and its logout. A login is open to every page.
HARMLESS = {
    ("DELETE", "/console/api/session"), ("POST", "/console/api/login"), ("POST", "/console/api/v1/query_range"),
    ("POST", "/console/api/v1/namespaces/{namespace}/services/{name}/ask/{path}"),
}  # fmt: skip


def routes(served: Served) -> Iterator[tuple[str, str]]:
    """Method and path of everything that the control process serves."""
    for route in make_app(served.engine, TOKEN, served.drained.append).router.routes():
        assert route.resource is not None
        yield route.method, route.resource.canonical


def path_of(pattern: str, name: str = "iris") -> str:
    return re.sub(r"\{\w+\}", "default", pattern.replace("{path}", "v2/models").replace("{name}", name))


@pytest.fixture
def watcher(api: Served) -> Visitor:
    """A read-only session."""
    visitor = Visitor(api.port)
    assert visitor.enter(api.target.console(read_only=True).ticket) == 200
    return visitor


def test_no_route_answers_a_stranger(api: Served) -> None:
    stranger, found = Visitor(api.port), set(routes(api))
    assert len(found) > 60
    for method, pattern in found:
        if pattern not in PUBLIC and (method, pattern) != ("POST", "/console/api/login"):
            assert stranger.ask(method, path_of(pattern))[0] in (401, 403), (method, pattern)
    assert not api.drained


# A service may be called like the last part of a route.
@pytest.mark.parametrize("name", ["iris", "query", "query_range", "session", "ask"])
def test_a_read_only_session_changes_no_service_whatever_its_name(api: Served, watcher: Visitor, name: str) -> None:
    release = Release("default", name, "", ())
    api.engine.kept["default", name] = [release]
    body = {"namespace": "default", "name": name, "document": "", "manifests": []}
    changing = {(method, pattern) for method, pattern in routes(api) if method not in ("GET", "HEAD")}
    for method, pattern in changing - HARMLESS:
        if pattern.startswith("/console"):
            assert watcher.ask(method, path_of(pattern, name), body)[0] == 403, (method, pattern)
    assert api.engine.kept == {("default", name): [release]}
    assert (api.engine.bounds, api.engine.shares, api.engine.secrets) == ({}, {}, {})


def test_an_instant_query_is_not_for_a_read_only_session(watcher: Visitor) -> None:
    """The control process would store the metrics that it names for as long as its range: here, without end."""
    assert watcher.ask("POST", "/console/api/v1/query", {"query": "max_over_time(up[100y])"})[0] == 403
