"""Inputs and outputs of modules that declare none."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.torch import backend
from pilotlight_predictor.core.tensors import TensorSpec, tensor
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.repository.config_reader import config_from_pbtxt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
nn: Any = torch.nn


class Tokens(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.embed(input_ids)
        return self.head(hidden.mean(1)), hidden


class Product(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Pair(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, query: torch.Tensor, document: torch.Tensor, k: int) -> torch.Tensor:
        return (self.layer(query) * self.layer(document)).sum(-1) * k


class Joined(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([a, b], 1))


class Rated(nn.Module):  # type: ignore[misc]
    """Words and numbers of one text, with code that runs or is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(9, 2)

    def forward(self, numbers: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        if words.dim() == 1:
            words = words.unsqueeze(0)
        return self.head(torch.cat([self.embed(words.reshape(words.shape[0], -1).long()).mean(1), numbers.float()], 1))


class Bag(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, 4), nn.Linear(4, 2)

    def forward(self, weights: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(words) * weights)


class Masked(nn.Module):  # type: ignore[misc]
    """As of a language model: words, those that count, and what each is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids) * scale.unsqueeze(2)
        return self.head(hidden.masked_fill((attention_mask == 0).unsqueeze(2), 0.0).mean(1))


class Coded(nn.Module):  # type: ignore[misc]
    """A table of numbers, of which the first column is a code."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.embed(x[:, 0].long()), x[:, 1:]], 1))


class Counts(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x, 10).sum(1)


class Lenet(nn.Module):  # type: ignore[misc]
    """Layers in another order than `forward` has them, and a view that makes rows of an image that is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first, self.second = nn.Linear(400, 10), nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(self.second(torch.max_pool2d(self.first(x), 2)), 2)
        return self.head(x.view(-1, 400))


def flat(side: int, channels: int = 1) -> Any:
    layers = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * side * side, 10)
    return nn.Sequential(*layers)


def pooled(side: int) -> Any:
    stages = [nn.Conv2d(3, 3, 3, padding=1), nn.MaxPool2d(2)] * 2
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(3 * (side // 4) ** 2, 10))


IMAGES = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 7))
DIGITS = nn.Sequential(nn.Conv2d(1, 2, 5), nn.Flatten(), nn.Linear(2 * 24 * 24, 10))
GROUPED = nn.Sequential(nn.Conv1d(4, 4, 3, groups=2), nn.ReLU())
SPECS = {
    "linear": (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), ("FP32", (-1, 4)), [("FP32", (-1, 2))]),
    "double": (nn.Linear(4, 2).double(), ("FP64", (-1, 4)), [("FP64", (-1, 2))]),
    "product": (Product(), ("FP32", (-1, 5)), [("FP32", (-1, 2))]),
    "images of any size": (IMAGES, ("FP32", (-1, 3, -1, -1)), [("FP32", (-1, 7))]),
    "images of one size": (DIGITS, ("FP32", (-1, 1, 28, 28)), [("FP32", (-1, 10))]),
    "grouped": (GROUPED, ("FP32", (-1, 4, -1)), [("FP32", (-1, 4, -1))]),
    "tokens": (Tokens(), ("INT64", (-1, -1)), [("FP32", (-1, 3)), ("FP32", (-1, -1, 4))]),
    "norm": (nn.Sequential(nn.LayerNorm(6)), ("FP32", (-1, 6)), [("FP32", (-1, 6))]),
}


@pytest.mark.parametrize("scripted", [True, False], ids=["TorchScript", "model.py"])
@pytest.mark.parametrize("name", list(SPECS))
def test_the_first_layer_tells_the_inputs_and_a_run_the_outputs(
    name: str, scripted: bool, tmp_path: Path, spec: Callable[..., LoadSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, expected_input, expected_outputs = SPECS[name]
    if scripted:
        torch.jit.script(module).save(tmp_path / "model.pt")
    else:
        monkeypatch.setitem(__import__("sys").modules, "net_of_test", type("M", (), {"module": module}))  # type: ignore[arg-type]
        (tmp_path / "model.py").write_text("import sys\nbuild = lambda: sys.modules['net_of_test'].module\n")
        torch.save(module.state_dict(), tmp_path / "model.pt")
    instance = backend.load(spec(tmp_path / "model.pt"))
    (given,) = instance.inputs
    assert (given.datatype, given.shape) == expected_input
    assert [each[1:3] for each in instance.outputs] == expected_outputs
    assert [each.name for each in instance.outputs] == [f"OUTPUT__{i}" for i in range(len(expected_outputs))]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    torch.jit.script(Pair()).save(tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_several_arguments_are_derived_together(pair: Path, spec: Callable[..., LoadSpec]) -> None:
    instance = backend.load(spec(pair))
    assert [each[:3] for each in instance.inputs] == [
        ("query", "FP32", (-1, 4)), ("document", "FP32", (-1, 4)), ("k", "INT64", (1,))
    ]  # fmt: skip
    assert instance.outputs == [TensorSpec("OUTPUT__0", "FP32", (-1,))]
    rows, twice = tensor(np.ones((2, 4), "f4")), tensor(np.array([2]))
    once = tensor(np.array([1]))
    two = instance.run({"query": rows, "document": rows, "k": twice})["OUTPUT__0"].array
    one = instance.run({"query": rows, "document": rows, "k": once})["OUTPUT__0"].array
    np.testing.assert_allclose(two, 2 * one)
    with pytest.raises(BadRequest, match="missing inputs: 'document', 'k'; the model's forward takes 'query'"):
        instance.run({"query": rows})
    wrong = tensor(np.ones((2, 3), "f4"))
    with pytest.raises(BadRequest, match=r"the model rejects the input: .*; it accepts query FP32 \[1, 4\], document"):
        instance.run({"query": wrong, "document": wrong, "k": once})


@pytest.mark.parametrize(
    ("module", "shape", "derived"),
    [
        (flat(8), (1, 8, 8), (-1, 1, 8, 8)),
        (flat(48, 3), (3, 48, 48), (-1, 3, 48, 48)),
        (flat(64), (1, 64, 64), (-1, 1, 64, 64)),
        (nn.Sequential(nn.BatchNorm2d(3), flat(16, 3)), (3, 16, 16), (-1, 3, 16, 16)),
        (pooled(50), (3, 50, 50), (-1, 3, -1, -1)),  # 48 to 51 run
        (pooled(30), (3, 30, 30), (-1, 3, 28, 28)),  # 28 to 31 run: a common size
        (Lenet(), (3, 32, 32), (-1, 3, 32, 32)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 10 * 18, 3)), (1, 12, 20), (-1, 1, -1, -1)),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 98, 3)), (2, 100), (-1, 2, 100)),
    ],
)
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "scripted"])
def test_a_network_that_flattens_images_takes_those_of_its_size(
    module: Any, shape: tuple[int, ...], derived: tuple[int, ...], traced: bool, tmp_path: Path, spec: Any
) -> None:
    module.eval()
    script = torch.jit.trace(module, torch.zeros(1, *shape)) if traced else torch.jit.script(module)
    script.save(tmp_path / "model.pt")
    instance = backend.load(spec(tmp_path / "model.pt"))
    (given,) = instance.inputs
    assert (given.shape, instance.open_inputs) == (derived, True)
    assert instance.run({given.name: tensor(np.zeros((2, *shape), "f4"))})["OUTPUT__0"].array.shape[0] == 2
    if instance.sample:  # the warm-up, which verifies it
        assert instance.run(instance.sample)["OUTPUT__0"].array.shape[0] == 1


SEVERAL = {
    "numbers": (Rated(), (np.ones((2, 5), "f4"), np.ones((2, 7), "i8")), ["FP32", "INT64"], False),
    "weights": (Bag(), (np.ones((2, 4), "f4"), np.ones((2, 7), "i8")), ["FP32", "INT64"], True),
    "mask": (
        Masked(), (np.ones((2, 7), "i8"), np.ones((2, 7), "i8"), np.ones((2, 7), "f4")), ["INT64", "INT64", "FP32"],
        True,
    ),
    "code": (Coded(), (np.ones((2, 3), "f4"),), ["FP32"], False),
    "counts": (Counts(), (np.ones((2, 7), "i8"),), ["INT64"], True),
}  # fmt: skip


@pytest.mark.parametrize("how", ["script", "trace", "freeze"])
@pytest.mark.parametrize("name", list(SEVERAL))
def test_the_graph_shows_which_arguments_are_indices(name: str, how: str, tmp_path: Path, spec: Any) -> None:
    module, arrays, datatypes, runs = SEVERAL[name]
    example = tuple(torch.from_numpy(array) for array in arrays)
    script = torch.jit.trace(module.eval(), example) if how == "trace" else torch.jit.script(module.eval())
    script = torch.jit.freeze(script) if how == "freeze" else script
    script.save(tmp_path / "model.pt")
    instance = backend.load(spec(tmp_path / "model.pt"))
    assert [each.datatype for each in instance.inputs] == datatypes
    assert bool(instance.sample) == (runs and (how != "freeze" or name != "weights"))  # frozen ones have no layers
    values = {each.name: tensor(array) for each, array in zip(instance.inputs, arrays, strict=True)}
    assert instance.run(values)["OUTPUT__0"].array.shape[0] == 2


def test_what_cannot_be_derived_is_served_and_warned_about_with_a_configuration_to_start_from(
    tmp_path: Path, spec: Callable[..., LoadSpec], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(Joined()).save(path)
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        instance = backend.load(spec(path))
    assert (instance.open_inputs, instance.sample) == (True, {})
    three, four = (tensor(np.ones((1, size), "f4")) for size in (3, 4))
    assert instance.run({"a": three, "b": four})["OUTPUT__0"].array.shape == (1, 2)
    (record,) = caplog.records
    said, _, sample = record.getMessage().partition("config.pbtxt: ")
    assert "forward takes a, b" in said
    assert "deploy that folder" in said
    declared = config_from_pbtxt(sample, "sample")
    assert [(each.name, each.datatype, each.dims) for each in declared.inputs] == [
        ("a", "FP32", (-1, -1)), ("b", "FP32", (-1, -1))
    ]  # fmt: skip
    caplog.clear()
    backend.load(spec(path, declared))
    assert caplog.records == []


def test_a_request_of_another_shape_that_fails_is_the_clients_fault(tmp_path: Path, spec: Any) -> None:
    torch.jit.script(nn.Sequential(nn.LSTM(5, 2))).save(tmp_path / "model.pt")
    instance = backend.load(spec(tmp_path / "model.pt"))
    (given,) = instance.inputs
    for wrong in (np.zeros((1, 1, 4), "f4"), np.zeros((1, 1, 5), "i8")):
        with pytest.raises(BadRequest, match=r"the model rejects the input.*; it accepts input FP32 \[1, 8, 5\]"):
            instance.run({given.name: tensor(wrong)})


def test_a_tensor_that_no_layer_tells_is_rows_of_numbers_in_torchscript(tmp_path: Path, spec: Any) -> None:
    class Nothing(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch.jit.script(Nothing()).save(tmp_path / "model.pt")
    instance = backend.load(spec(tmp_path / "model.pt"))
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, -1))]
    assert instance.outputs == [TensorSpec("OUTPUT__0", "FP32", (-1, -1))]
