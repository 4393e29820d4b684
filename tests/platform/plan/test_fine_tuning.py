"""Fine-tuned weights: merged ones are served in place of the model, adapters beside it, and nothing is forgotten."""

from pathlib import Path
from typing import Any

import pytest

from pilotlight.plan.types import Workload
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.spec.problems import InvalidDocument

SERVICE = """
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: llama-3-1-8b-instruct, fineTunedWeights: [law]}
  runtime: {name: vllm-text-generation}
  engine: {minReplicas: 1}
---
apiVersion: ome.io/v1beta1
kind: FineTunedWeight
metadata: {name: law}
spec:
  baseModelRef: {name: llama-3-1-8b-instruct}
  modelType: LoRA
  hyperParameters: {rank: 8}
  configuration: {merged_weights: false}
  storage: {storageUri: "s3://tuned/law"}
"""


def planned(folder: Path, *changes: tuple[str, str]) -> Workload:
    text = SERVICE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "service.yaml").write_text(text)
    (made,) = plan_all(Sources([str(folder)])).plans
    return made.workloads[0]


def main(made: Workload) -> dict[str, Any]:
    found: dict[str, Any] = made.template["spec"]["containers"][0]
    return found


def test_an_adapter_is_fetched_and_the_engine_is_told(tmp_path: Path) -> None:
    made = planned(tmp_path)
    (fetch,) = made.template["spec"]["initContainers"]
    assert fetch["command"][-2:] == ["s3://tuned/law", "/mnt/adapters/law"]
    assert main(made)["args"][-3:] == ["--enable-lora", "--lora-modules", "law=/mnt/adapters/law"]
    assert {"name": "adapter", "mountPath": "/mnt/adapters/law", "readOnly": True} in main(made)["volumeMounts"]


def test_an_adapter_on_a_claim_is_mounted(tmp_path: Path) -> None:
    made = planned(tmp_path, ("s3://tuned/law", "pvc://tuned/law"))
    assert "initContainers" not in made.template["spec"]
    (volume,) = (volume for volume in made.template["spec"]["volumes"] if volume["name"] == "adapter")
    assert volume["persistentVolumeClaim"]["claimName"] == "tuned"


def test_merged_weights_are_served_in_place_of_the_model(tmp_path: Path) -> None:
    made = planned(tmp_path, ("merged_weights: false", "merged_weights: true"))
    (fetch,) = made.template["spec"]["initContainers"]
    assert fetch["command"][-2:] == ["s3://tuned/law", "/mnt/models"]
    assert {"name": "MODEL_PATH", "value": "/mnt/models"} in main(made)["env"]
    assert not any("lora" in argument for argument in main(made)["args"])


DIRECT = ("name: llama-3-1-8b-instruct, fineTunedWeights: [law]", "kind: FineTunedWeight, name: law")


def test_weights_that_are_referred_to_directly_bring_their_base_model(tmp_path: Path) -> None:
    assert planned(tmp_path, DIRECT) == planned(tmp_path)


@pytest.mark.parametrize(("changes", "told"), [
    ([("fineTunedWeights: [law]", "kind: FineTunedWeight, fineTunedWeights: [law]")], "excludes kind FineTunedWeight"),
    ([DIRECT, ("kind: FineTunedWeight, name: law", "kind: FineTunedWeight, name: lau")], "unknown FineTunedWeight lau"),
    ([DIRECT, ("  baseModelRef: {name: llama-3-1-8b-instruct}\n", "")], "has no base model"),
    ([DIRECT, ("baseModelRef: {name: llama-3-1-8b-instruct}", "baseModelRef: {name: other}")], "is called other"),
    ([DIRECT, ("s3://tuned/law", "")], "law has no storage.storageUri"),
])  # fmt: skip
def test_a_direct_reference_that_leads_nowhere_is_refused_at_its_place(
    changes: list[tuple[str, str]], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidDocument) as refused:
        planned(tmp_path, *changes)
    found = [each for each in refused.value.problems if each.severity == "error"]
    assert any(told in problem.message for problem in found)
    assert {problem.location.line for problem in found} == {6}


@pytest.mark.parametrize(("change", "told"), [
    (("[law]", "[lau]"), "unknown FineTunedWeight lau"),
    (("baseModelRef: {name: llama-3-1-8b-instruct}", "baseModelRef: {name: other}"), "law was tuned from other"),
    (("s3://tuned/law", ""), "law has no storage.storageUri"),
    (("modelType: LoRA", "disabled: true"), "law is disabled"),
    (("s3://tuned/law", "ftp://tuned/law"), "ftp:// is not supported"),
    (("engine: {minReplicas: 1}", "engine: {minReplicas: 1, runner: {image: 'own/server:1'}}"), "loads no adapters"),
])  # fmt: skip
def test_weights_that_cannot_be_served_are_refused_with_the_reason(
    change: tuple[str, str], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidDocument) as refused:
        planned(tmp_path, change)
    (problem,) = (each for each in refused.value.problems if each.severity == "error")
    assert told in problem.message
    assert problem.path == "spec.model.fineTunedWeights"
    assert problem.location.line == 6
