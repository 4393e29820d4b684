"""Engines of other images as processes of this machine: their programs are stand-ins, installed as real ones are."""

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.embedded import Platform
from tests.engines.installed import install

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary
from pilotlight.canaries.start_request import CanaryRequest, start
from pilotlight.errors import PlatformError
from pilotlight.spec.canary_policy import CanaryPolicy, Check

SIX_GPUS = """
class NVMLError(Exception):
    pass


class Memory:
    used, total = 0, 24 << 30


nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 6
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetMemoryInfo = lambda handle: Memory
nvmlDeviceGetComputeRunningProcesses = lambda handle: []
nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
"""
MESSAGES = [{"role": "user", "content": "one two three"}]
SECONDS = 0.5
COMMANDS = {
    "vllm": ("vllm/vllm-openai:v0.20.1", "[vllm, serve]", "/mnt/models, --max-num-seqs, '1'"),
    "sglang": (
        "lmsysorg/sglang:v0.5.5", "[python3, -m, sglang.launch_server]",
        "--model-path=/mnt/models, --max-running-requests=1, --enable-metrics",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("engines")
    (folder / "nvml").mkdir()
    (folder / "nvml/pynvml.py").write_text(SIX_GPUS)
    programs = install(folder / "environment", "vllm", "sglang", "llama_cpp_python")
    env = {"PYTHONPATH": str(folder / "nvml"), "PILOTLIGHT_ENGINE_PATH": programs}
    with Platform(folder / "home", env) as running:
        yield running


@pytest.fixture
def without(tmp_path: Path) -> Iterator[Platform]:
    """A platform on a machine that has no engine."""
    with Platform(tmp_path / "home", {"PATH": "/usr/bin:/bin"}) as running:
        yield running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of the service, another one for each test: logs of deleted services stay."""
    return f"chat-{zlib.crc32(request.node.name.encode()):08x}"


def catalogued(name: str, form: str, uri: str, *, least: int = 0) -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}, annotations: {{autoscaling.knative.dev/window: 6s}}}}
spec:
  predictor:
    minReplicas: {least}
    maxReplicas: 2
    model: {{modelFormat: {{name: {form}}}, storageUri: {uri}}}
"""


def scaled(name: str, engine: str, uri: str, query: str, threshold: str, most: int = 2) -> str:
    """A Deployment of an engine that runs one request at a time, on a GPU of its own, scaled by its own metric."""
    image, command, args = COMMANDS[engine]
    return f"""
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {{name: words}}
spec:
  modelFormat: {{name: safetensors}}
  storage: {{storageUri: "{uri}"}}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  model: {{name: words, kind: BaseModel}}
  kedaConfig:
    enableKeda: true
    customPromQuery: {query}
    scalingThreshold: "{threshold}"
    scalingOperator: GreaterThanOrEqual
  engine:
    minReplicas: 1
    maxReplicas: {most}
    runner:
      name: ome-container
      image: {image}
      command: {command}
      args: [{args}, --port=8080, --served-model-name={name}]
      env: [{{name: ENGINE_SECONDS, value: "{SECONDS}"}}]
      ports: [{{containerPort: 8080}}]
      resources: {{limits: {{nvidia.com/gpu: "1"}}}}
      readinessProbe: {{httpGet: {{path: /health, port: 8080}}, periodSeconds: 1}}
"""


def starts(platform: Platform, name: str) -> list[dict[str, object]]:
    """What each engine said when it started, by its log."""
    text = "\n".join(log.read_text() for log in sorted(platform.home.logs.glob(f"default/{name}/*.log")))
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def ask(platform: Platform, name: str, address: str = "/{}/v1") -> tuple[int, str]:
    reply = platform.ask(f"{address.format(name)}/chat/completions", {"model": name, "messages": MESSAGES})
    return reply.status, reply.json()["choices"][0]["message"]["content"] if reply.status == 200 else str(reply.body)


def ended_canary(platform: Platform, name: str) -> Canary | None:
    canary = stored_history.decode_history(platform.target.canary(("default", name))).current
    return canary if canary is not None and canary.ended_at else None


@contextmanager
def asked(platform: Platform, name: str, clients: int) -> Iterator[list[tuple[int, str]]]:
    answers: list[tuple[int, str]] = []
    ending = threading.Event()

    def client() -> None:
        while not ending.is_set():
            answers.append(ask(platform, name))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        ending.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("form", ["vLLM", "gguf"])
def test_an_engine_of_the_catalogue_serves_a_model_of_this_machine_from_zero_and_again(
    platform: Platform, model: Path, name: str, form: str
) -> None:
    source = model
    if form == "gguf":
        source = model / "words.gguf"
        source.write_bytes(b"GGUF")
    platform.deploy(catalogued(name, form, source.as_uri()))
    platform.wait_phase("Ready", name=name)
    assert ask(platform, name) == (200, "one two three")
    assert platform.ask(f"/{name}/v1/models", None).json()["data"] == [{"id": name}]
    platform.wait_phase("Standby", name=name)
    assert [each["id"] for each in platform.ask("/v1/models", None).json()["data"]] == [name]
    assert ask(platform, name, "/v1") == (200, "one two three")
    argv = starts(platform, name)[-1]["argv"]
    assert isinstance(argv, list)
    assert str(source.name) in str(argv)
    assert "/mnt/models" not in str(argv)


def test_a_canary_of_an_engine_is_sent_completions_and_judged_by_what_the_gateway_measures(
    platform: Platform, model: Path, name: str
) -> None:
    """Engines have neither V2 nor metrics of ours. The first canary is better than nothing, the second is broken."""
    document = catalogued(name, "vLLM", model.as_uri(), least=1)
    platform.deploy(document)
    platform.wait_phase("Ready", name=name)
    checks = (Check("error_rate", maximum=0.2), Check("p99_ms", maximum=60_000.0))
    policy = replace(POLICY, checks=checks, interval_s=0.2, compare="baseline", min_requests=20)
    # On a busy machine twenty completions cannot settle whether one is slower than the other.
    policy = replace(policy, on_inconclusive="pass", inconclusive_limit=5)
    for value, phase in (("", "Promoted"), ("1", "RolledBack")):
        env = f"env: [{{name: ENGINE_BROKEN, value: '{value}'}}], modelFormat"
        request = platform.release_request(document.replace("modelFormat", env))
        start(CanaryRequest(request, policy), platform.target, lambda _: None, print)
        platform.wait(lambda: ended_canary(platform, name) is not None, "the end of the canary")
        canary = ended_canary(platform, name)
        assert canary is not None
        assert (canary.phase, canary.reason.partition(" ")[0]) == (phase, "error_rate" if value else "")
    assert platform.ask(f"/{name}/v1/completions", {"model": name, "prompt": "one two"}).status == 200


def test_replicas_follow_what_the_engines_themselves_measure_each_on_a_gpu_of_its_own(
    platform: Platform, model: Path, name: str
) -> None:
    rate = f"sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{{inference_service='{name}-2'}}[30s]))"
    queries = [
        ("vllm", f"sum(vllm:num_requests_waiting{{inference_service='{name}-0'}})", "2"),
        ("sglang", f"sum(sglang:num_queue_reqs{{inference_service='{name}-1'}})", "2"),
        ("vllm", f'"histogram_quantile(0.95, {rate})"', "0.4"),
    ]
    names = [f"{name}-{number}" for number in range(len(queries))]
    for each, (engine, query, threshold) in zip(names, queries, strict=True):
        platform.deploy(scaled(each, engine, str(model), query, threshold))
    for each in names:
        platform.wait_phase("Ready", name=each)
    with ExitStack() as stack:
        answers = [stack.enter_context(asked(platform, each, 5)) for each in names]
        for each in names:
            platform.wait(lambda: platform.status(each).revisions[0].ready == 2, f"two of {each}")  # noqa: B023
    assert {answer for each in answers for answer in each} == {(200, "one two three")}
    used = sorted(str(start["gpus"]) for each in names for start in starts(platform, each))
    assert used == sorted(map(str, range(6)))


def test_an_engine_that_is_not_installed_is_named_with_how_to_install_it(without: Platform, model: Path) -> None:
    named = catalogued("chat", "vLLM", str(model)).replace("modelFormat", "runtime: kserve-vllmserver, modelFormat")
    for document in (catalogued("chat", "vLLM", str(model)), named):
        with pytest.raises(PlatformError) as refused:
            without.deploy(document)
        assert "vLLM is not installed on this machine; pip install vllm" in str(refused.value)


def test_an_engine_that_ends_at_sigterm_answers_what_it_has_begun(platform: Platform, model: Path, name: str) -> None:
    document = scaled(name, "vllm", str(model), "sum(vllm:num_requests_waiting)", "100", most=1)
    platform.deploy(document)
    platform.wait_phase("Ready", name=name)
    with asked(platform, name, 3) as answers:
        for length in ("1", "2"):
            platform.wait(lambda: len(answers) > 2 * int(length), "answers of this revision")  # noqa: B023
            platform.deploy(document.replace("--port=8080", f"--port=8080, --max-model-len={length}"))
            platform.wait_phase("Progressing", name=name)
            platform.wait_phase("Ready", name=name)
            platform.wait(lambda: len(platform.status(name).revisions) == 1, "the earlier revision to end")
    assert set(answers) == {(200, "one two three")}
    assert len(starts(platform, name)) == 3


SGLANG = """{name: main, image: "lmsysorg/sglang:v0.5.5", command: [python3, -m, sglang.launch_server],
      args: [--model-path=/mnt/models, --served-model-name=NAME, --port=8000], resources: {limits: {cpu: "1"}}}"""


def with_adapters(name: str, model: Path, engine: str = "vllm", **adapters: Path) -> str:
    container = {"vllm": '{name: main, resources: {limits: {cpu: "1"}}}', "sglang": SGLANG.replace("NAME", name)}
    listed = ", ".join(f"{{name: {each}, uri: '{path}'}}" for each, path in adapters.items())
    return f"""
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {{name: {name}}}
spec:
  model: {{uri: '{model}', name: {name}, lora: {{adapters: [{listed}]}}}}
  replicas: 1
  router: {{route: {{}}}}
  template: {{containers: [{container[engine]}]}}
"""


def adapter(folder: Path, rank: int = 8, **config: object) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, **config}))
    return folder


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_deploy_of_other_adapters_does_not_restart_the_engine(
    platform: Platform, model: Path, tmp_path: Path, name: str, engine: str
) -> None:
    def served(adapter: str) -> str:
        """The version of the adapter that answers, under the name that was asked for."""
        reply = platform.ask("/v1/chat/completions", {"model": adapter, "messages": MESSAGES})
        assert reply.status != 200 or reply.json()["model"] == adapter
        return reply.headers["x-pilotlight-revision"] if reply.status == 200 else ""

    def events(reason: str) -> list[str]:
        found = platform.target.events(("default", name), follow=False)
        return [each.message for each in found if each.reason == reason]

    first, second = adapter(tmp_path / "first"), adapter(tmp_path / "second", rank=16)
    platform.deploy(with_adapters(name, model, engine, law=first))
    platform.wait_phase("Ready", name=name)
    before = served("law")
    assert before.startswith(f"{name}:law-" if engine == "sglang" else "law-")
    refused = adapter(tmp_path / "refused", modules_to_save=["lm_head"])
    platform.deploy(with_adapters(name, model, engine, law=second, tax=first, none=refused))
    platform.wait(lambda: served("law") not in ("", before) and bool(served("tax")), "the new adapters")
    listed = {each["id"]: each.get("parent") for each in platform.ask("/v1/models", None).json()["data"]}
    assert (listed[name], listed["law"], listed["tax"]) == (None, name, name)
    assert "none" not in listed
    platform.wait(lambda: any("none was not loaded" in each for each in events("AdapterFailed")), "the refusal")
    assert ask(platform, name) == (200, "one two three")
    assert len(starts(platform, name)) == 1
    platform.deploy(with_adapters(name, model, engine, law=adapter(tmp_path / "high", rank=200)))
    platform.wait(lambda: len(starts(platform, name)) == 2, "an engine for the higher rank")


POLICY = CanaryPolicy(
    steps=(50, 100), bake_s=1.0, interval_s=0.5, checks=(Check("error_rate", maximum=0.2),), min_requests=5,
    failure_limit=1, keep_stable_s=0.0,
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "phase"), [("better", "Promoted"), ("broken", "RolledBack"), ("refused", "RolledBack")]
)
def test_a_canary_of_an_adapter_is_judged_on_the_same_replica(
    platform: Platform, model: Path, tmp_path: Path, name: str, folder: str, phase: str
) -> None:
    law = f"law-of-{name}"
    platform.deploy(with_adapters(name, model, **{law: adapter(tmp_path / "first")}))
    platform.wait_phase("Ready", name=name)
    (stable,) = [each.name for each in platform.status(name).adapters]
    config = {"modules_to_save": ["lm_head"]} if folder == "refused" else {}
    request = platform.release_request(with_adapters(name, model, **{law: adapter(tmp_path / folder, **config)}))
    start(CanaryRequest(request, POLICY), platform.target, lambda _: None, print)
    answered: list[tuple[int, str]] = []

    def ended() -> bool:
        reply = platform.ask("/v1/chat/completions", {"model": law, "messages": MESSAGES})
        answered.append((reply.status, reply.headers.get("x-pilotlight-revision", "")))
        canary = ended_canary(platform, name)
        return canary is not None and canary.phase == phase

    platform.wait(ended, f"the canary to be {phase}")
    served = {model for status, model in answered if status == 200}
    assert stable in served
    assert len(served) == (2 if phase == "Promoted" else 1)
    platform.wait(lambda: len(platform.status(name).adapters) == 1, "one adapter")
    assert (platform.status(name).adapters[0].name == stable) == (phase == "RolledBack")
    assert len(starts(platform, name)) == 1
