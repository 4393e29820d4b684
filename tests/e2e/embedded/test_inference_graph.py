"""An InferenceGraph on the embedded platform, before real predictors: one of them at zero, which its step wakes."""

import hashlib
import json

from tests.embedded import FLOWER, IRIS, Platform, inference_service

TOKEN = "secret-token"
GRAPH = """
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata:
  name: flowers
  annotations:
    autoscaling.knative.dev/window: 6s
spec:
  minReplicas: {least}
  timeout: 60
  nodes:
    root:
      routerType: Switch
      steps:
        - nodeName: both
          condition: "[@this].#(parameters.compare==true)"
        - serviceName: iris
          condition: "inputs.#(name==x)"
    both:
      routerType: Ensemble
      steps:
        - {{name: first, serviceName: iris, dependency: Hard}}
        - {{name: second, serviceName: other}}
"""


def iris(name: str, least: int = 0, annotations: str = "") -> str:
    return inference_service(name, "onnx", str(IRIS), least=least, most=1, annotations=annotations)


def test_a_graph_wakes_what_its_steps_need(platform: Platform) -> None:
    for document in (iris("iris", 1), iris("other"), GRAPH.format(least=1)):
        platform.deploy(document)
    platform.wait_phase("Ready", name="iris")
    platform.wait_phase("Ready", name="flowers")
    platform.wait_phase("Standby", name="other")
    alone = platform.ask("/flowers", FLOWER)
    assert alone.json()["model_name"] == "iris"
    assert platform.status("other").phase == "Standby"
    both = platform.ask("/flowers", {**FLOWER, "parameters": {"compare": True}})
    assert (both.status, {name: part["model_name"] for name, part in both.json().items()}) == (
        200, {"first": "iris", "second": "other"},
    )  # fmt: skip
    assert platform.ask("/flowers", {"nothing": 1}).status == 404
    assert [row.role for row in platform.status("flowers").revisions] == ["router"]


def test_a_graph_at_zero_is_woken_and_its_client_s_token_reaches_the_steps(platform: Platform) -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    platform.deploy(iris("iris", 1, f"    pilotlight.dev/auth-tokens-sha256: {digest}"))
    platform.deploy(GRAPH.format(least=0))
    platform.wait_phase("Ready", name="iris")
    platform.wait_phase("Standby", name="flowers")
    assert platform.ask("/flowers", FLOWER).status == 401
    answer = platform.ask("/flowers", FLOWER, headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status, answer.json()["model_name"]) == (200, "iris")


def test_a_graph_that_calls_itself_ends_with_one_error(platform: Platform) -> None:
    """Before, its requests multiplied until the deadline."""
    platform.deploy(GRAPH.format(least=1).replace("serviceName: iris", "serviceName: flowers"))
    platform.wait_phase("Ready", name="flowers")
    for body in (FLOWER, {**FLOWER, "parameters": {"compare": True}}):
        answer = platform.ask("/flowers", body)
        assert (answer.status, "cycle" in answer.json()["cause"]) == (508, True)


def test_a_step_without_a_service_fails_the_request_by_its_name(platform: Platform) -> None:
    platform.deploy(GRAPH.format(least=1))
    platform.wait_phase("Ready", name="flowers")
    answer = platform.ask("/flowers", FLOWER)
    assert (answer.status, "no service" in json.dumps(answer.json())) == (502, True)
