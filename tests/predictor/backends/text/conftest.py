"""A small language model on disk, and the text backend loaded from it, for the tests of this folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.text.tiny import text_model

from pilotlight_predictor.backends.base import Answer, LoadSpec
from pilotlight_predictor.backends.text.backend import TextInstance, load
from pilotlight_predictor.core.requests import InferRequest, RequestedOutput
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.repository.model_config import ModelConfig

ALL = ("text_output", "finish_reason", "index", "num_input_tokens", "num_output_tokens", "logprobs", "tool_calls")


class Heard:
    """Who asked, as the backend sees them: keeps what it is sent."""

    def __init__(self, text: str | None, *, messages: bytes = b"", stream: bool = False, **sampling: Any) -> None:
        inputs = {} if text is None else {"text_input": bytes_tensor(text.encode())}
        if messages:
            inputs["messages"] = bytes_tensor(messages)
        outputs = tuple(RequestedOutput(name) for name in ALL)
        parameters = {"exclude_input_in_output": True, "stream": stream, **sampling}
        self.request = InferRequest("tiny", inputs, outputs=outputs, parameters=parameters)
        self.answers: list[Any] = []
        self.cancelled = False
        self.full = False
        self._ended = Event()
        self.first = Event()
        self.on_send: Callable[[Heard], None] | None = None

    def send(self, answer: Answer, final: bool | None = None) -> None:
        self.answers.append(answer)
        self.first.set()
        if isinstance(answer, Exception) or final:
            self._ended.set()
        if self.on_send is not None:
            self.on_send(self)

    def complete(self) -> None:
        self._ended.set()

    def wait(self) -> "Heard":
        assert self._ended.wait(60)
        return self

    @property
    def error(self) -> Exception:
        (error,) = (answer for answer in self.answers if isinstance(answer, Exception))
        return error

    def value(self, name: str, index: int = 0) -> Any:
        """Of the last answer."""
        assert not isinstance(self.answers[-1], Exception), self.answers[-1]
        return self.answers[-1][name].array[index]

    def text(self, index: int = 0) -> str:
        """All that was told of one choice, one after the other."""
        pieces = []
        for answer in self.answers:
            assert not isinstance(answer, Exception), repr(answer.__cause__)
            rows = zip(answer["index"].array.tolist(), answer["text_output"].array, strict=True)
            pieces += [piece.decode() for row, piece in rows if row == index]
        return "".join(pieces)


def bytes_tensor(*values: bytes) -> Tensor:
    return Tensor("BYTES", np.array(values, dtype=object))


def text_instance(folder: Path, **parameters: str) -> TextInstance:
    return load(LoadSpec(ModelConfig("tiny", parameters=parameters), 1, folder, folder.parent))


@pytest.fixture(scope="session")
def tiny(text_models: Path) -> Path:
    return text_model(text_models)


@pytest.fixture(scope="session")
def instance(tiny: Path) -> Iterator[TextInstance]:
    made = text_instance(tiny)
    yield made
    made.close()


@pytest.fixture
def ask(instance: TextInstance) -> Callable[..., Heard]:
    """Asks and waits for the last answer."""

    def asked(text: str | None, **how: Any) -> Heard:
        heard = Heard(text, **how)
        instance.begin([heard])
        return heard.wait()

    return asked
