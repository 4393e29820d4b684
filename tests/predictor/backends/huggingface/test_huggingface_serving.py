"""A predictor with models of several tasks, asked by V1, V2, generate and OpenAI's API."""

import base64
import io
import json
import re
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.doc_pages import page_section
from tests.predictor.backends.huggingface.tiny_tasks import (
    ENTITIES,
    MOODS,
    write_bert,
    write_t5,
    write_vit,
    write_wav2vec2,
)
from tests.serving import RunningServer

pytest.importorskip("transformers")
START_S = 240.0  # transformers takes ten seconds of a core to import, and on a busy machine far longer
EMBEDDING = 'backend: "transformers" parameters { key: "task" value { string_value: "text_embedding" } }'


@pytest.fixture(scope="module")
def server(serve_module: Callable[..., RunningServer], models: Path) -> RunningServer:
    write_bert(models / "moods" / "1", "ForSequenceClassification", id2label=MOODS)
    write_bert(models / "entities" / "1", "ForTokenClassification", id2label=ENTITIES)
    write_bert(models / "answers" / "1", "ForQuestionAnswering")
    write_bert(models / "masked" / "1", "ForMaskedLM")
    write_bert(models / "vectors" / "1", "ForMaskedLM")
    (models / "vectors" / "config.pbtxt").write_text(EMBEDDING)
    write_vit(models / "pictures" / "1")
    write_t5(models / "shorter" / "1")
    (models / "shorter" / "config.pbtxt").write_text(EMBEDDING.replace("text_embedding", "summarization"))
    (models / "speech").mkdir()
    write_wav2vec2(models / "speech" / "1")
    server = serve_module(models, "--threads", "1", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", START_S)
    return server


def predict(server: RunningServer, model: str, *instances: Any) -> Any:
    answer = server.post(f"/v1/models/{model}:predict", {"instances": instances})
    assert answer.status == 200, answer.body
    return answer.json()["predictions"]


def tensor(*texts: str, name: str = "text") -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts}


def test_every_model_has_answered_its_warm_up(server: RunningServer) -> None:
    assert server.get("/status").json()["verified"] is True


def test_strings_are_instances_of_v1(server: RunningServer) -> None:
    rows = predict(server, "moods", "good dog", "bad film")
    assert all(row["label"] in MOODS.values() and 1 / 3 < row["score"] <= 1 for row in rows)
    assert predict(server, "moods", {"text": "good dog", "text_pair": "bad film"})[0] != rows[0]
    text, pair = server.get("/v2/models/moods").json()["inputs"]
    assert ("parameters" in text, pair["parameters"]) == (False, {"optional": True})


BY_TASK = {
    "text-classification": "moods", "token-classification": "entities", "fill-mask": "masked",
    "feature-extraction": "vectors", "question-answering": "answers", "text2text-generation": "shorter",
    "image-classification": "pictures", "automatic-speech-recognition": "speech",
}  # fmt: skip


def test_the_page_has_an_instance_of_each_task_and_the_form_of_its_prediction(server: RunningServer) -> None:
    page = page_section("docs/reference/backends.md", "Hugging Face models")
    _, _, table = page.partition("| task | an instance | its prediction |\n|---|---|---|\n")
    rows = [re.findall("`(.*?)`", line) for line in table.partition("\n\n")[0].splitlines()]
    assert {row[0] for row in rows} == BY_TASK.keys()
    for task, *_, instance, prediction in rows:
        content = {"image-classification": png(), "automatic-speech-recognition": silence()}.get(task, b"")
        sent = json.loads(instance.replace("…", base64.b64encode(content).decode()))
        (answer,) = predict(server, BY_TASK[task], sent)
        assert form(answer) == form(json.loads(prediction.replace(", …", ""))), task


def form(value: Any) -> Any:
    """Keys and types of a JSON value; a list is as its first element."""
    if isinstance(value, list):
        return [form(each) for each in value[:1]]
    return {key: form(each) for key, each in value.items()} if isinstance(value, dict) else type(value)


def png() -> bytes:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (32, 32), "red").save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def silence() -> bytes:
    with wave.open(file := io.BytesIO(), "wb") as audio:
        audio.setparams((1, 2, 16000, 0, "NONE", ""))
        audio.writeframes(bytes(8000))
    return file.getvalue()


def test_entities_are_json_in_v1_and_bytes_in_v2(server: RunningServer) -> None:
    rows = predict(server, "entities", "Anna lives in Paris", "a cat")
    assert set(rows[0][0]) == {"entity_group", "score", "word", "start", "end"}
    (output,) = server.infer("entities", {"inputs": [tensor("Anna lives in Paris", "a cat")]}).json()["outputs"]
    assert output["datatype"] == "BYTES"
    assert [json.loads(text) for text in output["data"]] == rows
    assert server.post("/v2/models/entities/generate", {"text": "a cat"}).json()["entities"] == rows[1]


def test_texts_are_inputs_of_predict(server: RunningServer) -> None:
    rows = predict(server, "moods", "good dog", "bad film")
    answer = server.post("/predict", {"batch": ["good dog", "bad film"], "model_name": "moods"})
    assert answer.json()["predictions"] == [[row["label"]] for row in rows]
    entities = server.post("/predict", {"inputs": "a cat", "model_name": "entities"}).json()["predictions"]
    assert entities == predict(server, "entities", "a cat")


def test_an_instance_of_several_inputs_is_an_object(server: RunningServer) -> None:
    question = {"question": "who lives in paris?", "context": "Anna lives in Paris."}
    (row,) = predict(server, "answers", question)
    assert question["context"][row["start"] : row["end"]] == row["answer"]


def test_an_image_is_sent_as_b64(server: RunningServer) -> None:
    text = base64.b64encode(png()).decode()
    (row,), (same,) = predict(server, "pictures", {"b64": text}), predict(server, "pictures", text)
    assert row == same
    assert row["label"] in MOODS.values()


def test_requested_outputs_of_v2_come_in_that_order(server: RunningServer) -> None:
    body = {"inputs": [tensor("good dog")], "outputs": [{"name": "probabilities"}, {"name": "label"}]}
    outputs = server.infer("moods", body).json()["outputs"]
    assert [(output["name"], output["shape"]) for output in outputs] == [("probabilities", [1, 3]), ("label", [1])]


@pytest.mark.parametrize("name", ["args", "array_inputs", "inputs", "input-0"])
def test_names_of_other_servers_are_taken_for_the_only_input(server: RunningServer, name: str) -> None:
    texts = ["good dog", "bad film " * (10_000 if name == "args" else 1)]  # a long body is checked before it is read
    expected = server.infer("moods", {"inputs": [tensor(*texts)]}).json()["outputs"]
    column = tensor(*texts, name=name) | {"shape": [2, 1], "parameters": {"content_type": "str"}}
    assert server.infer("moods", {"inputs": [column]}).json()["outputs"] == expected
    assert server.infer("moods", {"inputs": [tensor(*texts, name=name)]}).json()["outputs"] == expected
    assert "unexpected inference input" in server.infer("moods", {"inputs": [tensor(*texts), column]}).error
    assert "unexpected inference input" in server.infer("answers", {"inputs": [column]}).error


def test_embeddings_are_found_by_openais_api(server: RunningServer) -> None:
    answer = server.post("/v1/embeddings", {"model": "vectors", "input": ["the cat", "a dog is happy"]}).json()
    assert [len(row["embedding"]) for row in answer["data"]] == [16, 16]
    assert answer["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["vectors"]
    vectors = predict(server, "vectors", "the cat", "a dog is happy")
    assert vectors[1] == pytest.approx(answer["data"][1]["embedding"], abs=1e-5)


def test_concurrent_requests_are_answered_as_each_alone(server: RunningServer) -> None:
    texts = [f"{'good ' * (n % 7)}dog {'sad' if n % 2 else ''}" for n in range(40)]
    alone = [predict(server, "moods", text)[0] for text in texts[:14]]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda text: predict(server, "moods", text)[0], texts))
    for row, expected in zip(together, alone, strict=False):
        assert row == {"label": expected["label"], "score": pytest.approx(expected["score"], abs=1e-5)}


def test_a_bad_request_fails_alone_and_names_the_input(server: RunningServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = ["no mask" if n % 2 else "a [MASK]" for n in range(8)]
        replies = list(pool.map(lambda t: server.infer("masked", {"inputs": [tensor(t)]}), texts))
    assert [reply.status for reply in replies] == [400 if n % 2 else 200 for n in range(8)]
    assert "input 'text' has a row without [MASK]" in replies[1].error
