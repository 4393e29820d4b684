"""Pipelines of images and audio: files as bytes, or as their base64, decoded in memory."""

import base64
import binascii
import io
import wave
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.backends.huggingface.pipeline import ClassificationHead, Pipeline, PipelineModel, strings
from pilotlight_predictor.backends.huggingface.task import TaskSettings
from pilotlight_predictor.backends.transformers_library import load_part
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import Array, TensorSpec
from pilotlight_predictor.errors import BadRequest, LoadFailed

FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
MAX_PIXELS: Final = 1 << 26  # 192 MiB decoded
MAX_SECONDS: Final = 30.0  # of audio: the window of Whisper


class ImageClassification(Pipeline):
    inputs = (TensorSpec("image", "BYTES", (-1,)),)

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            raise LoadFailed(f"image models need pillow: {install_command('media')} ({error})") from None
        super().__init__(model, settings)
        self._processor = load_part("AutoImageProcessor", model.folder)
        self._head = ClassificationHead(model.config, settings)
        self.outputs, self.on_request = self._head.outputs, self._head.on_request
        Image.new("RGB", (64, 64)).save(blank := io.BytesIO(), "PNG")
        self.sample = {"image": strings([blank.getvalue()])}

    def run(self, inputs: Inputs) -> Outputs:
        import torch

        # One at a time: decoded, an image of a few bytes may take 192 MiB.
        rows = [self._processor(images=read_image(item), return_tensors="pt") for item in inputs["image"].array]
        return self._head.read(self.model.forward({k: torch.cat([row[k] for row in rows]) for k in rows[0]}).logits)


class SpeechRecognition(Pipeline):
    """Base of speech recognition: WAV files at the model's sampling rate → `text`."""

    inputs = (TensorSpec("audio", "BYTES", (-1,)),)
    outputs = (TensorSpec("text", "BYTES", (-1,)),)

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        self._processor = load_part("AutoProcessor", model.folder)
        self._rate = int(self._processor.feature_extractor.sampling_rate)
        with wave.open(silence := io.BytesIO(), "wb") as file:
            file.setparams((1, 2, self._rate, 0, "NONE", ""))
            file.writeframes(bytes(2 * self._rate))
        self.sample = {"audio": strings([silence.getvalue()])}

    def run(self, inputs: Inputs) -> Outputs:
        samples = [read_wave(item, self._rate) for item in inputs["audio"].array]
        return {"text": strings([text.encode() for text in self._transcribe(samples)])}

    def _transcribe(self, samples: Sequence[Array]) -> list[str]:
        raise NotImplementedError

    def _features(self, samples: Sequence[Array]) -> Any:
        return self._processor.feature_extractor(samples, sampling_rate=self._rate, return_tensors="pt")


class CtcSpeechRecognition(SpeechRecognition):
    """One audio after another: padding would change the output of models with group normalisation."""

    def _transcribe(self, samples: Sequence[Array]) -> list[str]:
        logits = [self.model.forward(self._features([audio])).logits[0] for audio in samples]
        return [self._processor.tokenizer.decode(scores.argmax(-1)) for scores in logits]


class WhisperSpeechRecognition(SpeechRecognition):
    """All audios at once: their features are padded to 30 s, as the model was trained."""

    def _transcribe(self, samples: Sequence[Array]) -> list[str]:
        limit = self.settings.max_new_tokens
        tokens = self.model.generate(self._features(samples), **({"max_new_tokens": limit} if limit else {}))
        texts: list[str] = self._processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts


PIPELINES: Final[Mapping[str, type[Pipeline]]] = {
    "AutoModelForImageClassification": ImageClassification,
    "AutoModelForCTC": CtcSpeechRecognition,
    "AutoModelForSpeechSeq2Seq": WhisperSpeechRecognition,
}


def read_image(data: bytes) -> Any:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(_content(data)), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise BadRequest(f"input 'image' has {image.width} × {image.height} pixels, expected at most {MAX_PIXELS}")
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise BadRequest(f"input 'image' must be a {', '.join(FORMATS)} file as bytes or base64") from None


def read_wave(data: bytes, rate: int) -> Array:
    """Return the samples of a WAV file as one channel from -1 to 1."""
    try:
        with wave.open(io.BytesIO(_content(data))) as file:
            channels, width, own_rate, count = file.getparams()[:4]
            if own_rate != rate or count > MAX_SECONDS * rate:
                has = f"{own_rate} samples a second and {count} samples"
                raise BadRequest(f"input 'audio' has {has}, expected {rate} and at most {MAX_SECONDS:g} s")
            raw = file.readframes(count)
    except (wave.Error, EOFError, ValueError) as error:
        raise BadRequest(f"input 'audio' must be a PCM WAV file, as bytes or base64: {first_line(error)}") from None
    if width not in {2, 4} or not raw:
        raise BadRequest(f"input 'audio' has {count} samples of {8 * width} bits, expected some of 16 or 32 bits")
    samples = np.frombuffer(raw[: len(raw) // (width * channels) * width * channels], f"<i{width}")
    mono: Array = samples.reshape(-1, channels).mean(1) / float(1 << (8 * width - 1))
    return mono.astype(np.float32)


def _content(data: bytes) -> bytes:
    """Return a file that may be in base64 or a data: URL; a raw one is never valid base64."""
    try:
        return base64.b64decode(data.rpartition(b"base64,")[2] if data.startswith(b"data:") else data, validate=True)
    except binascii.Error:
        return bytes(data)
