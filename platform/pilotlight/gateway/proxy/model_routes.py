"""Names of the models behind `/v1` of a routing table, OpenAI's list of them, and OpenAI's form of errors.

A route has its models by the annotation `pilotlight.dev/model-names`; its engine knows the first of them. Each adapter
of the route is a model of its own, whose requests may be split between two of the engine's names. Outside the
namespace `default` a name begins with the namespace, so that no tenant can take over a name: `team/llama`.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from pilotlight.gateway.proxy.responses import METHOD_NOT_ALLOWED, NO_ROUTE, ErrorResponse
from pilotlight.gateway.routing_table import (
    DEFAULT_NAMESPACE,
    Route,
    RouteAdapter,
    RouteKey,
    SmoothWeightedRoundRobin,
    origin_form,
)
from pilotlight.k8s.names import ANNOTATION_MODEL_NAMES
from pilotlight.wire.messages import COMPARED, known_names

PATH: Final = "/v1/models"
SHOWN, SHOWN_NAME = 20, 200  # names in a message, characters of a name
CREATED: Final = int(time.time())  # the field is required; services have no such time here
TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES: Final = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
ROUTES: Final = (  # below /v1, of all that name a model
    "/chat/completions", "/completions", "/responses", "/embeddings", "/rerank", "/score", "/messages",
)  # fmt: skip
OPENAI_PATHS: Final = ("/chat/completions", "/completions", "/responses", "/embeddings", "/v1/models")
BELOW_V1: Final = frozenset({"chat", "completions", "responses", "embeddings", "models"})  # of a base URL without /v1
ADDRESS: Final = "use /{namespace}/{service}/… or, in the namespace default, /{service}/…"


class ModelMatch(NamedTuple):
    """Route of a model; `tag` is a tag or revision ("": by weight), `engine_name` what the engine calls it."""

    key: RouteKey
    tag: str
    engine_name: str
    adapter: RouteAdapter | None = None
    fields: str = ""  # JSON that the request gets beside the model


class ModelRoutes:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[str, tuple[Route, str]] = {}  # by the name at `/v1`; the name without a namespace
        self._adapters: dict[tuple[RouteKey, str], AdapterSplit] = {}
        named = [(index, name, route) for route in routes for index, name in enumerate(route.models)]
        named += [(1, each.name, route) for route in routes for each in route.adapters]
        # A model's own name beats another's alias; else the service that is first by its name has it.
        for _, name, route in sorted(named, key=lambda each: (each[0], each[2].name)):
            self._routes.setdefault(_prefix(route) + name, (route, name))
            if name not in route.models:
                self._adapters.setdefault((_key(route), name), AdapterSplit(route, name))

    def find(self, name: str) -> ModelMatch | None:
        """Return the match of a name such as `llama`, `team/llama` or `llama@canary`."""
        found = next((each for each in _spellings(name, DEFAULT_NAMESPACE) if each[0] in self._routes), None)
        return self._match(*self._routes[found[0]], found[1]) if found else None

    def find_at(self, route: Route, name: str) -> ModelMatch:
        """Return the match of a name at a route's own address, where it needs no namespace."""
        for known, tag in _spellings(name, route.namespace):
            if known in route.models or (_key(route), known) in self._adapters:
                return self._match(route, known, tag)
        # No model, or a name that its engine knows, such as an adapter's version, or refuses.
        adapter = next((each for each in route.adapters if each.model == name and not each.fields), None)
        return ModelMatch(_key(route), "", name, adapter, base_fields(route))

    def _match(self, route: Route, name: str, tag: str) -> ModelMatch:
        split = self._adapters.get((_key(route), name))
        if split is None:
            return ModelMatch(_key(route), tag, route.models[0], fields=base_fields(route))
        adapter = split.choose(tag)
        return ModelMatch(_key(route), "" if adapter.model == tag else tag, adapter.model, adapter, adapter.fields)

    def only(self, names: Iterable[str]) -> ModelMatch | None:
        """Return the model that all the names lead to, adapters aside; None if there are several, or none."""
        matches = {self.find(name) for name in names if self._routes[name][1] in self._routes[name][0].models}
        return matches.pop() if len(matches) == 1 else None

    def parent(self, name: str) -> str:
        """Return the base model of an adapter; empty: it is no adapter, or its base model is hidden."""
        route, own = self._routes[name]
        return _prefix(route) + route.models[0] if route.models and own not in route.models else ""

    def failed(self, name: str) -> bool:
        """Whether the first start of a model's service has failed."""
        return self._routes[name][0].failed

    def names(self, allowed: Callable[[Route], bool]) -> list[str]:
        """Return the names that a client may call."""
        return sorted(name for name, (route, _) in self._routes.items() if allowed(route))


def _spellings(name: str, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield what a name may mean, with a tag, at an address that needs no namespace."""
    for whole in (name, name.removeprefix(f"{namespace}/")):
        yield from ((whole, ""), (whole.rpartition("@")[0], whole.rpartition("@")[2]))


def _key(route: Route) -> RouteKey:
    return (route.namespace, route.name)


def _prefix(route: Route) -> str:
    return "" if route.namespace == DEFAULT_NAMESPACE else f"{route.namespace}/"


def base_fields(route: Route) -> str:
    """Return the JSON that requests for the base model get, so that no adapter is applied to them."""
    return next((each.base_fields for each in route.adapters), "")


class AdapterSplit:
    """Adapters of one name and route: which of them gets the next request."""

    def __init__(self, route: Route, name: str) -> None:
        self._by_model = {each.model: each for each in route.adapters if each.name == name}
        self._scheduler = SmoothWeightedRoundRobin({each.model: each.percent for each in self._by_model.values()})

    def choose(self, model: str = "") -> RouteAdapter:
        """Return the adapter that the engine calls `model`, else one by weight."""
        chosen = self._by_model.get(model)
        return chosen or self._by_model.get(self._scheduler.next() or "") or next(iter(self._by_model.values()))


def model_object(name: str, parent: str = "") -> dict[str, Any]:
    model = {"id": name, "object": "model", "created": CREATED, "owned_by": "pilotlight"}
    return {**model, "parent": parent} if parent else model


def service_keys(name: str) -> Iterator[RouteKey]:
    """Yield the services that a model's name may mean, such as one that is not listed."""
    for known, _ in _spellings(name, DEFAULT_NAMESPACE):
        namespace, _, service = known.rpartition("/")
        yield (namespace or DEFAULT_NAMESPACE, service)


def unknown_model(name: str, names: Sequence[str], service: Route | None = None) -> ErrorResponse:
    """Return the error for a model of that name, with the way to the service of that name, if the client may use it."""
    subject = f"model {name[:SHOWN_NAME]!r}"
    if service is None:
        message = f"{subject} does not exist{known_names(name, names, f'GET {PATH} lists the models')}"
    elif service.models:
        models = ", ".join(_prefix(service) + each for each in service.models)
        message = f"{subject} does not exist; the service of this name has {models}"
    else:
        path = f"/{_prefix(service)}{service.name}/…"
        message = f"{subject} is not listed at /v1: use {path}, or list it by the annotation {ANNOTATION_MODEL_NAMES}"
    return openai_error(ErrorResponse(404, message), "model")


def not_allowed(path: str) -> ErrorResponse:
    """Return the error of another method than GET; of a V1 call with the path below the name of its service."""
    model, verb, _ = path.removeprefix(f"{PATH}/").partition(":")
    if not verb:
        return METHOD_NOT_ALLOWED
    message = f"{METHOD_NOT_ALLOWED.message}; did you mean /{model[:100]}{path[:200]}?"
    return METHOD_NOT_ALLOWED._replace(message=message)


def unknown_route(method: str, path: str) -> ErrorResponse:
    """Return the error for a request that names no model, where `/v1` has no route."""
    routes = ", ".join(f"/v1{each}" for each in ROUTES)
    message = f"{method} {path[:SHOWN_NAME]}: no such route; there are GET {PATH} and POST {routes}"
    return openai_error(ErrorResponse(404, f"{message}; other routes of an engine need model in the body"), codes={})


def unknown_service(target: str, routes: Iterable[Route]) -> ErrorResponse:
    """Return the error for a path without a service, in OpenAI's form for its clients; `routes` of the caller."""
    path = origin_form(target, "")[0].partition("?")[0]
    _, first, second, *_ = f"{path}//".split("/")
    if first in BELOW_V1:
        hint = f"; did you mean /v1{path[:SHOWN_NAME]}? A base_url must end in /v1"
    else:
        keys = [(each.namespace, each.name) for each in islice(routes, COMPARED)]
        name = f"/{first}/{second}" if any(first == namespace for namespace, _ in keys) else f"/{first}"
        names = [f"/{name}" if namespace == DEFAULT_NAMESPACE else f"/{namespace}/{name}" for namespace, name in keys]
        hint = known_names(name, names, ADDRESS)
    error = ErrorResponse(404, f"{NO_ROUTE.message}{hint}")
    return openai_error(error, codes={}) if path.endswith(OPENAI_PATHS) or first in BELOW_V1 else error


def missing_model(names: Sequence[str], body: bytes = b"") -> ErrorResponse:
    """Return the error for a request without a model, with the reason if its body is no JSON."""
    try:
        json.loads(body or b"{}")
    except RecursionError:
        pass
    except ValueError as error:
        return openai_error(ErrorResponse(400, f"the body is not JSON: {error}; send a JSON object with model"))
    known = ", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])])
    fix = f"must be one of {known}" if names else "and no model is deployed that this client may call"
    return openai_error(ErrorResponse(400, f"model is missing, {fix}"), "model")


def openai_error(error: ErrorResponse, param: str | None = None, codes: Mapping[int, str] = CODES) -> ErrorResponse:
    """Return an error in OpenAI's form, which its clients show; one that an engine has written stays."""
    kind = TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    fields = {"message": error.message, "type": kind, "param": param, "code": codes.get(error.status)}
    return error._replace(body=error.body or json.dumps({"error": fields}, ensure_ascii=False).encode())
