"""Causal language model in Hugging Face's layout, loaded by transformers onto one device; used by engine.py.

Code in a model's directory is never run. On a GPU, prefill may use CUDA graphs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.backends.base import LoadSpec, first_line
from pilotlight_predictor.backends.text.kv_cache import BatchKVCache
from pilotlight_predictor.backends.text.lora_layers import NO_ADAPTER, LoraLayers
from pilotlight_predictor.backends.text.step_graphs import StepGraphs
from pilotlight_predictor.backends.torch.cuda_graphs import CapturedGraph, GraphPlan, capture_graph
from pilotlight_predictor.backends.torch.tensors import PRECISIONS
from pilotlight_predictor.backends.transformers_library import check_weights
from pilotlight_predictor.core.threads import limit_switch_interval
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.backends.torch.cuda_graphs import Compute

SIZES: Final = (32, 64, 128, 256, 512)  # tokens; the largest is the engine's PREFILL_TOKENS
GROUPED: Final = "pilotlight_grouped"  # attention of masked steps on a CPU
SPECIAL_OPTIONS: Final = ("softcap", "position_bias", "output_attentions", "cache")  # left to transformers
DEFAULT_CONTEXT: Final = 2048  # of a model without max_position_embeddings


class Layer(NamedTuple):
    keys: "torch.Tensor"
    values: "torch.Tensor"


class PrefillSize(NamedTuple):
    """What a graph is captured for: tokens, and whether it computes updates of adapters."""

    tokens: int
    adapted: bool


class PrefilledCache:
    """Keys and values of one prompt: a row of tensors that others share, such as a graph's outputs until it reruns."""

    def __init__(self, layers: Iterable[Any], length: int, row: int = 0) -> None:
        self._length = length
        part = slice(row, row + 1)
        self.layers = [Layer(each.keys[part, :, :length], each.values[part, :, :length]) for each in layers]

    def get_seq_length(self) -> int:
        return self._length


class PrefillGraphs:
    """CUDA graphs for prefill: a prompt of a size that was requested before is launched as one graph.

    Launching the kernels of a short prefill from Python takes several times as long as the GPU needs for them. A prompt
    is padded on the right, which causal attention ignores, to the next of a few sizes. Used by the engine's thread
    only, which captures graphs while idle; `capture_one` is an argument for tests without a GPU.
    """

    def __init__(
        self,
        compute: "Compute",
        layers: int,
        device: "torch.device",
        capture_one: Callable[..., CapturedGraph] = capture_graph,
    ) -> None:
        self._compute, self._layers, self._device, self._capture_one = compute, layers, device, capture_one
        self.graphs: dict[PrefillSize, CapturedGraph] = {}
        self._requested: set[PrefillSize] = set()
        self._failed = False

    def run(self, tokens: Sequence[int], adapter: int = NO_ADAPTER) -> "tuple[torch.Tensor, PrefilledCache] | None":
        """Return the scores after the prompt and its cache; None if its size is not captured yet or too long."""
        import torch

        size = PrefillSize(padded_size(len(tokens)), adapter != NO_ADAPTER)
        graph = self.graphs.get(size)
        if graph is None:
            self._requested |= {size} if size.tokens else set()
            return None
        graph.inputs["ids"][:, : len(tokens)].copy_(torch.tensor([tokens]))
        graph.inputs["last"].fill_(len(tokens) - 1)
        if size.adapted:
            graph.inputs["adapter"].fill_(adapter)
        graph.replay()
        out = graph.outputs
        layers = [Layer(out[f"keys{number}"], out[f"values{number}"]) for number in range(self._layers)]
        return out["scores"], PrefilledCache(layers, len(tokens))

    def capture(self) -> None:
        """Capture one of the requested sizes; log a failure once and stop capturing."""
        if self._failed or not self._requested:
            return
        size = self._requested.pop()
        try:
            self.graphs[size] = self._capture_size(size)
        except Exception as error:  # the model can raise anything during a capture
            self._failed = True
            message = f"prompts are read without CUDA graphs: the model cannot be captured ({first_line(error)})"
            log("graphs.failed", message, level="WARNING")

    def _capture_size(self, size: PrefillSize) -> CapturedGraph:
        """Capture on a separate stream: the default stream cannot be captured."""
        import torch

        current, stream = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            zeros = partial(torch.zeros, dtype=torch.int64, device=self._device)
            inputs, pool = {"ids": zeros((1, size.tokens)), "last": zeros(1)}, torch.cuda.graph_pool_handle()
            inputs |= {"adapter": zeros(1)} if size.adapted else {}
            graph = self._capture_one(GraphPlan(0, 0, ()), inputs, self._compute, stream, pool)
        current.wait_stream(stream)
        return graph


def padded_size(length: int) -> int:
    """Smallest size for so many tokens; 0 if none is large enough."""
    return next((size for size in SIZES if length <= size), 0)


def prefill_outputs(
    module: Callable[..., Any], lora: LoraLayers, new_cache: Callable[[], Any], values: "dict[str, torch.Tensor]"
) -> Any:
    """Computation of a graph: the padded prompt → scores after its `last` token, keys and values."""
    import torch

    cache, ids = new_cache(), values["ids"]
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    with lora.rows(values.get("adapter", (NO_ADAPTER,))):
        out = module(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=True,
            logits_to_keep=values["last"],
        )  # fmt: skip
    outputs = {"scores": out.logits[:, -1]}
    for number, layer in enumerate(cache.layers):
        outputs[f"keys{number}"], outputs[f"values{number}"] = layer.keys, layer.values
    return outputs


class TextModel:
    def __init__(self, module: Any, device: "torch.device", context: int, graphs: bool = False) -> None:
        import inspect

        from transformers.cache_utils import DynamicLayer

        self._module = module
        self.lora = LoraLayers(module)
        self._lora_version = 0
        self.device = device
        self.context = context
        config = module.config.get_text_config()
        self.layers: int = config.num_hidden_layers
        takes = inspect.signature(module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._has_positions = "position_ids" in takes
        # Rows of different length can share a step unless layers drop tokens: sliding windows, recurrent states.
        self.batchable = self._has_positions and all(type(each) is DynamicLayer for each in self.new_cache().layers)
        eos = getattr(module.generation_config, "eos_token_id", None)  # chat models often have several
        eos = getattr(module.config, "eos_token_id", None) if eos is None else eos
        self.eos_tokens = frozenset([eos] if isinstance(eos, int) else eos or ())
        self._prefill_graphs: PrefillGraphs | None = None
        if graphs and device.type == "cuda" and self.batchable and self._last_only:
            self._prefill_graphs = PrefillGraphs(
                partial(prefill_outputs, module, self.lora, self.new_cache), self.layers, device
            )

    @property
    def uses_graphs(self) -> bool:
        return self._prefill_graphs is not None

    def step_graphs(self, batch: BatchKVCache) -> StepGraphs | None:
        return StepGraphs(self._module, self.lora, batch, self.device) if self.uses_graphs else None

    def prefill(self, prompt: Sequence[int], adapter: int = NO_ADAPTER) -> "tuple[torch.Tensor, Any] | None":
        """Run a whole prompt by a CUDA graph; return its scores and cache, or None to use `forward`."""
        if self._prefill_graphs is None:
            return None
        if self._lora_version != self.lora.version:
            self._lora_version = self.lora.version
            graphs = self._prefill_graphs.graphs  # those of adapters have their old tensors
            self._prefill_graphs.graphs = {size: graph for size, graph in graphs.items() if not size.adapted}
        return self._prefill_graphs.run(prompt, adapter)

    def prefill_together(
        self, prompts: Sequence[Sequence[int]], adapters: Sequence[int] = (NO_ADAPTER,)
    ) -> "tuple[torch.Tensor, list[PrefilledCache]]":
        """Run whole prompts in one pass, padded on the right, which causal attention ignores; return as `prefill`."""
        import torch

        width, cache = max(map(len, prompts)), self.new_cache()
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=self.device)
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        rows, positions = torch.arange(len(ids), device=self.device), torch.arange(width, device=self.device)
        with self.lora.rows(adapters):
            out = self._module(
                input_ids=ids, position_ids=positions.expand(len(ids), -1), past_key_values=cache, use_cache=True,
                return_dict=True, **({"logits_to_keep": ends} if self._last_only else {}),
            )  # fmt: skip
        scores = out.logits[rows, rows if self._last_only else ends]
        return scores, [PrefilledCache(cache.layers, len(prompt), row) for row, prompt in enumerate(prompts)]

    def capture_graphs(self) -> None:
        """Capture a requested graph; called while the engine is idle."""
        if self._prefill_graphs is not None:
            self._prefill_graphs.capture()

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._module.config)

    def free(self) -> None:
        """Free the weights, on a GPU also torch's cache, for other processes."""
        import torch

        self._module = self._prefill_graphs = None
        self.lora.free()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forward(
        self, tokens: Sequence[Sequence[int]], before: Sequence[int], cache: Any, mask: "torch.Tensor | None",
        adapters: Sequence[int] = (NO_ADAPTER,),
    ) -> "torch.Tensor":  # fmt: skip
        """Return scores of the next token of each row; `before` is the number of tokens of each row in the cache."""
        import torch

        ids = torch.tensor(tokens, device=self.device)
        arguments: dict[str, Any] = dict(self._last_only)
        if self._has_positions:
            begins = torch.tensor(before, device=self.device)
            arguments["position_ids"] = begins[:, None] + torch.arange(ids.shape[1], device=self.device)
        with self.lora.rows(adapters):
            out = self._module(
                input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True, **arguments
            )
        scores: torch.Tensor = out.logits[:, -1]
        return scores


def use_grouped_attention(module: Any) -> None:
    """Let masked steps read the keys and values of a group of heads in place.

    Rows of different length need a mask, and with one transformers copies them for each head, since CUDA's kernels need
    that. On a CPU the copies take 11 ms of a step with 8 rows of SmolLM2-135M.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if module.config._attn_implementation == "sdpa":
        AttentionInterface.register(GROUPED, _grouped_attention)
        AttentionMaskInterface.register(GROUPED, sdpa_mask)
        module.set_attn_implementation(GROUPED)


def _grouped_attention(
    module: Any, query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", mask: Any, **options: Any
) -> Any:
    from torch.nn.functional import scaled_dot_product_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    special = any(each is not None and each is not False for each in map(options.get, SPECIAL_OPTIONS))
    if mask is None or query.shape[2] > 1 or special:
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    scale = options.get("scaling")
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def load_model(spec: LoadSpec, folder: Path) -> TextModel:
    import torch
    from transformers import AutoModelForCausalLM

    device = torch.device(str(spec.device))
    if spec.threads:
        torch.set_num_threads(spec.threads)
    check_weights(folder, "AutoModelForCausalLM")
    try:
        module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=PRECISIONS.get(spec.precision, "auto"), use_safetensors=True, trust_remote_code=False,
            local_files_only=True,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise LoadFailed(f"{folder.name}: {first_line(error)}") from error
    module.to(device).eval().requires_grad_(False)
    if device.type == "cpu":
        use_grouped_attention(module)
    if device.type == "cuda":
        # cuDNN plans an attention for each new length, in tens of milliseconds, and every step has a new length.
        torch.backends.cuda.enable_cudnn_sdp(False)
        limit_switch_interval()
    # Maximum tokens of prompt and response together.
    own = int(getattr(module.config.get_text_config(), "max_position_embeddings", None) or DEFAULT_CONTEXT)
    context = min(own, integer_parameter(spec, "MAX_CONTEXT", own))
    return TextModel(module, device, context, graphs=spec.config.cuda_graphs is not None)


def integer_parameter(spec: LoadSpec, name: str, default: int) -> int:
    text = spec.config.parameters.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise LoadFailed(f"{spec.config.name}: parameters {name} = {text!r}, must be a whole number of 1 or greater")
    return int(text)
