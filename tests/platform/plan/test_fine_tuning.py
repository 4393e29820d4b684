"""Fine-tuned weights: merged ones are served in place of the model, adapters beside it, and nothing is forgotten."""

import json
import re
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.eventually import eventually
from tests.ports import free_port

from pilotlight.k8s.adapters import decode
from pilotlight.plan.types import Capabilities, Current, Workload
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

TAX = (
    SERVICE,
    SERVICE.replace("[law]", "[law, tax]")
    + """---
apiVersion: ome.io/v1beta1
kind: FineTunedWeight
metadata: {name: tax}
spec:
  baseModelRef: {name: llama-3-1-8b-instruct}
  hyperParameters: {rank: 100}
  storage: {storageUri: "s3://tuned/tax"}
""",
)


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


def test_adapters_are_fetched_and_the_engine_loads_each_under_its_name(tmp_path: Path) -> None:
    made = planned(tmp_path, TAX)
    fetched = [each["command"][-2:] for each in made.template["spec"]["initContainers"]]
    assert fetched == [["s3://tuned/law", "/mnt/adapters/law"], ["s3://tuned/tax", "/mnt/adapters/tax"]]
    expected = ["--enable-lora", "--max-loras=4", "--max-lora-rank=128", "--lora-modules"]
    assert main(made)["args"][-6:] == [*expected, "law=/mnt/adapters/law", "tax=/mnt/adapters/tax"]
    assert {"name": "adapter-1", "mountPath": "/mnt/adapters/tax", "readOnly": True} in main(made)["volumeMounts"]
    assert [(each.name, each.model) for each in decode(made.annotations)] == [("law", "law"), ("tax", "tax")]


LLM_SERVICE = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: chat}
spec:
  model:
    uri: BASE
    lora: {adapters: [{name: law, uri: ADAPTER}]}
  replicas: 1
  template: {containers: [{name: main, image: "IMAGE"}]}
"""


def llm_service(
    folder: Path, image: str, target: str = "kubernetes", base: str = "s3://base", adapter: str = "s3://tuned/law"
) -> Workload:
    text = LLM_SERVICE.replace("IMAGE", image).replace("BASE", base).replace("ADAPTER", adapter)
    (folder / "service.yaml").write_text(text)
    (made,) = plan_all(Sources([str(folder / "service.yaml")]), Capabilities(target=target)).plans
    return made.workloads[0]


def test_adapters_of_kserve_are_passed_to_the_predictor_too(tmp_path: Path) -> None:
    made = llm_service(tmp_path, "pilotlight/predictor:0.1.0")
    assert main(made)["args"][-2:] == ["--adapter", "law=/mnt/adapters/law"]
    assert made.annotations["pilotlight.dev/model-names"] == "chat"
    assert made.template["spec"]["initContainers"][0]["command"][-2:] == ["s3://tuned/law", "/mnt/adapters/law"]


def test_a_router_has_the_adapters_of_the_engines_behind_it(tmp_path: Path) -> None:
    text = LLM_SERVICE.replace("replicas: 1", "replicas: 1\n  router: {scheduler: {}}").replace("IMAGE", "vllm:1")
    (tmp_path / "service.yaml").write_text(text.replace("BASE", "s3://base").replace("ADAPTER", "s3://tuned/law"))
    (made,) = plan_all(Sources([str(tmp_path / "service.yaml")]), Capabilities(target="kubernetes")).plans
    assert {each.role: [adapter.name for adapter in decode(each.annotations)] for each in made.workloads} == {
        "engine": ["law"], "router": ["law"],
    }  # fmt: skip


def test_other_adapters_of_a_dynamic_engine_on_this_machine_are_the_same_revision(tmp_path: Path) -> None:
    before = llm_service(tmp_path, "pilotlight/predictor:0.1.0", "local")
    after = llm_service(tmp_path, "pilotlight/predictor:0.1.0", "local", adapter="s3://tuned/law-2")
    assert before.revision == after.revision
    assert {"name": "PILOTLIGHT_DYNAMIC_ADAPTERS", "value": "on"} in main(before)["env"]
    (old,), (new,) = decode(before.annotations), decode(after.annotations)
    assert old.dynamic
    assert (old.name, new.name) == ("law", "law")
    assert old.model != new.model
    assert "s3://tuned/law-2" in after.model_uris


def adapter(folder: Path, *, width: int = 64, **config: Any) -> Path:
    folder.mkdir()
    written = {"peft_type": "LORA", "r": 24, "base_model_name_or_path": "org/other", **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    tensor = {"dtype": "F32", "shape": [24, width], "data_offsets": [0, 0]}
    header = json.dumps({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": tensor}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


@pytest.mark.parametrize(("width", "config", "told"), [
    (64, {}, ""),
    (32, {}, "q_proj.lora_A.weight has 32 inputs, but hidden_size of the base model chat is 64; serve it with its own "
             "base model, org/other"),
    (64, {"peft_type": "IA3"}, "adapter law: peft_type of its adapter_config.json is IA3, must be LORA"),
    (64, {"r": None}, "adapter law: r of its adapter_config.json is None, must be 1 or more"),
    (64, {"r": 0}, "adapter law: r of its adapter_config.json is 0, must be 1 or more"),
    (64, {"r": 8}, "q_proj.lora_A.weight has rank 24, but r of its adapter_config.json is 8; correct r, or export"),
    (64, {"r": 8, "rank_pattern": {"q_proj": 24}}, ""),
])  # fmt: skip
def test_an_adapter_that_does_not_fit_its_base_is_refused(
    width: int, config: dict[str, Any], told: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"hidden_size": 64}))
    uris = {"base": str(base), "adapter": str(adapter(tmp_path / "law", width=width, **config))}
    if not told:
        made = llm_service(tmp_path, "vllm/vllm-openai:v0.20.1", "docker", **uris)
        assert "--max-lora-rank=32" in main(made)["args"]
        return
    with pytest.raises(InvalidDocument) as refused:
        llm_service(tmp_path, "vllm/vllm-openai:v0.20.1", "docker", **uris)
    (problem,) = (each for each in refused.value.problems if each.severity == "error")
    assert told in problem.message
    assert problem.path == "spec.model.lora.adapters[0].uri"


@pytest.mark.parametrize(("changes", "flags", "model", "fields"), [
    ([("vllm-text-generation", "sglang-text-generation")],
     ["--enable-lora", "--max-loras-per-batch=4", "--max-lora-rank=16", "--lora-paths", "law=/mnt/adapters/law"],
     "chat:law", ""),
    ([("tuned/law", "tuned/law.gguf"), ("{minReplicas: 1}", "{minReplicas: 1, runner: {command: [llama-server]}}")],
     ["--lora-init-without-apply", "--lora", "/mnt/adapters/law/law.gguf"],
     "chat", '"lora":[{"id":0,"scale":1.0}]'),
])  # fmt: skip
def test_each_engine_has_its_own_flags_and_selects_an_adapter_in_its_own_way(
    changes: list[tuple[str, str]], flags: list[str], model: str, fields: str, tmp_path: Path
) -> None:
    made = planned(tmp_path, *changes)
    assert main(made)["args"][-len(flags) :] == flags
    (found,) = decode(made.annotations)
    assert (found.name, found.model, found.fields) == ("law", model, fields)
    assert found.base_fields == fields.replace("1.0", "0.0")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_program_of_an_engine_starts_with_the_planned_flags_and_has_the_adapters(
    engine: str, tmp_path: Path
) -> None:
    """The stand-in's, as in a pod: its paths are below a folder, where init containers have left the adapters."""
    made = planned(tmp_path, TAX, ("vllm-text-generation", f"{engine}-text-generation"))
    container, port = main(made), free_port()
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    words = [*container["command"], *container["args"]][-len(container["args"]) - (engine == "vllm") :]
    words = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in words]
    words = [word.replace("/mnt/", f"{tmp_path}/mnt/").replace("--port=8080", f"--port={port}") for word in words]
    (tmp_path / variables["MODEL_PATH"].lstrip("/")).mkdir(parents=True)
    (tmp_path / "mnt/adapters").mkdir()
    for name, rank in (("law", 8), ("tax", 100)):
        adapter(tmp_path / "mnt/adapters" / name, r=rank)
    law, tax = (each.model for each in decode(made.annotations))
    process = subprocess.Popen([sys.executable, "-m", f"tests.engines.{engine}_engine", *words])
    try:
        eventually(lambda: accepts(port), check=lambda: process.poll() is None or pytest.fail("the engine has ended"))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=60) as client:
            assert [each["id"] for each in client.get("/models").json()["data"]] == ["chat", "law", "tax"]
            for model in ("chat", law, tax):
                assert client.post("/completions", json={"model": model, "prompt": "one"}).json()["model"] == model
            unknown = {"model": law.replace("law", "none"), "prompt": "one"}
            assert client.post("/completions", json=unknown).status_code == (400 if engine == "sglang" else 404)
    finally:
        process.kill()
        process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_canary_of_an_adapter_splits_its_name_between_the_new_and_the_old_one(tmp_path: Path) -> None:
    before = llm_service(tmp_path, "pilotlight/predictor:0.1.0", "local")
    text = (tmp_path / "service.yaml").read_text().replace("tuned/law", "tuned/law-2")
    share = "annotations: {pilotlight.dev/canary-traffic-percent: '20'}"
    (tmp_path / "service.yaml").write_text(text.replace("metadata: {name: chat}", f"metadata: {{name: chat, {share}}}"))
    old = decode(before.annotations)
    current = Current({before.name: (before.revision,)}, adapters={before.name: old})
    sources = Sources([str(tmp_path / "service.yaml")])
    (made,) = plan_all(sources, Capabilities(target="local"), {("default", "chat"): current}).plans
    assert made.workloads[0].revision == before.revision
    new, kept = decode(made.workloads[0].annotations)
    assert ((new.name, new.percent), (kept.model, kept.percent)) == (("law", 20), (old[0].model, 80))


@pytest.mark.parametrize(
    ("rank", "args", "refused"), [(24, "", True), (16, "", False), (24, "--max-lora-rank=64", False)]
)
def test_a_canary_of_an_adapter_for_which_its_engine_would_restart_is_refused(
    rank: int, args: str, refused: bool, tmp_path: Path
) -> None:
    """It would compare engines. `args`: of the engine, which has room for the rank then."""
    for name, each in (("law", 8), ("law-2", rank)):
        adapter(tmp_path / name, r=each, rank_pattern={"q_proj": 24} if each == 24 else {})
        (tmp_path / name / "adapter_model.safetensors").unlink()
    image = f'vllm/vllm-openai:v0.20.1", args: [{args}], imagePullPolicy: "Always'
    before = llm_service(tmp_path, image, "local", adapter=str(tmp_path / "law"))
    file = tmp_path / "service.yaml"
    text = file.read_text().replace(f"{tmp_path}/law}}", f"{tmp_path}/law-2}}")
    share = "annotations: {pilotlight.dev/canary-traffic-percent: '20'}"
    file.write_text(text.replace("metadata: {name: chat}", f"metadata: {{name: chat, {share}}}"))
    current = Current({before.name: (before.revision,)}, adapters={before.name: decode(before.annotations)})
    told = "adapter law: its engine was started for rank 16 and would restart for 32"
    with pytest.raises(InvalidDocument, match=told) if refused else nullcontext():
        plan_all(Sources([str(file)]), Capabilities(target="local"), {("default", "chat"): current})


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
    (("{minReplicas: 1}", "{minReplicas: 1, runner: {image: 'own/server:1', command: [serve]}}"), "loads no adapters"),
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
