"""Real weights by the real llama.cpp on one machine: asked by OpenAI's own client and its own, at zero, and woken."""

import re
import subprocess
import time
from pathlib import Path

import openai
import pytest
from tests.embedded import Platform
from tests.engines import llama_cpp

DOCUMENT = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: smollm, annotations: {{autoscaling.knative.dev/window: 6s}}}}
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    model: {{modelFormat: {{name: gguf}}, storageUri: {uri}}}
"""
COLD_START_S = 60.0  # 9.4 s were measured on two cores with nine runnable processes, 7.8 of them for the prompt


@pytest.mark.long
@pytest.mark.parametrize("program", ["llama-server", "llama_cpp.server"])  # the last is built where the cache lacks it
def test_smollm2_is_served_scaled_to_zero_and_woken(tmp_path: Path, program: str) -> None:
    debian = program == "llama-server"
    programs = llama_cpp.debian_programs(tmp_path / "bin") if debian else llama_cpp.programs()
    with Platform(tmp_path / "home", {"PILOTLIGHT_ENGINE_PATH": str(programs)}) as platform:
        platform.deploy(DOCUMENT.format(uri=llama_cpp.weights().as_uri()))
        platform.wait_phase("Ready", name="smollm", seconds=180)
        url = f"http://127.0.0.1:{platform.gateway_port}/v1"  # of all models
        with openai.OpenAI(base_url=url, api_key="none", timeout=120, max_retries=0) as client:

            def ask(**options: object) -> str:
                question = {"role": "user", "content": "What is the capital of France? Answer in one word."}
                reply = client.chat.completions.create(
                    model="smollm", messages=[question], temperature=0, max_tokens=12, **options
                )  # type: ignore[call-overload]
                if not options:
                    return str(reply.choices[0].message.content)
                return "".join(chunk.choices[0].delta.content or "" for chunk in reply)

            assert [model.id for model in client.models.list()] == ["smollm"]
            assert "Paris" in ask()
            assert "Paris" in ask(stream=True)
            platform.wait_phase("Standby", name="smollm")
            began = time.monotonic()
            assert "Paris" in ask()
            seconds = time.monotonic() - began
            print(f"0 replicas to the answer: {seconds:.2f} s")
            assert seconds < COLD_START_S


ADAPTERS = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {{name: smollm}}
spec:
  model:
    uri: '{uri}'
    name: smollm
    lora: {{adapters: [{{name: same, uri: '{same}'}}, {{name: other, uri: '{other}'}}]}}
  replicas: 1
  router: {{route: {{}}}}
  template:
    containers:
      - name: main
        image: ghcr.io/ggml-org/llama.cpp:server-b7131
        command: [llama-server]
        resources: {{limits: {{cpu: "2"}}}}
        args: [--model, $(MODEL_PATH), --alias, smollm, --host, 0.0.0.0, --port, "8080", --ctx-size, "2048"]
        readinessProbe: {{httpGet: {{path: /health, port: 8080}}, periodSeconds: 1}}
"""


@pytest.mark.long
def test_llama_server_has_adapters_and_is_asked_by_llama_cli(tmp_path: Path) -> None:
    programs = llama_cpp.debian_programs(tmp_path / "bin")
    same, other = (llama_cpp.write_adapter(tmp_path / f"{scale:g}.gguf", scale) for scale in (0.0, 4.0))
    with Platform(tmp_path / "home", {"PILOTLIGHT_ENGINE_PATH": str(programs)}) as platform:
        uri = llama_cpp.weights().as_uri()
        platform.deploy(ADAPTERS.format(uri=uri, same=same.as_uri(), other=other.as_uri()))
        platform.wait_phase("Ready", name="smollm", seconds=180)
        url = f"http://127.0.0.1:{platform.gateway_port}"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=300, max_retries=0) as client:
            assert {model.id for model in client.models.list()} == {"smollm", "same", "other"}

            def ask(model: str) -> str:
                """The answer, whole and as a stream."""
                options = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
                whole = client.completions.create(model=model, **options)  # type: ignore[call-overload]
                chunks = list(client.completions.create(model=model, stream=True, **options))  # type: ignore[call-overload]
                assert {whole.model, *(chunk.model for chunk in chunks)} == {model}
                text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
                assert text == whole.choices[0].text
                return text

            base = ask("smollm")
            assert "Paris" in base
            assert ask("same") == base
            assert ask("other") != base
            assert ask("smollm") == base
        # Its own client: /health, /v1/models, a choice among them, /props, and a stream with timings_per_token.
        command = [programs / "llama-cli", "--server-base", url, "--single-turn", "--simple-io"]
        done = subprocess.run(
            [*command, "-p", "What is the capital of France? Answer in one word."], input="3\n", capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Selected model: smollm" in done.stdout
        answer = done.stdout.partition("one word.")[2]  # it sends no seed and no temperature
        rates = re.findall(r"(\d+\.\d) t/s", answer)
        assert answer.partition("[ Prompt:")[0].strip()
        assert len(rates) == 2
        assert min(map(float, rates)) > 0
