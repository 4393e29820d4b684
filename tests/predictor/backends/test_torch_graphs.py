"""Which CUDA graphs are captured, which one serves a batch, and what a batch goes through without a GPU."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.gpu.driver import Driver

from pilotlight_predictor.backends.torch import backend
from pilotlight_predictor.backends.torch.cuda_graphs import (
    WARMUP_RUNS,
    CapturedGraph,
    CudaGraphs,
    GraphPlan,
    choose_plan,
    default_sizes,
    plan_graphs,
    signature_of,
)
from pilotlight_predictor.backends.torch.forward_signature import ForwardBinding
from pilotlight_predictor.backends.torch.tensors import PinnedStaging, to_host
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, tensor
from pilotlight_predictor.core.threads import LAUNCH_INTERVAL_S
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.gpu import cuda_driver
from pilotlight_predictor.gpu.cuda_driver import SharedMemory
from pilotlight_predictor.repository.model_config import DynamicBatching, GraphSpec, ModelConfig

torch = pytest.importorskip("torch")

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("largest", "preferred", "expected"),
    [(0, (), [0]), (1, (), [1]), (8, (), [1, 2, 4, 8]), (12, (), [1, 2, 4, 8, 12]), (8, (3, 8), [1, 2, 3, 4, 8])],
    ids=["no batches", "one", "a power of two", "another number", "preferred sizes"],
)
def test_sizes_are_powers_of_two_the_preferred_ones_and_the_largest(
    largest: int, preferred: tuple[int, ...], expected: list[int]
) -> None:
    assert default_sizes(largest, preferred) == expected


@pytest.fixture
def batched(config: Callable[..., ModelConfig]) -> Callable[..., ModelConfig]:
    def make(*specs: GraphSpec, dims: tuple[int, ...] = (4,)) -> ModelConfig:
        batching = DynamicBatching(preferred_batch_size=(6,))
        return config({"x": ("FP32", dims)}, max_batch_size=8, dynamic_batching=batching, cuda_graphs=specs)

    return make


def test_each_size_serves_what_the_next_smaller_has_no_room_for(batched: Any) -> None:
    found = plan_graphs(batched(), ForwardBinding(), ())
    assert [(plan.rows, plan.min_rows) for plan in found] == [(8, 7), (6, 5), (4, 3), (2, 2), (1, 1)]
    assert {plan.signature for plan in found} == {(("x", "FP32", (4,)),)}
    rows = [choose_plan(found, count) for count in (1, 3, 5, 7, 8, 9)]
    assert [plan and plan.rows for plan in rows] == [1, 4, 6, 8, 8, None]


def test_graph_specs_say_sizes_bounds_and_dims_that_vary(batched: Any) -> None:
    specs = GraphSpec(4, 2, {"x": (16,)}), GraphSpec(8, 0, {"x": (16,)}), GraphSpec(8, 0, {"x": (32,)})
    found = plan_graphs(batched(*specs, dims=(-1,)), ForwardBinding(), ())
    assert [(plan.rows, plan.min_rows, plan.signature[0][2]) for plan in found] == [
        (8, 5, (16,)),
        (8, 8, (32,)),
        (4, 2, (16,)),
    ]


def test_inputs_that_the_file_alone_declares_are_captured_by_their_names_in_requests() -> None:
    found = plan_graphs(
        ModelConfig("m", max_batch_size=1), ForwardBinding(names={"x": "INPUT__0"}), [TensorSpec("x", "FP32", (-1, 4))]
    )
    assert found == [GraphPlan(1, 1, (("INPUT__0", "FP32", (4,)),))]


@pytest.mark.parametrize(
    ("calling", "dims", "reason"),
    [
        (ForwardBinding(), (-1,), r"input 'x' has dims \[-1\]: set its sizes in optimization.cuda.graph_spec"),
        (ForwardBinding(scalars=frozenset({"k"})), (4,), "k is a number to forward, which a graph would keep"),
    ],
    ids=["a size that varies", "a number"],
)
def test_what_cannot_be_captured_is_told_with_its_reason(
    batched: Any, calling: ForwardBinding, dims: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        plan_graphs(batched(dims=dims), calling, ())


def test_a_batch_of_other_dims_or_types_than_captured_runs_eagerly() -> None:
    plan = GraphPlan(4, 1, (("x", "FP32", (4,)),))
    graphs = CudaGraphs(batched=True)
    graphs._graphs = {plan.signature: {plan: CapturedGraph(plan, {}, {}, lambda: None)}}
    captured = graphs.fitting({"x": tensor(X)}, 3)
    assert captured is not None
    assert captured.plan is plan
    assert graphs.fitting({"x": tensor(X[:, :2])}, 3) is None
    assert graphs.fitting({"x": tensor(X.astype("f8"))}, 3) is None
    assert signature_of({"b": tensor(X), "a": tensor(X)}, batched=False) == (
        ("a", "FP32", (3, 4)),
        ("b", "FP32", (3, 4)),
    )


def test_a_batch_runs_as_the_next_larger_graph_and_is_cut(weights: Path, spec: Any, config: Any) -> None:
    """The graph is a stand-in that computes at each replay from its static inputs into its static outputs."""
    declared = config({"x": ("FP32", (4,))}, {"y": ("FP32", (4,))}, max_batch_size=4, cuda_graphs=())
    instance = backend.load(spec(weights, declared))
    inputs, outputs = {"x": torch.full((4, 4), 7.0)}, {"y": torch.zeros(4, 4)}
    plan = GraphPlan(4, 1, (("x", "FP32", (4,)),))
    graphs = instance._graphs = CudaGraphs(batched=True)
    graphs._graphs = {
        plan.signature: {plan: CapturedGraph(plan, inputs, outputs, lambda: outputs["y"].copy_(inputs["x"] * 2))}
    }
    found = instance._replay_graph({"x": tensor(X)})
    np.testing.assert_array_equal(found["y"], X * 2)
    assert found["y"].shape == (3, 4)
    assert instance._replay_graph({"x": tensor(np.zeros((5, 4), np.float32))}) is None


def in_shared_memory(rows: Sequence[Any]) -> list[InferRequest]:
    """Requests whose tensors lie one behind the other in memory that a front would write."""
    descriptor = os.memfd_create("rows")
    os.truncate(descriptor, 4096)
    memory, end = SharedMemory(descriptor, 0), 0
    os.close(descriptor)
    requests = []
    for row in rows:
        begin, end = end, end + row.nbytes
        memory[begin:end] = row.tobytes()
        array = np.frombuffer(memoryview(memory).toreadonly()[begin:end], row.dtype).reshape(row.shape)
        requests.append(InferRequest("m", {"x": tensor(array)}))
    return requests


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "refused"])
def test_a_graph_gets_the_rows_of_fronts_from_where_they_lie(
    weights: Path, spec: Any, config: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    driver = Driver()
    driver.refused.update({} if pinned else {"cuMemHostRegister_v2": 0})
    monkeypatch.setattr(cuda_driver, "library", lambda *_: driver)
    cuda_driver.context_of.cache_clear()
    declared = config({"x": ("FP32", (4,))}, {"y": ("FP32", (4,))}, max_batch_size=4, cuda_graphs=())
    instance = backend.load(spec(weights, declared))
    inputs, outputs = {"x": torch.full((4, 4), 7.0)}, {"y": torch.zeros(4, 4)}
    plan = GraphPlan(4, 1, (("x", "FP32", (4,)),))
    instance._graphs, instance._stream = CudaGraphs(batched=True), NoStream()
    instance._graphs._graphs = {
        plan.signature: {plan: CapturedGraph(plan, inputs, outputs, lambda: outputs["y"].copy_(inputs["x"] * 2))}
    }
    copies = []
    mirrored = in_shared_memory([X[2:], X[:2, ::-1]])
    (datatype, array) = mirrored[1].inputs["x"]
    strided = InferRequest("m", {"x": Tensor(datatype, array[:, ::-1])})
    for batch in (in_shared_memory([X[2:], X[:2]]), [mirrored[0], strided], [mirrored[0], ask(x=X[:2])]):
        answers = instance.execute(batch)
        np.testing.assert_array_equal(np.concatenate([answer["y"].array for answer in answers]), np.roll(X, 1, 0) * 2)
        copies.append(driver.called.count("cuMemcpyHtoDAsync_v2"))
    assert copies == ([2, 2, 2] if pinned else [0, 0, 0])


class Recording:
    """In place of torch's CUDA graph: the replay is noted, and a capture in which `fails` is set cannot be ended."""

    fails = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"

    def capture_end(self) -> None:
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None:
        return None


class NoStream:
    device = torch.device("cpu", 0)
    cuda_stream = 0

    def synchronize(self) -> None:
        return None


class Dice:
    """In place of the GPU's random generator."""

    def __init__(self) -> None:
        self.state = "new"

    def clone_state(self) -> str:
        return self.state

    def graphsafe_set_state(self, state: str) -> None:
        self.state = f"{state} again"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dice]:
    """What a capture asks of torch, on a machine without a GPU."""
    dice, interval = Dice(), sys.getswitchinterval()
    monkeypatch.setattr(torch.cuda, "default_generators", (dice,))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    yield dice
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("no_gpu")
def test_graphs_of_all_sizes_share_their_inputs(batched: Any) -> None:
    graphs = CudaGraphs(batched=True)
    wanted = plan_graphs(batched(), ForwardBinding(), ())
    graphs.capture(wanted, lambda values: {"y": values["x"] * 2}, NoStream(), "m")
    assert len(graphs) == len(wanted)
    assert sys.getswitchinterval() == pytest.approx(LAUNCH_INTERVAL_S)
    found = [graphs.fitting({"x": tensor(np.zeros((rows, 4), np.float32))}, rows) for rows in (1, 5, 8)]
    assert [graph and tuple(graph.outputs["y"].shape) for graph in found] == [(1, 4), (6, 4), (8, 4)]
    assert len({graph.inputs["x"].data_ptr() for graph in found if graph}) == 1


@pytest.mark.usefixtures("no_gpu")
def test_outputs_without_a_batch_dimension_are_never_cut(batched: Any) -> None:
    graphs = CudaGraphs(batched=True)
    graphs.capture(
        plan_graphs(batched(), ForwardBinding(), ()), lambda values: {"y": values["x"].sum()}, NoStream(), "m"
    )
    assert graphs.fitting({"x": tensor(np.zeros((8, 4), np.float32))}, 8) is not None
    assert graphs.fitting({"x": tensor(np.zeros((7, 4), np.float32))}, 7) is None


def test_a_module_that_cannot_be_captured_says_so_once(
    no_gpu: Dice, batched: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def compute(values: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(values["x"]))
        if len(calls) > WARMUP_RUNS:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return values

    monkeypatch.setattr(Recording, "fails", True)
    graphs = CudaGraphs(batched=True)
    with caplog.at_level(logging.WARNING):
        graphs.capture(plan_graphs(batched(), ForwardBinding(), ()), compute, NoStream(), "m")
    assert len(graphs) == 0
    assert no_gpu.state == "new again"
    assert [record.getMessage() for record in caplog.records] == [
        "model 'm' runs eagerly: it cannot be captured as a CUDA graph "
        "(operation not permitted when stream is capturing)"
    ]


def test_without_a_gpu_a_model_that_asks_for_graphs_runs_eagerly(
    weights: Path, spec: Any, config: Any, ask: Any
) -> None:
    declared = config({"x": ("FP32", (4,))}, {"y": ("FP32", (4,))}, max_batch_size=8, cuda_graphs=())
    answers = backend.load(spec(weights, declared)).execute([ask(x=X[:1]), ask(x=X[1:])])
    np.testing.assert_array_equal(np.concatenate([answer["y"].array for answer in answers]), X * 3)


@pytest.fixture
def weights(source: Callable[..., Path]) -> Path:
    from safetensors.torch import save_file

    text = """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.three = torch.nn.Parameter(torch.ones(1))

            def forward(self, x):
                return x * self.three

        build = Net
    """
    path = source(text).parent / "model.safetensors"
    save_file({"three": torch.full((1,), 3.0)}, path)
    return path


def test_rows_of_a_batch_are_gathered_where_they_are_copied_from(ask: Any) -> None:
    staging = PinnedStaging()
    merged = staging.merge([ask(x=X[:1]), ask(x=X[1:])], 3)
    np.testing.assert_array_equal(merged["x"].array, X)
    staged = staging.staged("x", merged["x"])
    assert staged.data_ptr() == merged["x"].array.__array_interface__["data"][0]
    half = staging.staged("x", Tensor("FP32", merged["x"].array[1:]))
    assert half.data_ptr() == staged.data_ptr() + 16
    np.testing.assert_array_equal(half, X[1:])


def test_a_tensor_that_lies_elsewhere_is_copied_to_the_buffer_which_grows() -> None:
    staging = PinnedStaging()
    small = staging.staged("x", tensor(X[:1]))
    np.testing.assert_array_equal(small, X[:1])
    large = np.ones((1000, 4), np.float32)
    np.testing.assert_array_equal(staging.staged("x", tensor(large)), large)
    np.testing.assert_array_equal(staging.staged("x", tensor(X.T)), X.T)
    assert staging.staged("x", tensor(X[:0])).shape == (0, 4)


def test_parts_of_different_types_are_joined_as_numpy_joins_them(ask: Any) -> None:
    merged = PinnedStaging().merge([ask(x=X[:1]), ask(x=X[1:].astype("f8"))], 3)
    np.testing.assert_array_equal(merged["x"].array, X)


def test_strings_in_a_batch_are_refused_before_they_are_gathered() -> None:
    text = Tensor("BYTES", np.array([b"a"], dtype=object))
    with pytest.raises(BadRequest, match="input 'x' is BYTES, but a torch model takes numbers only"):
        PinnedStaging().merge([InferRequest("m", {"x": text})] * 2, 2)


def test_answers_own_their_memory() -> None:
    value = torch.ones(2)
    first = to_host({"y": value})
    value.zero_()
    assert (first["y"].tolist(), to_host({"y": value})["y"].tolist()) == ([1.0, 1.0], [0.0, 0.0])
