"""Real weights by the real llama.cpp on one machine: asked by OpenAI's own client, at zero, and woken."""

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


@pytest.mark.long  # builds llama.cpp where the cache does not have it
def test_smollm2_is_served_scaled_to_zero_and_woken(tmp_path: Path) -> None:
    env = {"PILOTLIGHT_ENGINE_PATH": str(llama_cpp.programs())}
    with Platform(tmp_path / "home", env) as platform:
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
