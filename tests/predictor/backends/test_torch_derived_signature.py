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


def test_several_arguments_are_served_by_name_with_any_shape(pair: Path, spec: Callable[..., LoadSpec]) -> None:
    instance = backend.load(spec(pair))
    assert not instance.inputs
    rows, twice = tensor(np.ones((2, 4), "f4")), tensor(np.array([2]))
    once = tensor(np.array([1]))
    two = instance.run({"query": rows, "document": rows, "k": twice})["OUTPUT__0"].array
    one = instance.run({"query": rows, "document": rows, "k": once})["OUTPUT__0"].array
    np.testing.assert_allclose(two, 2 * one)
    with pytest.raises(BadRequest, match="missing inputs: document, k; the model's forward takes query"):
        instance.run({"query": rows})


def test_what_cannot_be_derived_is_warned_about_with_a_configuration_to_start_from(
    pair: Path, spec: Callable[..., LoadSpec], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        backend.load(spec(pair))
    (record,) = caplog.records
    said, _, sample = record.getMessage().partition("config.pbtxt: ")
    assert "forward takes query, document, k" in said
    declared = config_from_pbtxt(sample, "sample")
    assert [(each.name, each.datatype) for each in declared.inputs] == [
        ("query", "FP32"), ("document", "FP32"), ("k", "INT64")
    ]  # fmt: skip
    caplog.clear()
    backend.load(spec(pair, declared))
    assert caplog.records == []


def test_a_tensor_that_no_layer_tells_is_rows_of_numbers_in_torchscript(tmp_path: Path, spec: Any) -> None:
    class Nothing(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch.jit.script(Nothing()).save(tmp_path / "model.pt")
    instance = backend.load(spec(tmp_path / "model.pt"))
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, -1))]
    assert instance.outputs == [TensorSpec("OUTPUT__0", "FP32", (-1, -1))]
