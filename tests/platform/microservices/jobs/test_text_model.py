"""A language model behind the command line and OpenAI's own client: started, polled, asked in words, stopped."""

from pathlib import Path

import openai
import pytest
from tests.platform.microservices.jobs.conftest import Ctl
from tests.predictor.backends.text.tiny import text_model

pytest.importorskip("transformers", reason="the extra `text` is not installed")


@pytest.mark.long  # transformers alone takes ten seconds of a core to import
def test_a_model_that_has_learnt_a_few_sentences_says_them(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    model = text_model(tmp_path / "kept")
    told = ctl.do("start", "text", "--model-path", str(model), "-o", "json")
    words = ("--temperature", "0", "--max-tokens", "30", "--accept-defaults", "--wait", "300")
    assert "Hello! How can I help you today?" in ctl.do("infer", "--prompt", "hello", *words)
    (entry,) = [each for name, each in ctl.registry.items() if name != "latest"]
    with openai.OpenAI(base_url=f"{entry['host_url']}/v1", api_key="none", timeout=300) as client:
        answer = client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": "count"}], temperature=0, max_tokens=30
        )
    assert (answer.choices[0].message.content or "").startswith("One two three four")
    assert entry["host_url"] in told
