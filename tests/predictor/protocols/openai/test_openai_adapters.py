"""Adapters as clients and operators see them: names in /v1/models, `model` in requests, vLLM's calls, metrics."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.predictor.backends.text.lora import merged, write_adapter
from tests.predictor.backends.text.tiny import greedy_text, text_model
from tests.predictor.in_process_server import House, play
from tests.predictor.protocols.openai.conftest import client_of
from tests.predictor.workers.several import wait_for_all
from tests.serving import RunningServer

from pilotlight_predictor.protocols.openai.routes import model_list

HOW: Any = {"prompt": "The server sleeps", "max_tokens": 12, "temperature": 0}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def adapter(text_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "sql", text_model(text_models), 5, r=8)


def test_an_adapter_is_a_model_of_its_own_from_its_load_to_its_unload(
    speaking: RunningServer, client: openai.OpenAI, adapter: Path, text_models: Path, tmp_path: Path
) -> None:
    base = text_model(text_models)
    expected = greedy_text(merged(tmp_path / "merged", base, adapter), HOW["prompt"], 12)
    call = {"lora_name": "sql", "lora_path": str(adapter)}
    ambiguous = speaking.post(LOAD, call)
    assert (ambiguous.status, "model is missing, must be one of plain, tiny" in ambiguous.body.decode()) == (400, True)
    assert speaking.post(LOAD, {**call, "model": "tiny"}).body == b"Success: LoRA adapter 'sql' added successfully."
    try:
        (listed,) = [model for model in client.models.list() if model.id == "sql"]
        assert listed.model_extra == {"root": str(adapter), "parent": "tiny"}
        assert client.models.retrieve("sql").id == "sql"
        with pytest.raises(openai.NotFoundError, match="did you mean sql"):
            client.completions.create(model="sqll", **HOW)
        answer = client.completions.create(model="sql", **HOW)
        assert (answer.model, answer.choices[0].text) == ("sql", expected)
        assert client.completions.create(model="tiny", **HOW).choices[0].text == greedy_text(base, HOW["prompt"], 12)
        chunks = list(client.completions.create(model="sql", stream=True, **HOW))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        v2 = {"text_input": HOW["prompt"], "parameters": {"temperature": 0, "max_tokens": 12, "lora_name": "sql"}}
        assert speaking.post("/v2/models/tiny/generate", v2).json()["text_output"] == HOW["prompt"] + expected
        assert 'model="sql",version="1",protocol="openai",code="200"' in speaking.get("/metrics").body.decode()
        again = speaking.post(LOAD, {**call, "model": "tiny"})
        assert (again.status, "already loaded" in again.body.decode()) == (400, True)
        assert speaking.post(LOAD, {**call, "load_inplace": True}).status == 200
    finally:
        removed = speaking.post(UNLOAD, {"lora_name": "sql"})
    assert removed.body == b"Success: LoRA adapter 'sql' removed successfully."
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="sql", **HOW)
    assert unknown.value.code == "model_not_found"
    assert speaking.post(UNLOAD, {"lora_name": "sql"}).status == 404
    assert 'model="sql"' not in speaking.get("/metrics").body.decode()


@pytest.mark.long  # the text backend is imported twice
def test_with_fronts_an_adapter_outlives_the_model_process_and_errors_name_their_field(
    speakers: Path, adapter: Path, serve: Callable[..., RunningServer], tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(speakers / "tiny")
    server = serve(tmp_path, "--fronts", "2", "--threads", "1", "--warmup", "none")
    models = wait_for_all(server, 3)[-1]
    assert server.post(LOAD, {"lora_name": "sql", "lora_path": str(adapter)}).status == 200
    with client_of(server) as client:
        (first, *others) = (client.completions.create(model="sql", **HOW).choices[0].text for _ in range(4))
        assert others == [first] * 3
        os.kill(models, signal.SIGKILL)
        wait_for_all(server, 3, other_than=models)
        assert client.completions.create(model="sql", **HOW).choices[0].text == first
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(**{**HOW, "model": "sql", "max_tokens": 5000})
        assert refused.value.param == "max_tokens"
    assert server.post(UNLOAD, {"lora_name": "sql"}).status == 200
    assert 'model="sql"' not in server.get("/metrics").body.decode()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"lora_name": "tiny", "lora_path": "/x"}, "is the name of a model"),
        ({"lora_name": "a/b", "lora_path": "/x"}, "lora_name 'a/b' is not valid"),
        ({"lora_name": "a"}, "lora_path is missing"),
        ({"lora_name": "a", "lora_path": "/x", "model": "adds"}, "model 'adds' takes no adapters"),
        ({"lora_name": "a", "lora_path": "/missing", "model": "tiny"}, "adapter_config.json cannot be read"),
        ({"name": "a"}, "must be a JSON object with lora_name and lora_path"),
    ],
)
def test_a_load_that_cannot_be_is_refused_with_its_field(
    speaking: RunningServer, call: dict[str, str], message: str
) -> None:
    answer = speaking.post(LOAD, call)
    assert answer.status == 400
    assert message in answer.json()["error"]["message"]


def test_only_an_admin_loads_adapters(speaking: RunningServer, adapter: Path) -> None:
    call = {"lora_name": "sql", "lora_path": str(adapter), "model": "tiny"}
    assert speaking.post(LOAD, call, {"X-Forwarded-For": "10.0.0.7"}).status == 403


def test_adapters_of_the_settings_are_loaded_with_their_model(text_models: Path, adapter: Path) -> None:
    async def scene() -> None:
        model = {"path": str(text_model(text_models)), "name": "chat", "adapters": {"sql": str(adapter)}}
        house = await House(model=model).start()
        listed = model_list(house.server)["data"]
        assert [(each["id"], each.get("parent"), each.get("root")) for each in listed] == [
            ("chat", None, None),
            ("sql", "chat", str(adapter)),
        ]
        await house.server.registry.close()

    play(scene())


def test_adapters_that_no_model_can_take_fail_the_load(text_models: Path, adapter: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "model.py").write_text("def predict(x):\n    return x\n")
        path, name = str(text_model(text_models)), str(adapter)
        for model, message in (
            ({"path": str(tmp_path / "model.py"), "adapters": {"sql": name}}, "takes no adapters: only text models"),
            ({"path": path, "name": "sql", "adapters": {"sql": name}}, "has the name of its model"),
            ({"path": path, "name": "chat", "adapters": {"sql": "/missing"}}, "adapter 'sql': /missing/adapter_config"),
        ):
            house = await House(model=model).start()
            assert message in house.server.readiness().reason

    play(scene())
