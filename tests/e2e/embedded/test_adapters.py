"""LoRA adapters of our predictor on the embedded platform: loaded into its process by the control process."""

from pathlib import Path

import pytest
from tests.embedded import Platform
from tests.predictor.backends.text.lora import write_adapter
from tests.predictor.backends.text.tiny import write_text_model

pytestmark = pytest.mark.long

SERVICE = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {{name: chat}}
spec:
  model: {{uri: '{model}', name: chat, lora: {{adapters: [{{name: law, uri: '{adapter}'}}]}}}}
  replicas: 1
  router: {{route: {{}}}}
  template: {{containers: [{{name: main, image: "pilotlight/predictor:0.1.0"}}]}}
"""


def test_the_predictor_gets_another_adapter_without_a_restart(tmp_path: Path) -> None:
    model = write_text_model(tmp_path / "model", "llama", 1)
    adapters = [write_adapter(tmp_path / name, model) for name in ("first", "second")]
    with Platform(tmp_path / "home") as platform:

        def served() -> str:
            reply = platform.ask("/v1/completions", {"model": "law", "prompt": "one", "max_tokens": 2})
            assert reply.status != 200 or reply.json()["model"] == "law"
            return reply.headers["x-pilotlight-revision"] if reply.status == 200 else ""

        platform.deploy(SERVICE.format(model=model, adapter=adapters[0]))
        platform.wait_phase("Ready", name="chat")
        before = served()
        assert before
        platform.deploy(SERVICE.format(model=model, adapter=adapters[1]))
        platform.wait(lambda: served() not in ("", before), "the other adapter")
        assert len(list(platform.home.logs.glob("default/chat/*.log"))) == 1
