"""Addresses of a service's other components, as a process on this machine can reach them."""

import pytest
from tests.local_target.runs import container, service_spec

from pilotlight.targets.local.peers import Peers, drain_of

PEERS = Peers("http://127.0.0.1:8090", "a secret")
HERE = "127.0.0.1:8090/default"
INNER = f"{HERE}/iris-predictor@{PEERS.key('default', 'iris-predictor')}"


@pytest.mark.parametrize(
    ("written", "reached"),
    [
        ("iris-predictor.default", INNER),
        ("iris-predictor.default.svc", INNER),
        ("http://iris-predictor.default.svc.cluster.local:80/v2", f"http://{INNER}/v2"),
        ("--predictor_host=iris-predictor.default", f"--predictor_host={INNER}"),
        # What is asked from outside is reached as from outside.
        ("iris.default", f"{HERE}/iris"),
        ("iris-transformer.default", f"{HERE}/iris"),
        # Neither of these is that component over HTTP.
        ("iris-predictor.other", "iris-predictor.other"),
        ("my-iris-predictor.default", "my-iris-predictor.default"),
        ("iris-predictor.default.example.com", "iris-predictor.default.example.com"),
        ("iris-predictor.default:8081", "iris-predictor.default:8081"),
    ],
)
def test_a_component_of_the_service_is_found_through_the_gateway(written: str, reached: str) -> None:
    spec = service_spec("iris-transformer", "iris-predictor")
    made = PEERS.located(container(args=(written,), env={"WHERE": written}), spec)
    assert made.args == (reached,)
    assert made.env == {"WHERE": reached}


def test_each_component_has_a_key_of_its_own_that_outlives_the_control_process() -> None:
    key = PEERS.key("default", "iris-predictor")
    assert key == Peers("http://127.0.0.1:9", "a secret").key("default", "iris-predictor")
    others = (("default", "iris-transformer"), ("other", "iris-predictor"))
    assert key not in {PEERS.key(*other) for other in others}
    assert key != Peers(PEERS.gateway_url, "another").key("default", "iris-predictor")


def test_only_what_stands_behind_a_router_ends_slowly() -> None:
    routed = service_spec("iris-router", "iris-engine")
    assert drain_of(routed, "engine") == {"INFERENCE_DRAIN_DELAY": "1"}
    assert drain_of(routed, "router") == {}
    assert drain_of(service_spec("iris-engine"), "engine") == {}
