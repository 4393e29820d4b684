"""Placeholders, image tags, accelerator overrides: the last touches to a container."""

import pytest
from tests.platform.catalogue.catalogue_cases import kserve, line, ome, runtime

from pilotlight.catalogue.runtime_documents import expand, implied_env
from pilotlight.catalogue.runtime_merge import image_for, merge_args, with_accelerator_config, with_parallelism
from pilotlight.spec.problems import Problems
from pilotlight.spec.service import ModelSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--model_name={{.Name}}", "--model_name=chat"),
        ("{{ .Name }}.{{.Namespace}}.svc", "chat.team.svc"),
        ("{{.Labels.tier}}/{{.Annotations.note}}", "gold/{{.Name}}"),
        ("$(VAR) ${X} {x}", "$(VAR) ${X} {x}"),
    ],
)
def test_placeholders_are_filled_in_once(text: str, expected: str) -> None:
    service = ome(labels={"tier": "gold"}, annotations={"note": "{{.Name}}"})
    problems = Problems()
    assert expand({"args": [text], "n": 1}, service, runtime("r"), problems) == {"args": [expected], "n": 1}
    assert problems.items == []


@pytest.mark.parametrize("text", ["{{.Spec.x}}", "{{ if .Name }}", "{{.Labels}}", "{{}}", "{{ .Name | upper }}"])
def test_any_other_placeholder_is_an_error_with_its_path(text: str) -> None:
    problems = Problems()
    expand({"args": [text]}, ome(), runtime("r"), problems)
    assert [(p.code, p.path) for p in problems.errors] == [("PL230", "args[0]")]
    assert text in problems.errors[0].message


def test_a_label_that_the_service_lacks_becomes_empty_with_a_warning() -> None:
    problems = Problems()
    assert expand("a{{.Labels.x}}", ome(), runtime("r"), problems) == "a"
    assert [p.code for p in problems.warnings] == ["PL231"]


def test_mlserver_and_torchserve_get_what_kserve_implies() -> None:
    mlserver = runtime("m", group="kserve", server_type="mlserver")
    xgboost = kserve(ModelSpec("xgboost", storage_uri="s3://b/x"))
    assert expand("{{.Labels.modelClass}}", xgboost, mlserver, Problems()) == "mlserver_xgboost.XGBoostModel"
    spec = xgboost.components["predictor"].model
    assert spec is not None
    assert {"name": "MLSERVER_MODEL_NAME", "value": "iris"} in implied_env(xgboost, mlserver, spec)
    torchserve = runtime("t", group="kserve", server_type="torchserve")
    v2 = kserve(ModelSpec("pytorch", protocol="v2"))
    assert expand("{{.Labels.serviceEnvelope}}", v2, torchserve, Problems()) == "kservev2"


@pytest.mark.parametrize(
    ("image", "server", "version", "gpus", "expected"),
    [
        ("kserve/sklearnserver:v1", "sklearnserver", "v2", 0, "kserve/sklearnserver:v2"),
        ("host:5000/tf", "tensorflow-serving", "2.6", 0, "host:5000/tf:2.6"),
        ("tensorflow/serving:2.6.2", "tensorflow-serving", "", 1, "tensorflow/serving:2.6.2-gpu"),
        ("tensorflow/serving:2.6.2-gpu", "tensorflow-serving", "", 1, "tensorflow/serving:2.6.2-gpu"),
        ("tensorflow/serving:2.6.2", "tensorflow-serving", "", 0, "tensorflow/serving:2.6.2"),
        ("vllm/vllm-openai:v1", "vllmserver", "", 0, "vllm/vllm-openai-cpu:v1"),
        ("vllm/vllm-openai:v1", "vllmserver", "", 2, "vllm/vllm-openai:v1"),
        ("x@sha256:00", "sklearnserver", "v2", 0, "x@sha256:00"),
    ],
)
def test_the_image_follows_version_and_device(image: str, server: str, version: str, gpus: int, expected: str) -> None:
    assert image_for(image, runtime("r", group="kserve", server_type=server), version, gpus) == expected


def test_parallelism_is_devices_times_nodes() -> None:
    container = {"env": [{"name": "PARALLELISM_SIZE", "value": "1"}]}
    assert with_parallelism(container, 8, 2)["env"] == [{"name": "PARALLELISM_SIZE", "value": "16"}]
    assert with_parallelism(container, 0, 2) == container


def test_a_line_may_say_more_for_the_chosen_class() -> None:
    tuned = line(
        accelerators={
            "h100": {
                "tensorParallelismOverride": {"tensorParallelSize": 4},
                "runtimeArgsOverride": ["--dtype", "fp8", "--new"],
                "environmentOverride": {"A": "2"},
            }
        }
    )
    container = {"command": ["run", "--tp", "1"], "args": ["--tp-size=1", "--dtype", "bf16"], "env": []}
    assert with_accelerator_config(container, tuned, "h100") == {
        "command": ["run", "--tp", "4"],
        "args": ["--tp-size=4", "--dtype", "fp8", "--new"],
        "env": [{"name": "A", "value": "2"}],
    }
    assert with_accelerator_config(container, tuned, "t4") == container


def test_arguments_are_told_apart_by_their_flag() -> None:
    assert merge_args(["serve", "--a=1", "-b", "2", "--c"], ["--b=3", "-b", "4"]) == [
        "serve", "--a=1", "-b", "4", "--c", "--b=3",
    ]  # fmt: skip
