"""Addresses of a service's other components, as a process on this machine can reach them."""

from dataclasses import replace

import pytest
from tests.local_target.runs import container, revision, service, service_spec, workload

from pilotlight.errors import PlatformError
from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.peers import Peers, check, drain_of
from pilotlight.targets.local.scaling.model import Fixed, Hpa, Kpa, Metric, Rules, Scaling

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


def test_a_component_behind_a_router_cannot_be_scaled_by_requests_that_nobody_counts() -> None:
    router = workload(revision("iris-router-1", "iris-router", Fixed(1)), mode="raw")

    def engine(scaling: Scaling) -> WorkloadSpec:
        return workload(revision("iris-engine-1", "iris-engine", scaling), mode="raw")

    by_cpu = Hpa(1, 3, (Metric("cpu", "cpu", "Utilization", 50),), Rules(()), Rules(()))
    check(service(router, engine(by_cpu)))
    check(service(engine(Kpa())))
    by_requests = Hpa(1, 3, (Metric("requests", "requests", "AverageValue", 10),), Rules(()), Rules(()))
    for scaling in (Kpa(), by_requests, replace(by_cpu, min_replicas=0)):
        with pytest.raises(PlatformError, match=r"^iris-engine: is scaled by requests, and a router"):
            check(service(router, engine(scaling)))


def test_only_what_stands_behind_a_router_ends_slowly() -> None:
    routed = service_spec("iris-router", "iris-engine")
    assert drain_of(routed, "engine") == {"INFERENCE_DRAIN_DELAY": "1"}
    assert drain_of(routed, "router") == {}
    assert drain_of(service_spec("iris-engine"), "engine") == {}
