"""Every example model, served by the real predictor in a process of its own, gives answers that are right.

What is right comes from elsewhere where it can: magika's own package, vectors that `transformers` made of the same
weights, the same network in another format, a picture whose text we drew.
"""

import io
import json
import os
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.build import build
from examples.iris import train

from pilotlight.client import Client, ResponseError
from pilotlight.wire.http_client import HttpClient

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT = 240  # seconds; torch alone takes many on a busy machine

Array = np.ndarray[Any, np.dtype[Any]]


@contextmanager
def predictor(folder: Path, *flags: str) -> Iterator[str]:
    """A predictor on a port of the system's choice; its URL once it is ready."""
    log = folder / "predictor.log"
    command = [sys.executable, "-m", "pilotlight_predictor", "--host", "127.0.0.1", "--http-port", "0"]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--grpc-port", "-1", "--metrics-port", "-1", *flags], stderr=stderr, cwd=ROOT
        )
    try:
        yield wait_until_ready(process, log)
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    url = ""
    while time.monotonic() < deadline and process.poll() is None:
        url = url or listening_url(log.read_text())
        if url and Client(url, retries=0, timeout=5).ready():
            return url
        time.sleep(0.05)
    pytest.fail(f"the predictor is not ready; exit code {process.poll()}; its log:\n{log.read_text()[-6000:]}")


def listening_url(log: str) -> str:
    for line in log.splitlines():
        if '"listening"' in line and line.endswith("}"):
            return f"http://127.0.0.1:{json.loads(line)['http_port']}"
    return ""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("models")
    build(repository)
    with predictor(tmp_path_factory.mktemp("log"), "--model-repository", str(repository)) as running:
        yield running


def test_iris_classifies_the_flowers_it_knows(url: str) -> None:
    x, species = train.read()
    y = np.vstack([Client(url).infer("iris", part)["y"] for part in np.split(x, 3)])
    assert (y.argmax(axis=1) == species.argmax(axis=1)).mean() >= 0.96
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-5)


def test_file_type_agrees_with_magika_itself(url: str) -> None:
    magika = pytest.importorskip("magika").Magika()
    for content in contents():
        result = Client(url).infer("file_type", [content])
        expected = magika.identify_bytes(content)
        assert result.strings("label") == [str(expected.output.label)]
        assert result["score"].item() == pytest.approx(expected.score, abs=1e-3)


def contents() -> list[bytes]:
    pictures = [picture("", image_format=kind) for kind in ("PNG", "JPEG", "PDF")]
    few = [b"", b"  \n", b"hi", b"\xff\xfe\x00", b" " * 5000 + b"import os"]
    text = [b'{"a": [1, 2, 3], "b": null, "c": "hello"}', b"lorem ipsum dolor sit amet, a plain sentence of words"]
    noise = np.random.default_rng(0).bytes(9000)
    return [Path(__file__).read_bytes(), Path(sys.executable).read_bytes()[:20000], *pictures, *few, *text, noise]


@pytest.mark.parametrize(("kind", "label"), [("PNG", "png"), ("JPEG", "jpeg"), ("PDF", "pdf"), ("GIF", "gif")])
def test_file_type_knows_the_formats_of_pictures(url: str, kind: str, label: str) -> None:
    assert Client(url).infer("file_type", [picture("", image_format=kind)]).strings("label") == [label]


def test_file_type_gives_the_best_classes_with_their_labels(url: str) -> None:
    content = {"name": "content", "datatype": "BYTES", "shape": [1, 1], "data": [Path(__file__).read_text()]}
    outputs = [{"name": "probabilities", "parameters": {"classification": 2}}]
    body = json.dumps({"inputs": [content], "outputs": outputs}).encode()
    with HttpClient(url, 60) as client:
        answer = json.loads(client.request("POST", "/v2/models/file_type/infer", body).body)
    best, second = answer["outputs"][0]["data"]
    assert best.endswith(":python")
    assert float(best.split(":")[0]) > float(second.split(":")[0])


def test_speech_is_told_from_silence(url: str) -> None:
    probabilities = speech_probabilities(url, "vad")
    assert max(probabilities[:2]) < 0.1  # before the first word
    assert np.mean(probabilities[3:16]) > 0.9  # "hello"
    assert max(probabilities[20:26]) < 0.1  # the pause after it


def test_onnx_and_torchscript_hear_the_same(url: str) -> None:
    onnx, torchscript = (speech_probabilities(url, model) for model in ("vad", "vad_torchscript"))
    np.testing.assert_allclose(onnx, torchscript, atol=1e-3)


def speech_probabilities(url: str, model: str) -> list[float]:
    """One probability for each 32 ms of the first second, the state handed from answer to request."""
    with wave.open(str(ROOT / "examples" / "vad" / "speech.wav")) as file:
        audio = np.frombuffer(file.readframes(16000), dtype="<i2") / 32768
    audio, state, found = np.concatenate([np.zeros(64), audio]), np.zeros((2, 1, 128)), []
    client = Client(url)
    names = ("input", "state") if model == "vad" else ("INPUT__0", "INPUT__1")
    rate = {"sr": [16000]} if model == "vad" else {}
    for start in range(0, 16000 - 511, 512):
        inputs = {names[0]: audio[start : start + 576], names[1]: state, **rate}
        probability, state = client.infer(model, inputs).values()
        found.append(probability.item())
    return found


SENTENCES = (
    "A cat sits on the mat.",
    "A kitten is resting on a rug, and it is really very tired today.",
    "The stock market fell sharply.",
)
# The first numbers of the first sentence's vector, as transformers 5.22 with mean pooling computes them.
REFERENCE = (0.126535, -0.032851, -0.029060, 0.044407, -0.043445, 0.032097, 0.048111, 0.027675)


def embeddings(url: str, *sentences: str) -> Array:
    return Client(url).infer("embed_text", [[each] for each in sentences])["embedding"]


def test_embeddings_are_those_of_the_reference_implementation(url: str) -> None:
    np.testing.assert_allclose(embeddings(url, SENTENCES[0])[0, :8], REFERENCE, atol=1e-4)


def test_embeddings_of_like_sentences_are_alike(url: str) -> None:
    cosine = (vectors := embeddings(url, *SENTENCES)) @ vectors.T
    np.testing.assert_allclose(np.diag(cosine), 1, atol=1e-5)
    assert cosine[0, 1] > 0.5 > 0.2 > max(cosine[0, 2], cosine[1, 2])


def test_a_sentence_has_the_same_embedding_alone_and_padded_in_a_batch(url: str) -> None:
    together = embeddings(url, *SENTENCES)
    for row, sentence in zip(together, SENTENCES, strict=True):
        np.testing.assert_allclose(embeddings(url, sentence)[0], row, atol=1e-5)


def picture(text: str, image_format: str = "PNG") -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 160), "white")
    ImageDraw.Draw(image).multiline_text((30, 20), text, "black", ImageFont.load_default(32), spacing=30)
    image.save(buffer := io.BytesIO(), image_format)
    return buffer.getvalue()


def test_the_text_of_a_picture_is_read_line_by_line(url: str) -> None:
    lines = ["Pilotlight serves models", "Invoice 2024: 1,250.00 EUR"]
    result = Client(url).infer("read_text", [picture("\n".join(lines))])
    # The network loses spaces in tight type, in RapidOCR's own pipeline too, so they are not compared.
    assert [line.replace(" ", "") for line in result.strings("text")] == [line.replace(" ", "") for line in lines]
    assert result["score"].min() > 0.9
    left, top, right, bottom = result["box"][1]
    assert (left, right) == (pytest.approx(30, abs=15), pytest.approx(430, abs=25))
    assert top < bottom


def test_a_blank_picture_has_no_text(url: str) -> None:
    result = Client(url).infer("read_text", [picture("")])
    assert result.strings("text") == []
    assert result["box"].shape == (0, 4)


def test_bytes_that_are_no_picture_are_the_clients_fault(url: str) -> None:
    with pytest.raises(ResponseError, match="must hold the bytes of a picture") as refused:
        Client(url).infer("read_text", [b"not a picture"])
    assert refused.value.status == 400


def test_the_settings_file_serves_the_iris_model(tmp_path: Path) -> None:
    with predictor(tmp_path, "--config", "examples/inference.yaml") as running:
        result = Client(running).infer("iris", [5.1, 3.5, 1.4, 0.2])
    assert result["y"].argmax() == 0


def readme_commands() -> Iterator[Any]:
    """Each command and what it prints, from the console blocks; those that build and serve are the fixture's."""
    for file in sorted((ROOT / "examples").glob("*/README.md")):
        for block in file.read_text().split("```console\n")[1:]:
            for entry in block.partition("```")[0].split("$ ")[1:]:
                command, _, printed = entry.partition("\n")
                if not command.startswith(("python examples/build.py", "platformctl serve")):
                    yield pytest.param(command, printed, id=command)


@pytest.mark.parametrize(("command", "printed"), list(readme_commands()))
def test_the_readme_commands_print_what_the_readme_says(url: str, command: str, printed: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = command.replace("http://127.0.0.1:8080", url)
    environment = {**os.environ, "PREDICTOR_URL": url, "PATH": path, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert without_numbers(done.stdout) == without_numbers(printed)
    assert numbers(done.stdout) == pytest.approx(numbers(printed), abs=0.02, rel=0.002)  # processors round differently


def words(text: str) -> list[str]:
    for mark in "[](),:\"'{}%":
        text = text.replace(mark, f" {mark} ")
    return text.split()


def is_number(word: str) -> bool:
    return word.lstrip("+-").replace(".", "", 1).isdigit()


def numbers(text: str) -> list[float]:
    return [float(word) for word in words(text) if is_number(word)]


def without_numbers(text: str) -> list[str]:
    return [word for word in words(text) if not is_number(word)]
