"""CUDA graphs for prefill: a prompt size that was requested before is launched as one graph.

text_model.py uses one for a prompt that fits one step; the engine captures graphs while idle. A prompt is padded on the
right, which causal attention ignores, to the next of a few sizes. Launching the kernels of a short prefill from Python
takes several times as long as the GPU needs for them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.backends.torch_graphs import CapturedGraph, GraphPlan, capture_graph, first_line
from pilotlight_predictor.logs import log

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.backends.torch_graphs import Compute

SIZES: Final = (32, 64, 128, 256, 512)  # tokens; the largest is the engine's PREFILL_TOKENS


class Layer(NamedTuple):
    keys: "torch.Tensor"
    values: "torch.Tensor"


class PrefilledCache:
    """Keys and values of one prompt in its graph's outputs, valid until the graph runs again."""

    def __init__(self, graph: CapturedGraph, layers: int, length: int) -> None:
        self._length = length
        out = graph.outputs
        self.layers = [Layer(out[f"keys{n}"][:, :, :length], out[f"values{n}"][:, :, :length]) for n in range(layers)]

    def get_seq_length(self) -> int:
        return self._length


class PrefillGraphs:
    """Graphs of one model. Used by the engine's thread only; `capture_one` is an argument for tests without a GPU."""

    def __init__(
        self,
        compute: "Compute",
        layers: int,
        device: "torch.device",
        capture_one: Callable[..., CapturedGraph] = capture_graph,
    ) -> None:
        self._compute, self._layers, self._device, self._capture_one = compute, layers, device, capture_one
        self.graphs: dict[int, CapturedGraph] = {}
        self._requested: set[int] = set()
        self._failed = False

    def run(self, tokens: Sequence[int]) -> "tuple[torch.Tensor, PrefilledCache] | None":
        """Return the scores after the prompt and its cache; None if its size is not captured yet or too long."""
        import torch

        size = padded_size(len(tokens))
        graph = self.graphs.get(size)
        if graph is None:
            self._requested |= {size} if size else set()
            return None
        graph.inputs["ids"][:, : len(tokens)].copy_(torch.tensor([tokens]))
        graph.inputs["last"].fill_(len(tokens) - 1)
        graph.replay()
        return graph.outputs["scores"], PrefilledCache(graph, self._layers, len(tokens))

    def capture(self) -> None:
        """Capture one of the requested sizes; log a failure once and stop capturing."""
        if self._failed or not self._requested:
            return
        size = self._requested.pop()
        try:
            self.graphs[size] = self._capture_on_stream(size)
        except Exception as error:  # the model can raise anything during a capture
            self._failed = True
            message = f"prompts are read without CUDA graphs: the model cannot be captured ({first_line(error)})"
            log("graphs.failed", message, level="WARNING")

    def _capture_on_stream(self, size: int) -> CapturedGraph:
        """Capture on a separate stream: the default stream cannot be captured."""
        import torch

        current, stream = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph = self._capture_size(size, stream)
        current.wait_stream(stream)
        return graph

    def _capture_size(self, size: int, stream: "torch.cuda.Stream") -> CapturedGraph:
        import torch

        inputs = {
            "ids": torch.zeros((1, size), dtype=torch.int64, device=self._device),
            "last": torch.zeros(1, dtype=torch.int64, device=self._device),
        }
        return self._capture_one(GraphPlan(0, 0, ()), inputs, self._compute, stream, torch.cuda.graph_pool_handle())


def padded_size(length: int) -> int:
    """Smallest size for so many tokens; 0 if none is large enough."""
    return next((size for size in SIZES if length <= size), 0)


def prefill_outputs(module: Callable[..., Any], new_cache: Callable[[], Any], values: "dict[str, torch.Tensor]") -> Any:
    """Computation of a graph: the padded prompt → scores after its `last` token, keys and values."""
    import torch

    cache, ids = new_cache(), values["ids"]
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    out = module(
        input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=True,
        logits_to_keep=values["last"],
    )  # fmt: skip
    outputs = {"scores": out.logits[:, -1]}
    for number, layer in enumerate(cache.layers):
        outputs[f"keys{number}"], outputs[f"values{number}"] = layer.keys, layer.values
    return outputs
