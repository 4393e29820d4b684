"""Addresses of a service's other components, as a process on this machine can reach them."""

from dataclasses import replace

import pytest
from tests.platform.targets.local.runs import container, revision, service, service_spec, workload

from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.service_discovery import ComponentAddresses, check, drain_env
from pilotlight.targets.local.manifests.service_spec_types import WorkloadSpec
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Kpa, Metric, Scaling, ScalingRules

PEERS = ComponentAddresses("http://127.0.0.1:8090", "a secret")
HERE = "127.0.0.1:8090/default"
INNER = f"{HERE}/iris-predictor@{PEERS.key('default', 'iris-predictor')}"


@pytest.mark.parametrize(
    ("written", "reached"),
    [
        ("iris-predictor.default", INNER),
        ("iris-predictor.default.svc", INNER),
        ("http://iris-predictor.default.svc.cluster.local:80/v2", f"http://{INNER}/v2"),
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
    made = PEERS.resolve(container(args=(written,), env={"WHERE": written}), spec)
    assert made.args == (written if "@" in reached else reached,)
    assert made.env == {"WHERE": reached}


@pytest.mark.parametrize(
    "args", [("--predictor_host", "iris-predictor.default"), ("--predictor-host=iris-predictor.default.svc",)]
)
def test_the_way_to_the_predictor_is_told_by_a_variable_since_anybody_can_read_arguments(args: tuple[str, ...]) -> None:
    spec = service_spec("iris-transformer", "iris-predictor")
    given = container(args=("--model_name", "iris", *args, "--x"), env={"INFERENCE_PREDICTOR_HOST": "overruled"})
    made = PEERS.resolve(given, spec)
    assert made.args == ("--model_name", "iris", "--x")
    assert made.env == {"INFERENCE_PREDICTOR_HOST": INNER}


def test_an_explainer_reaches_the_entry_of_its_service_with_a_key_since_it_has_no_token() -> None:
    spec = service_spec("iris-predictor", "iris-explainer")
    made = PEERS.resolve(container(args=("--predictor_host", "iris-predictor.default")), spec)
    assert made.env == {"INFERENCE_PREDICTOR_HOST": f"{HERE}/iris@{PEERS.key('default', 'iris')}"}


def test_a_predictor_elsewhere_stays_an_argument() -> None:
    args = ("--predictor_host", "example.com")
    made = PEERS.resolve(container(args=args), service_spec("iris-transformer", "iris-predictor"))
    assert (made.args, made.env) == (args, {})


def test_any_other_argument_that_would_show_a_key_is_refused() -> None:
    first = revision("iris-transformer-1", "iris-transformer", Fixed(1))
    shown = replace(first, container=container(args=("--repository=http://iris-predictor.default",)))
    predictor = workload(revision("iris-predictor-1", "iris-predictor", Fixed(1)), mode="raw")
    message = r"^iris-transformer: argument --repository=\S+ contains the address of .* pass it in a variable"
    with pytest.raises(PlatformError, match=message):
        check(service(workload(shown, mode="raw"), predictor))
    told = replace(first, container=container(args=("--predictor_host", "iris-predictor.default")))
    check(service(workload(told, mode="raw"), predictor))


def test_each_component_has_a_key_of_its_own_that_outlives_the_control_process() -> None:
    key = PEERS.key("default", "iris-predictor")
    assert key == ComponentAddresses("http://127.0.0.1:9", "a secret").key("default", "iris-predictor")
    others = (("default", "iris-transformer"), ("other", "iris-predictor"))
    assert key not in {PEERS.key(*other) for other in others}
    assert key != ComponentAddresses(PEERS.gateway_url, "another").key("default", "iris-predictor")


def test_a_component_behind_a_router_cannot_be_scaled_by_requests_that_nobody_counts() -> None:
    router = workload(revision("iris-router-1", "iris-router", Fixed(1)), mode="raw")

    def engine(scaling: Scaling) -> WorkloadSpec:
        return workload(revision("iris-engine-1", "iris-engine", scaling), mode="raw")

    by_cpu = Hpa(1, 3, (Metric("cpu", "cpu", "Utilization", 50),), ScalingRules(()), ScalingRules(()))
    check(service(router, engine(by_cpu)))
    check(service(engine(Kpa())))
    by_requests = Hpa(1, 3, (Metric("requests", "requests", "AverageValue", 10),), ScalingRules(()), ScalingRules(()))
    for scaling in (Kpa(), by_requests, replace(by_cpu, min_replicas=0)):
        with pytest.raises(PlatformError, match=r"^iris-engine: is scaled by requests, but its router"):
            check(service(router, engine(scaling)))


def test_only_what_stands_behind_a_router_ends_slowly() -> None:
    routed = service_spec("iris-router", "iris-engine")
    assert drain_env(routed, "engine") == {"INFERENCE_DRAIN_DELAY": "1"}
    assert drain_env(routed, "router") == {}
    assert drain_env(service_spec("iris-engine"), "engine") == {}
