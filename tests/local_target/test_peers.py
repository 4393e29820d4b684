"""Addresses of a service's other components, as a process on this machine can reach them."""

import pytest
from tests.local_target.runs import container, service_spec

from pilotlight.targets.local.peers import located

GATEWAY = "http://127.0.0.1:8090"
HERE = "127.0.0.1:8090/default"


@pytest.mark.parametrize(
    ("written", "reached"),
    [
        ("iris-predictor.default", f"{HERE}/iris-predictor"),
        ("iris-predictor.default.svc", f"{HERE}/iris-predictor"),
        ("http://iris-predictor.default.svc.cluster.local:80/v2", f"http://{HERE}/iris-predictor/v2"),
        ("--predictor_host=iris-predictor.default", f"--predictor_host={HERE}/iris-predictor"),
        ("iris.default", f"{HERE}/iris"),
        # Neither of these is that component over HTTP.
        ("iris-predictor.other", "iris-predictor.other"),
        ("my-iris-predictor.default", "my-iris-predictor.default"),
        ("iris-predictor.default.example.com", "iris-predictor.default.example.com"),
        ("iris-predictor.default:8081", "iris-predictor.default:8081"),
    ],
)
def test_a_component_of_the_service_is_found_through_the_gateway(written: str, reached: str) -> None:
    spec = service_spec("iris-predictor", "iris-transformer")
    made = located(container(args=(written,), env={"WHERE": written}), spec, GATEWAY)
    assert made.args == (reached,)
    assert made.env == {"WHERE": reached}
