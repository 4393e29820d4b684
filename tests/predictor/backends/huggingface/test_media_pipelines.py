"""Images and speech: answers of transformers' own pipelines, and refusals of what is no such file."""

import base64
import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from tests.predictor.backends.huggingface.conftest import answers, load_folder, request
from tests.predictor.backends.huggingface.tiny_tasks import write_vit, write_wav2vec2, write_whisper

from pilotlight_predictor.backends.huggingface.backend import HuggingFaceInstance
from pilotlight_predictor.errors import BadRequest

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")


def png(seed: int, size: tuple[int, int] = (40, 30)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def wav(samples: np.ndarray, rate: int = 16000, channels: int = 1) -> bytes:
    with wave.open(file := io.BytesIO(), "wb") as out:
        out.setparams((channels, 2, rate, 0, "NONE", ""))
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def vit(models: Path) -> HuggingFaceInstance:
    return load_folder(write_vit(models / "vit"))


@pytest.fixture(scope="module")
def ctc(models: Path) -> HuggingFaceInstance:
    return load_folder(write_wav2vec2(models / "ctc"))


def test_labels_of_images_are_those_of_the_pipeline(vit: HuggingFaceInstance, models: Path) -> None:
    images = [png(1), png(2), png(3)]
    judge = transformers.pipeline("image-classification", model=str(models / "vit"), device="cpu", top_k=1)
    expected = [judge(Image.open(io.BytesIO(data)))[0] for data in images]
    batch = answers(vit, *(request(image=[data]) for data in images))
    assert [answer["label"][0].decode() for answer in batch] == [row["label"] for row in expected]
    assert [answer["score"][0] for answer in batch] == pytest.approx([row["score"] for row in expected], abs=1e-4)


def test_an_image_may_come_as_base64_or_a_data_url(vit: HuggingFaceInstance) -> None:
    text = base64.b64encode(png(1)).decode()
    raw, encoded, url = answers(vit, *(request(image=[v]) for v in (png(1), text, f"data:image/png;base64,{text}")))
    assert raw == encoded == url


@pytest.mark.parametrize("data", [b"", b"no image", png(1)[:60], b"\x00" * 100], ids=["empty", "text", "cut", "zeros"])
def test_what_is_no_image_is_refused(vit: HuggingFaceInstance, data: bytes) -> None:
    with pytest.raises(BadRequest, match="input 'image' must be a BMP, GIF, JPEG, PNG, WEBP file"):
        vit.execute([request(image=[data])])


def test_an_image_too_large_to_decode_is_refused(vit: HuggingFaceInstance) -> None:
    Image.new("1", (9000, 9000)).save(file := io.BytesIO(), "PNG")
    with pytest.raises(BadRequest, match="9000 × 9000 pixels, expected at most 67108864"):
        vit.execute([request(image=[file.getvalue()])])


def transcribed(instance: HuggingFaceInstance, folder: Path, **options: object) -> list[str]:
    """Texts of two audios in one batch, after holding them to those of transformers' pipeline."""
    generator = np.random.default_rng(0)
    audios = [generator.uniform(-0.5, 0.5, size).astype(np.float32) for size in (4000, 16000)]
    judge = transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")
    heard = [(audio * 32767).astype("<i2").astype(np.float32) / 32768 for audio in audios]
    expected = [judge({"raw": audio, "sampling_rate": 16000}, **options)["text"] for audio in heard]
    texts = [row["text"][0].decode() for row in answers(instance, *(request(audio=[wav(audio)]) for audio in audios))]
    assert texts == expected
    assert answers(instance, request(audio=[wav(np.repeat(audios[0], 2), channels=2)]))[0]["text"] == [
        texts[0].encode()
    ]
    return texts


def test_speech_is_transcribed_as_by_the_pipeline(ctc: HuggingFaceInstance, models: Path) -> None:
    assert len(set(transcribed(ctc, models / "ctc"))) == 2


def test_whisper_transcribes_as_by_the_pipeline_without_beams(models: Path) -> None:
    folder = write_whisper(models / "whisper")
    instance = load_folder(folder, max_new_tokens="8")
    assert all(transcribed(instance, folder, generate_kwargs={"max_new_tokens": 8, "num_beams": 1}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no audio", "input 'audio' must be a PCM WAV file"),
        (b"", "input 'audio' must be a PCM WAV file"),
        (wav(np.zeros(100), rate=8000), "has 8000 samples a second and 100 samples, expected 16000 and at most 30 s"),
        (wav(np.zeros(100)).replace(struct.pack("<I", 16000), bytes(4)), "has 0 samples a second"),
        (wav(np.zeros(16000 * 31)), "has 16000 samples a second and 496000 samples"),
        (wav(np.zeros(0)), "has 0 samples of 16 bits"),
    ],
    ids=["text", "empty", "rate", "no rate", "length", "nothing"],
)
def test_audio_that_the_model_cannot_take_is_refused(ctc: HuggingFaceInstance, data: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        ctc.execute([request(audio=[data])])
