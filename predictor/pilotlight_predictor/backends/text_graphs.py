"""Prompts by CUDA graphs: a prefill of a size that was asked for before is launched as a whole.

text_model.py asks for one when a whole prompt is to be read at once; the engine has graphs captured when it has nothing
else to do. A prompt is padded on its right, where no token of it looks, to the next of a few sizes. Launching the
kernels of a prefill one by one takes Python several times as long as a GPU needs for a short prompt.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.backends.torch_graphs import Graph, Plan, captured, first_line
from pilotlight_predictor.logs import log

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.backends.torch_graphs import Compute

SIZES: Final = (32, 64, 128, 256, 512)  # tokens; the largest is what the engine reads of a prompt at a time


class Layer(NamedTuple):
    keys: "torch.Tensor"
    values: "torch.Tensor"


class Filled:
    """Keys and values of one prompt, where its graph leaves them: to be read before the graph runs again."""

    def __init__(self, graph: Graph, layers: int, length: int) -> None:
        self._length = length
        out = graph.outputs
        self.layers = [Layer(out[f"keys{n}"][:, :, :length], out[f"values{n}"][:, :, :length]) for n in range(layers)]

    def get_seq_length(self) -> int:
        return self._length


class PromptGraphs:
    """The graphs of one model. Used by the engine's thread alone; `capture_one` is an argument for want of a GPU."""

    def __init__(
        self, compute: "Compute", layers: int, device: "torch.device", capture_one: Callable[..., Graph] = captured
    ) -> None:
        self._compute, self._layers, self._device, self._capture_one = compute, layers, device, capture_one
        self.graphs: dict[int, Graph] = {}
        self._asked: set[int] = set()
        self._failed = False

    def run(self, tokens: Sequence[int]) -> "tuple[torch.Tensor, Filled] | None":
        """The scores after the prompt, and what it leaves in the cache; None: it is not captured, or too long."""
        import torch

        size = size_of(len(tokens))
        graph = self.graphs.get(size)
        if graph is None:
            self._asked |= {size} if size else set()
            return None
        graph.inputs["ids"][:, : len(tokens)].copy_(torch.tensor([tokens]))
        graph.inputs["last"].fill_(len(tokens) - 1)
        graph.replay()
        return graph.outputs["scores"], Filled(graph, self._layers, len(tokens))

    def capture(self) -> None:
        """One of the sizes that were asked for; a model that cannot be captured says so once."""
        if self._failed or not self._asked:
            return
        size = self._asked.pop()
        try:
            self.graphs[size] = self._beside(size)
        except Exception as error:  # whatever the model does that a graph cannot hold
            self._failed = True
            message = f"prompts are read without CUDA graphs: the model cannot be captured ({first_line(error)})"
            log("graphs.failed", message, level="WARNING")

    def _beside(self, size: int) -> Graph:
        """On a stream of its own: the one that all else runs on cannot be captured."""
        import torch

        usual, stream = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            graph = self._captured(size, stream)
        usual.wait_stream(stream)
        return graph

    def _captured(self, size: int, stream: "torch.cuda.Stream") -> Graph:
        import torch

        inputs = {
            "ids": torch.zeros((1, size), dtype=torch.int64, device=self._device),
            "last": torch.zeros(1, dtype=torch.int64, device=self._device),
        }
        return self._capture_one(Plan(0, 0, ()), inputs, self._compute, stream, torch.cuda.graph_pool_handle())


def size_of(length: int) -> int:
    """The smallest size with room for so many tokens; 0 where none has."""
    return next((size for size in SIZES if length <= size), 0)


def prompt_values(module: Callable[..., Any], new_cache: Callable[[], Any], values: "dict[str, torch.Tensor]") -> Any:
    """What a graph holds: all of the padded prompt, the scores after its `last` token, and keys and values."""
    import torch

    cache, ids = new_cache(), values["ids"]
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    out = module(
        input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=True,
        logits_to_keep=values["last"],
    )  # fmt: skip
    found = {"scores": out.logits[:, -1]}
    for number, layer in enumerate(cache.layers):
        found[f"keys{number}"], found[f"values{number}"] = layer.keys, layer.values
    return found
