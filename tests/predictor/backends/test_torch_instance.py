"""How a torch instance computes: types, precision, batches, threads, devices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.base import Device
from pilotlight_predictor.backends.torch import backend
from pilotlight_predictor.core.tensors import Tensor, bf16_from_float, bf16_to_float, tensor
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed

torch = pytest.importorskip("torch")

LINEAR = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)
            self.seen = []

        def forward(self, x):
            self.seen.append((str(x.dtype), tuple(x.shape), torch.is_inference_mode_enabled()))
            return self.layer(x)

    build = Net
"""
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def weights(source: Callable[..., Path]) -> Path:
    from safetensors.torch import save_file

    path = source(LINEAR).parent / "model.safetensors"
    torch.manual_seed(0)
    save_file({"layer.weight": torch.randn(2, 4), "layer.bias": torch.randn(2)}, path)
    return path


def seen(instance: Any) -> list[Any]:
    found: list[Any] = instance._loaded.module.seen
    return found


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")])
def test_precision_casts_weights_and_inputs_and_gives_the_declared_type(
    weights: Path, spec: Any, config: Any, precision: str, dtype: str
) -> None:
    declared = config({"x": ("FP32", (-1, 4))}, {"y": ("FP32", (-1, 2))})
    exact = backend.load(spec(weights, declared)).run({"x": tensor(X)})["y"].array
    instance = backend.load(spec(weights, declared, precision=precision))
    found = instance.run({"x": tensor(X)})["y"]
    assert seen(instance)[0][0] == f"torch.{dtype}"
    assert found.datatype == "FP32"
    np.testing.assert_allclose(found.array, exact, atol=0.05)


def test_half_precision_weights_decide_when_precision_is_auto(weights: Path, spec: Any, config: Any) -> None:
    from safetensors.torch import load_file, save_file

    save_file({name: value.bfloat16() for name, value in load_file(weights).items()}, weights)
    instance = backend.load(spec(weights, config({"x": ("FP32", (-1, 4))}, {"y": ("FP32", (-1, 2))})))
    assert instance.run({"x": tensor(X)})["y"].datatype == "FP32"
    assert seen(instance)[0][0] == "torch.bfloat16"


def test_bf16_goes_in_and_out_by_its_bits(weights: Path, spec: Any, config: Any) -> None:
    declared = config({"x": ("BF16", (-1, 4))}, {"y": ("BF16", (-1, 2))})
    exact = backend.load(spec(weights)).run({"x": tensor(X)})["OUTPUT__0"].array
    found = backend.load(spec(weights, declared, precision="bf16")).run({"x": Tensor("BF16", bf16_from_float(X))})["y"]
    assert (found.datatype, found.array.dtype) == ("BF16", np.dtype("<u2"))
    np.testing.assert_allclose(bf16_to_float(found.array), exact, atol=0.05)


def test_requests_of_a_batch_run_as_one_and_get_their_own_rows(weights: Path, spec: Any, config: Any, ask: Any) -> None:
    declared = config({"x": ("FP32", (4,))}, {"y": ("FP32", (2,))}, max_batch_size=8)
    instance = backend.load(spec(weights, declared))
    whole = instance.run({"x": tensor(X)})["y"].array
    answers = instance.execute([ask(x=X[:1]), ask(x=X[1:])])
    assert [shape for _, shape, _ in seen(instance)] == [(2, 4), (2, 4)]
    np.testing.assert_allclose(np.concatenate([answer["y"].array for answer in answers]), whole)


def test_memory_that_is_read_only_or_unaligned_is_taken(weights: Path, spec: Any) -> None:
    """That is how binary tensors lie in a request's body; torch would warn of the first and misread the second."""
    body = b"\x00" + X.tobytes()
    unaligned = np.frombuffer(body, dtype="<f4", offset=1).reshape(2, 4)
    instance = backend.load(spec(weights))
    exact = instance.run({"x": tensor(X)})["OUTPUT__0"].array
    np.testing.assert_array_equal(instance.run({"x": tensor(unaligned)})["OUTPUT__0"].array, exact)


def test_a_model_that_writes_to_its_input_leaves_the_request_alone(source: Any, spec: Any) -> None:
    from safetensors.torch import save_file

    path = (
        source("""
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.one = torch.nn.Parameter(torch.ones(1))

            def forward(self, x):
                return x.add_(self.one)

        build = Net
    """).parent
        / "model.safetensors"
    )
    save_file({"one": torch.ones(1)}, path)
    body = X.tobytes()
    instance = backend.load(spec(path))
    assert instance.run({"x": tensor(np.frombuffer(body, "<f4"))})["OUTPUT__0"].array[0] == X[0, 0] + 1
    assert body == X.tobytes()


def test_a_clone_shares_the_weights(weights: Path, spec: Any) -> None:
    instance = backend.load(spec(weights))
    clone = instance.clone()
    assert clone._loaded.module is instance._loaded.module
    instance.close()
    assert clone.run({"x": tensor(X)})["OUTPUT__0"].array.shape == (2, 2)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("false", False)])
def test_inference_mode_can_be_turned_off(weights: Path, spec: Any, config: Any, value: str, expected: bool) -> None:
    instance = backend.load(spec(weights, config(parameters={"INFERENCE_MODE": value})))
    instance.run({"x": tensor(X)})
    assert seen(instance)[-1][2] is expected


def test_optimized_execution_can_be_turned_off(weights: Path, spec: Any, config: Any) -> None:
    instance = backend.load(spec(weights, config(parameters={"DISABLE_OPTIMIZED_EXECUTION": "true"})))
    with instance._context():
        assert not torch._C._get_graph_executor_optimize()
    assert torch._C._get_graph_executor_optimize()


def test_threads_are_set(weights: Path, spec: Any, config: Any) -> None:
    before = torch.get_num_threads()
    try:
        backend.load(spec(weights, threads=1))
        assert torch.get_num_threads() == 1
        backend.load(spec(weights, config(parameters={"INTRA_OP_THREAD_COUNT": "2"})))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_shapes_that_do_not_fit_are_the_clients_fault(weights: Path, spec: Any) -> None:
    with pytest.raises(BadRequest, match="shapes cannot be multiplied"):
        backend.load(spec(weights)).run({"x": tensor(np.ones((2, 5), np.float32))})


def test_what_a_module_raises_is_opaque_with_its_cause(source: Any, spec: Any) -> None:
    from safetensors.torch import save_file

    path = (
        source("""
        import torch

        class Net(torch.nn.Linear):
            def forward(self, x):
                raise KeyError("secret")

        def build():
            return Net(4, 2)
    """).parent
        / "model.safetensors"
    )
    save_file({"weight": torch.ones(2, 4), "bias": torch.ones(2)}, path)
    with pytest.raises(BackendFailed) as failure:
        backend.load(spec(path)).run({"x": tensor(X)})
    assert "secret" not in str(failure.value)
    assert isinstance(failure.value.__cause__, KeyError)


def test_an_output_of_another_kind_than_declared_is_told(weights: Path, spec: Any, config: Any) -> None:
    instance = backend.load(spec(weights, config({"x": ("FP32", (-1, 4))}, {"y": ("INT64", (-1, 2))})))
    with pytest.raises(BackendFailed) as failure:
        instance.run({"x": tensor(X)})
    assert "output is FP32, but the configuration has INT64" in str(failure.value.__cause__)


def test_strings_are_refused_at_load(weights: Path, spec: Any, config: Any) -> None:
    with pytest.raises(LoadFailed, match="tensor 'x' is BYTES, but a torch model has numeric inputs and outputs only"):
        backend.load(spec(weights, config({"x": ("BYTES", (-1,))})))


@pytest.mark.skipif(torch.cuda.device_count() > 99, reason="that many GPUs")
def test_a_device_that_is_not_there_is_told(weights: Path, spec: Any) -> None:
    with pytest.raises(LoadFailed, match="device = cuda:99, but torch sees"):
        backend.load(spec(weights, device=Device("cuda", 99)))


def test_tensors_can_be_declared_beside_the_module(source: Any, spec: Any) -> None:
    from safetensors.torch import save_file

    path = source(LINEAR + '\n    INPUTS = {"x": ("FP32", [-1, 4])}\n    OUTPUTS = {"y": ("FP32", [-1, 2])}\n')
    save_file({"layer.weight": torch.ones(2, 4), "layer.bias": torch.ones(2)}, path.parent / "model.safetensors")
    instance = backend.load(spec(path.parent / "model.safetensors"))
    assert [(t.name, t.datatype, t.shape) for t in instance.inputs] == [("x", "FP32", (-1, 4))]
    assert list(instance.run({"x": tensor(X)})) == ["y"]
