"""Causal language model in Hugging Face's layout, loaded by transformers onto one device.

Code in a model's directory is never run. `forward` and `prefill` are used by the engine (text_engine.py).
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.text_graphs import PrefillGraphs, prefill_outputs
from pilotlight_predictor.errors import LoadFailed

if TYPE_CHECKING:
    import torch

PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
DEFAULT_CONTEXT: Final = 2048  # of a model without max_position_embeddings


class TextModel:
    def __init__(self, module: Any, device: "torch.device", context: int, graphs: bool = False) -> None:
        import inspect

        from transformers.cache_utils import DynamicLayer

        self._module = module
        self.device = device
        self.context = context
        config = module.config.get_text_config()
        self.layers: int = config.num_hidden_layers
        takes = inspect.signature(module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._has_positions = "position_ids" in takes
        # Rows of different length can share a step unless layers drop tokens: sliding windows, recurrent states.
        self.batchable = self._has_positions and all(type(each) is DynamicLayer for each in self.new_cache().layers)
        self.eos_tokens = _eos_tokens(module)
        self._prefill_graphs: PrefillGraphs | None = None
        if graphs and device.type == "cuda" and self.batchable and self._last_only:
            self._prefill_graphs = PrefillGraphs(partial(prefill_outputs, module, self.new_cache), self.layers, device)

    def prefill(self, prompt: Sequence[int]) -> "tuple[torch.Tensor, Any] | None":
        """Run a whole prompt by a CUDA graph; return its scores and cache, or None to use `forward`."""
        return None if self._prefill_graphs is None else self._prefill_graphs.run(prompt)

    def capture_graphs(self) -> None:
        """Capture a requested graph; called while the engine is idle."""
        if self._prefill_graphs is not None:
            self._prefill_graphs.capture()

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._module.config)

    def copy_cache(self, cache: Any) -> Any:
        return copy.deepcopy(cache)

    def free(self) -> None:
        """Free the weights, on a GPU also torch's cache, for other processes."""
        import torch

        self._module = self._prefill_graphs = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forward(
        self, tokens: Sequence[Sequence[int]], before: Sequence[int], cache: Any, mask: "torch.Tensor | None"
    ) -> "torch.Tensor":
        """Return scores of the next token of each row; `before` is the number of tokens of each row in the cache."""
        import torch

        ids = torch.tensor(tokens, device=self.device)
        arguments: dict[str, Any] = dict(self._last_only)
        if self._has_positions:
            begins = torch.tensor(before, device=self.device)
            arguments["position_ids"] = begins[:, None] + torch.arange(ids.shape[1], device=self.device)
        out = self._module(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True, **arguments
        )
        scores: torch.Tensor = out.logits[:, -1]
        return scores


def load_model(spec: LoadSpec, folder: Path) -> TextModel:
    import torch
    from transformers import AutoModelForCausalLM

    device = torch.device(str(spec.device))
    if spec.threads:
        torch.set_num_threads(spec.threads)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=PRECISIONS.get(spec.precision, "auto"), use_safetensors=True, trust_remote_code=False,
            local_files_only=True,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:400]
        raise LoadFailed(f"{folder.name}: {reason}") from error
    module.to(device).eval().requires_grad_(False)
    if device.type == "cuda":
        # cuDNN plans an attention for each new length, in tens of milliseconds, and every step has a new length.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return TextModel(module, device, _context(spec, module), graphs=spec.config.cuda_graphs is not None)


def _context(spec: LoadSpec, module: Any) -> int:
    """Maximum tokens of prompt and response together: the model's own, limited by the parameter MAX_CONTEXT."""
    own = getattr(module.config.get_text_config(), "max_position_embeddings", None) or DEFAULT_CONTEXT
    return min(int(own), integer_parameter(spec, "MAX_CONTEXT", int(own)))


def integer_parameter(spec: LoadSpec, name: str, default: int) -> int:
    text = spec.config.parameters.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise LoadFailed(f"{spec.config.name}: parameters {name} = {text!r}, must be a whole number of 1 or greater")
    return int(text)


def _eos_tokens(module: Any) -> frozenset[int]:
    """Tokens that end a response; chat models often have several."""
    tokens = getattr(module.generation_config, "eos_token_id", None)
    if tokens is None:
        tokens = getattr(module.config, "eos_token_id", None)
    return frozenset([tokens] if isinstance(tokens, int) else tokens or ())
