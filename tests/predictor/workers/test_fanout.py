"""Which calls concern all workers, told by the tables of the dialects themselves."""

import pytest

from pilotlight_predictor.errors import Unsupported
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc import services
from pilotlight_predictor.frontends.http.messages import HttpResponse
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.protocols import serving_protocols
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.workers.fanout import FAN_OUT_METHODS, MERGED, fan_out, fan_out_services, merge_mode
from pilotlight_predictor.workers.parent_channel import ParentChannel

NOBODY: ParentChannel = ParentChannel({}, lambda: None)


def test_every_row_that_is_merged_exists() -> None:
    patterns = {route.pattern for dialect in serving_protocols() for route in dialect.routes}
    assert patterns >= MERGED.keys()


def test_every_method_that_asks_all_exists() -> None:
    assert {method.name for service in services() for method in service.methods} >= FAN_OUT_METHODS.keys()


def test_each_call_that_needs_an_operator_concerns_all() -> None:
    of_operators = [
        route for dialect in serving_protocols() for route in dialect.routes if route.action is Action.ADMIN
    ]
    assert of_operators
    assert all(merge_mode(route) for route in of_operators)


def test_calls_that_take_their_time_are_not_given_up_on() -> None:
    found = {
        merge_mode(route)
        for dialect in serving_protocols()
        for route in dialect.routes
        if "/models/{model}/" in route.pattern
    }
    assert found >= {"load", "unload", "park", "wake"}


def test_with_fronts_what_executions_took_is_known_to_the_model_process() -> None:
    routes = [route for dialect in serving_protocols() for route in dialect.routes]
    changed = {route.pattern for route in routes if merge_mode(route, fronts=True) != merge_mode(route)}
    assert changed == {"/api/status", "/api/status/{model}", "/api/profile"}
    assert {merge_mode(route, fronts=True) for route in routes if route.pattern in changed} == {"models"}


def test_inference_and_health_are_any_ones_own_and_their_rows_stay_as_they_are() -> None:
    for before, after in zip(serving_protocols(), fan_out(serving_protocols(), NOBODY), strict=True):
        hot = [route for route in before.routes if route.action in {Action.INFER, Action.HEALTH}]
        assert set(hot) <= set(after.routes)


@pytest.mark.parametrize("path", ["/v2/systemsharedmemory/region/{name}/register", "/v1/load_lora_adapter"])
def test_shared_memory_and_loads_of_adapters_are_refused(path: str) -> None:
    row = Route("POST", path, lambda *_: HttpResponse(), Action.ADMIN)
    (dialect,) = fan_out((ServingProtocol("x", (row,), error_body),), NOBODY)
    with pytest.raises(Unsupported, match="--workers 1"):
        dialect.routes[0].handler(None, None)  # type: ignore[arg-type]


def test_the_rows_of_grpc_that_ask_nobody_stay_as_they_are() -> None:
    before = {m for service in services() for m in service.methods}
    after = {m for service in fan_out_services(services(), NOBODY) for m in service.methods}
    changed = {method.name for method in before - after}
    assert {name for name in changed if "SharedMemory" not in name} == set(FAN_OUT_METHODS)
    verbs = ("Status", "Register", "Unregister")
    assert {name for name in changed if "SharedMemory" in name} == {
        f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in verbs
    }
