"""Steps of the batch by CUDA graphs: one launch for a step instead of hundreds from Python, which take longer than it.

A graph is for so many rows and columns of one set of buffers (kv_cache.py), and is captured at the first step that
needs it; masked columns and spare rows do not change the others.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.backends.text.kv_cache import BatchKVCache, CapturedStep
from pilotlight_predictor.backends.text.lora_layers import NO_ADAPTER, LoraLayers
from pilotlight_predictor.backends.torch.cuda_graphs import CapturedGraph, GraphPlan, capture_graph
from pilotlight_predictor.observability.logs import log

if TYPE_CHECKING:
    import torch

MIN_COLUMNS: Final = 256


class StepGraphs:
    """Used by the engine's thread only; `capture_one` is an argument for tests without a GPU."""

    def __init__(
        self, module: Any, lora: LoraLayers, batch: BatchKVCache, device: "torch.device",
        capture_one: Callable[..., CapturedGraph] = capture_graph,
    ) -> None:  # fmt: skip
        self._module, self._lora, self._batch, self._device = module, lora, batch, device
        self._capture_one = capture_one
        self.graphs: dict[tuple[int, int, bool], CapturedGraph] = {}  # by rows, columns, whether any row is adapted
        self._lora_version = lora.version
        self._storage: Any = None  # buffers that the graphs write to
        self._pool: Any = None
        self._failed = False

    def run(self, tokens: Sequence[int], adapters: Sequence[int] = ()) -> "torch.Tensor | None":
        """Return scores of the next token of each row, valid until the next step; None if it cannot be captured."""
        import torch

        if self._failed:
            return None
        batch, end = self._batch, self._batch.end
        self._drop_void_graphs()
        rows = 1 << (len(tokens) - 1).bit_length()
        columns = min(max(MIN_COLUMNS, 1 << end.bit_length()), batch.columns)
        spare = rows - len(tokens)
        begins = [*(end - length for length in batch.lengths), *[end] * spare]
        values = [[*tokens, *[0] * spare], begins, [end] * rows]
        if adapted := any(adapters):
            values.append([*adapters, *[NO_ADAPTER] * spare])
        step = torch.tensor(values)
        graph = self.graphs.get((rows, columns, adapted)) or self._capture((rows, columns, adapted), step)
        if graph is None:
            return None
        graph.inputs["step"].copy_(step)
        graph.replay()
        return graph.outputs["scores"][: len(tokens)]

    def _drop_void_graphs(self) -> None:
        """Drop graphs that write to former buffers or read former adapters; their pool ends with the last one."""
        if self._batch.storage is not self._storage:
            self.graphs.clear()
            self._storage = self._batch.storage
        if self._lora.version != self._lora_version:
            self.graphs = {key: graph for key, graph in self.graphs.items() if not key[2]}
            self._lora_version = self._lora.version
        if not self.graphs:
            self._pool = None  # torch refuses a capture into a pool without graphs

    def _capture(self, key: tuple[int, int, bool], step: "torch.Tensor") -> CapturedGraph | None:
        """Capture on a separate stream, with the inputs of this step: its warm-up writes what the step will."""
        import torch

        current, stream = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                inputs = {"step": step.to(self._device)}
                graph = self._capture_one(
                    GraphPlan(0, 0, ()), inputs, lambda given: self._compute(given["step"], key[1]), stream, self._pool
                )
        except Exception as error:  # a module can raise anything during a capture
            self._failed = True
            message = f"steps run without CUDA graphs: the model cannot be captured ({first_line(error)})"
            log("graphs.failed", message, level="WARNING")
            return None
        finally:
            current.wait_stream(stream)
        self.graphs[key] = graph
        return graph

    def _compute(self, step: "torch.Tensor", columns: int) -> "dict[str, torch.Tensor]":
        """Computation of a graph: tokens, first columns and the column to write → scores."""
        import torch

        tokens, begins, ends, *adapters = step
        places = torch.arange(columns, device=step.device)
        mask = (places >= begins[:, None]) & (places <= ends[:, None])
        captured = CapturedStep(len(tokens), columns, ends[:1])
        with self._batch.captured(captured), self._lora.rows(*adapters or ((NO_ADAPTER,),)):
            out = self._module(
                input_ids=tokens[:, None], attention_mask=mask[:, None, None], position_ids=(ends - begins)[:, None],
                past_key_values=self._batch.cache, use_cache=True, return_dict=True,
            )  # fmt: skip
        return {"scores": out.logits[:, -1]}
