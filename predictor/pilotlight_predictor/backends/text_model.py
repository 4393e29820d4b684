"""A causal language model in Hugging Face's layout: config.json, weights as safetensors, a tokenizer.

Loaded during the cold start by transformers, onto one device in the precision of the settings; code that a model brings
along is never run. `forward` is all that the engine (text_engine.py) asks of it.
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.text_graphs import PromptGraphs, prompt_values
from pilotlight_predictor.errors import LoadFailed

if TYPE_CHECKING:
    import torch

PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
UNKNOWN_CONTEXT: Final = 2048  # of a model whose configuration does not tell


class TextModel:
    def __init__(self, module: Any, device: "torch.device", context: int, graphs: bool = False) -> None:
        import inspect

        self._module = module
        self.device = device
        self.context = context
        config = module.config.get_text_config()
        self.layers: int = config.num_hidden_layers
        takes = inspect.signature(module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._placed = "position_ids" in takes
        self.together = self._placed and self._remembers_all()  # whether rows of different length may share a step
        self.stops = _ends(module)
        self._prompts: PromptGraphs | None = None
        if graphs and device.type == "cuda" and self.together and self._last_only:
            self._prompts = PromptGraphs(partial(prompt_values, module, self.new_cache), self.layers, device)

    def prefill(self, prompt: Sequence[int]) -> "tuple[torch.Tensor, Any] | None":
        """A whole prompt at once, by a graph: its scores and its cache. None: `forward` it."""
        return None if self._prompts is None else self._prompts.run(prompt)

    def learn(self) -> None:
        """For when there is nothing else to do: what was asked for is captured, for those who ask next."""
        if self._prompts is not None:
            self._prompts.capture()

    def _remembers_all(self) -> bool:
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in self.new_cache().layers)

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._module.config)

    def copy_cache(self, cache: Any) -> Any:
        return copy.deepcopy(cache)

    def free(self) -> None:
        """Gives the weights' memory back, on a GPU to other processes too."""
        import torch

        self._module = self._prompts = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forward(
        self, tokens: Sequence[Sequence[int]], before: Sequence[int], cache: Any, mask: "torch.Tensor | None"
    ) -> "torch.Tensor":
        """Scores of the token after each row; `before` says how many tokens of a row the cache holds already."""
        import torch

        ids = torch.tensor(tokens, device=self.device)
        arguments: dict[str, Any] = dict(self._last_only)
        if self._placed:
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
        raise LoadFailed(f"{folder.name}: {_first_line(error)}") from error
    module.to(device).eval().requires_grad_(False)
    if device.type == "cuda":
        # cuDNN plans an attention for each length anew, tens of milliseconds each; every step has a new length.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return TextModel(module, device, _context(spec, module), graphs=spec.config.cuda_graphs is not None)


def _context(spec: LoadSpec, module: Any) -> int:
    """The tokens that prompt and answer may have together: the model's own bound, or less where the model's
    configuration says so (parameter MAX_CONTEXT)."""
    own = getattr(module.config.get_text_config(), "max_position_embeddings", None) or UNKNOWN_CONTEXT
    return min(int(own), whole_parameter(spec, "MAX_CONTEXT", int(own)))


def whole_parameter(spec: LoadSpec, name: str, default: int) -> int:
    text = spec.config.parameters.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise LoadFailed(f"{spec.config.name}: parameters {name} = {text!r}, must be a whole number of 1 or greater")
    return int(text)


def _ends(module: Any) -> frozenset[int]:
    """Tokens that end an answer; a chat model often has several."""
    found = getattr(module.generation_config, "eos_token_id", None)
    if found is None:
        found = getattr(module.config, "eos_token_id", None)
    return frozenset([found] if isinstance(found, int) else found or ())


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:400]
