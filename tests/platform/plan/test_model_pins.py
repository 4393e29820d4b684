"""Pins in pod templates: other content is another revision, and our predictor is told what it may load."""

from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import CATALOGUE, FOREIGN, changed, codes, env, in_mode, kserve, workload

from pilotlight.contract import ENV_MODEL_PINS
from pilotlight.errors import UsageError
from pilotlight.k8s.model_pins import ModelPin, changed_files, decode, encode
from pilotlight.k8s.names import ANNOTATION_PINS
from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities, Workload
from pilotlight.spec.service import Service

REMOTE = "s3://models/iris/model.onnx"
LOCAL = "/models/iris.onnx"
ONE, OTHER = ModelPin("etags:1", 41, {}), ModelPin("etags:2", 42, {})


def pinned(service: Service, pins: dict[str, ModelPin]) -> Service:
    return replace(service, annotations={**service.annotations, ANNOTATION_PINS: encode(pins)})


def predictor(service: Service) -> Workload:
    return workload(service, "predictor")


def test_other_content_under_the_same_uri_is_another_revision() -> None:
    service = kserve(uri=REMOTE)
    names = [predictor(pinned(service, {REMOTE: pin})).revision for pin in (ONE, ONE, OTHER)]
    assert names[0] == names[1] != names[2]
    assert predictor(service).revision not in names
    assert predictor(service).model_uris == (REMOTE,)


def test_our_predictor_is_told_the_pins_of_stores_only() -> None:
    made = predictor(pinned(kserve(uri=REMOTE), {REMOTE: ONE, "s3://of/another": OTHER}))
    assert decode(env(made)[ENV_MODEL_PINS]) == {REMOTE: ONE}
    assert decode(made.template["metadata"]["annotations"][ANNOTATION_PINS]) == {REMOTE: ONE}
    local = predictor(pinned(kserve(uri=LOCAL), {LOCAL: ModelPin("sha256:ab", 1)}))
    assert ENV_MODEL_PINS not in env(local)
    assert decode(local.template["metadata"]["annotations"][ANNOTATION_PINS]) == {LOCAL: ModelPin("sha256:ab", 1)}


def test_the_init_container_of_a_foreign_server_fetches_what_is_pinned() -> None:
    made = predictor(in_mode(pinned(kserve(FOREIGN, uri=REMOTE), {REMOTE: ONE}), "Standard"))
    (fetch,) = made.template["spec"]["initContainers"]
    assert {"name": ENV_MODEL_PINS, "value": encode({REMOTE: ONE})} in fetch["env"]


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["--model-control-mode=poll"]},
        {"args": ["--model-control-mode", "explicit"]},
        {"args": ["--allow-poll-model-repository", "true"]},
        {"env": [{"name": "INFERENCE_MODEL_CONTROL_MODE", "value": "versions"}]},
    ],
)
def test_a_repository_that_changes_under_the_server_is_exempt(container: dict[str, Any]) -> None:
    service = kserve(uri=LOCAL)
    component = service.components["predictor"]
    assert component.model is not None
    model = replace(component.model, container={**component.model.container, **container})
    polled = replace(service, components={"predictor": replace(component, model=model)})
    assert predictor(polled).model_uris == ()
    assert ANNOTATION_PINS not in predictor(pinned(polled, {LOCAL: ONE})).template["metadata"]["annotations"]
    assert predictor(service).model_uris == (LOCAL,)


def test_an_annotation_that_is_no_pin_is_one_sentence() -> None:
    service = replace(kserve(uri=REMOTE), annotations={ANNOTATION_PINS: '{"s3://a": 1}'})
    with pytest.raises(UsageError, match="model-pins is set by deploy and is not valid") as raised:
        predictor(service)
    assert raised.value.hint == "remove it from the manifest"


def test_changed_files_have_a_sign_each() -> None:
    old = ModelPin("sha256:1", 3, {"a": "1", "b": "1", "c": "1"})
    assert changed_files(old, ModelPin("sha256:2", 3, {"a": "1", "b": "2", "d": "1"})) == ["~ b", "- c", "+ d"]
    assert changed_files(old, ModelPin("sha256:2", 9)) == []


def test_requirements_that_every_new_pod_installs_are_reported() -> None:
    code, packages = {"churn/model.py": "a"}, {"churn/requirements.txt": "b"}

    def reported(files: dict[str, str], target: str = "kubernetes", image: str = "") -> bool:
        service = pinned(kserve(uri=REMOTE), {REMOTE: ModelPin("commit:1", 1, files)})
        if image:
            model = service.components["predictor"].model
            assert model is not None
            service = changed(service, model=replace(model, container={"image": image}))
        return "PL389" in codes(plan(service, CATALOGUE, Capabilities(target=target)).warnings)

    assert reported(code | packages)
    assert not reported(packages)  # such as those of an MLflow model
    assert not reported(code | packages, image="registry.example.com/pilotlight/predictor:churn")
    for target in ("local", "docker"):  # which keep what was installed
        assert not reported(code | packages, target)
