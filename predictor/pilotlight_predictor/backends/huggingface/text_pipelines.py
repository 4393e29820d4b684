"""Pipelines of text tasks. Texts of a batch are tokenised together and padded to the longest."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.backends.huggingface.pipeline import (
    ClassificationHead,
    Pipeline,
    PipelineModel,
    strings,
    texts_of,
)
from pilotlight_predictor.backends.huggingface.task import TaskSettings, read_json
from pilotlight_predictor.backends.transformers_library import CHARACTERS, load_part
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import JsonText, Tensor, TensorSpec
from pilotlight_predictor.errors import BadRequest, LoadFailed

if TYPE_CHECKING:
    import torch

DEFAULT_LENGTH: Final = 512  # tokens of a model whose files have no limit
MAX_CONTEXT: Final = 1 << 20  # characters that are read in windows
STRIDE: Final = 128  # tokens that two windows of a long context share


class TextPipeline(Pipeline):
    """Base of text pipelines: the model and its tokenizer."""

    inputs: Sequence[TensorSpec] = (TensorSpec("text", "BYTES", (-1,)),)

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        self.tokenizer = load_part("AutoTokenizer", model.folder)
        self.sample = {each.name: strings([b"warm-up"]) for each in self.inputs if not each.optional}
        self._lock = Lock()  # a call changes the tokenizer's settings for a moment
        self._length = min(self._longest(), settings.max_length or self._longest())

    def _longest(self) -> int:
        """Return the tokens that the model takes; RoBERTa's positions begin after its padding index."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or DEFAULT_LENGTH
        embeddings = getattr(self.model.module.base_model, "embeddings", None)
        if (padding := getattr(embeddings, "padding_idx", None)) is not None:
            positions -= padding + 1
        return int(min(positions, self.tokenizer.model_max_length))

    def encode(self, *texts: Sequence[str], **options: Any) -> Any:
        """Return the tokens of the rows as torch tensors, those of `options` included.

        What is certainly cut off is not tokenised: a text of 4 MB would take 1.2 GiB.
        """
        if not options.get("return_overflowing_tokens"):
            texts = tuple([text[: CHARACTERS * self._length] for text in column] for column in texts)
        arguments = {"padding": len(texts[0]) > 1, "truncation": True, "max_length": self._length} | options
        with self._lock:
            encoded = self.tokenizer(*texts, return_tensors="pt", verbose=False, **arguments)
        # A tokenizer without special tokens, such as GPT-2's: in a batch the row would be of padding alone.
        if not encoded.get("attention_mask", encoded["input_ids"] >= 0).any(-1).all():
            raise BadRequest("the text is empty: the tokenizer returns no tokens for it")
        return encoded


class TextClassification(TextPipeline):
    inputs = (TensorSpec("text", "BYTES", (-1,)), TensorSpec("text_pair", "BYTES", (-1,), optional=True))

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        self._head = ClassificationHead(model.config, settings)
        self.outputs, self.on_request = self._head.outputs, self._head.on_request

    def run(self, inputs: Inputs) -> Outputs:
        columns = [texts_of(inputs, name) for name in ("text", "text_pair") if name in inputs]
        return self._head.read(self.model.forward(self.encode(*columns)).logits)


class TextRanking(TextPipeline):
    """One score for each pair of texts, equal to that of sentence-transformers' CrossEncoder."""

    inputs = TextClassification.inputs
    outputs = (TensorSpec("score", "FP32", (-1,)), TensorSpec("prompt_tokens", "INT32", (-1,)))
    on_request = frozenset({"prompt_tokens"})

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        self._activation = read_activation(model)

    def run(self, inputs: Inputs) -> Outputs:
        encoded = self.encode(*(texts_of(inputs, name) for name in ("text", "text_pair") if name in inputs))
        scores = self.model.forward(encoded).logits[:, 0].float().cpu()
        return {
            "score": Tensor("FP32", (scores.sigmoid() if self._activation == "Sigmoid" else scores).numpy()),
            "prompt_tokens": token_counts(encoded),
        }


class TokenClassification(TextPipeline):
    """Entities of a text, gathered from its tokens by transformers' own pipeline."""

    outputs = (TensorSpec("entities", "BYTES", (-1,)),)

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        from transformers.pipelines.token_classification import AggregationStrategy, TokenClassificationPipeline

        self._pipeline = TokenClassificationPipeline(model=model.module, tokenizer=self.tokenizer, device=model.device)
        self._strategy = AggregationStrategy(settings.aggregation_strategy)

    def run(self, inputs: Inputs) -> Outputs:
        texts = texts_of(inputs, "text")
        encoded = self.encode(texts, return_special_tokens_mask=True, return_offsets_mapping=self.tokenizer.is_fast)
        special, offsets = encoded.pop("special_tokens_mask"), encoded.pop("offset_mapping", None)
        logits = self.model.forward(encoded).logits.float().cpu()
        rows = []
        for row, text in enumerate(texts):
            tokens = {
                "sentence": text, "logits": logits[row : row + 1], "input_ids": encoded["input_ids"][row : row + 1],
                "special_tokens_mask": special[row : row + 1],
                "offset_mapping": None if offsets is None else offsets[row : row + 1],
            }  # fmt: skip
            rows.append(self._pipeline.postprocess([tokens], aggregation_strategy=self._strategy))
        return {"entities": json_column(rows)}


class FillMask(TextPipeline):
    """The likeliest tokens for the mask of a text; a list for each mask if there are several."""

    outputs = (TensorSpec("tokens", "BYTES", (-1,)),)

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        if self.tokenizer.mask_token is None:
            raise LoadFailed(f"{model.name}: the tokenizer has no mask_token, which the task fill-mask needs")
        self.sample = {"text": strings([str(self.tokenizer.mask_token).encode()])}

    def run(self, inputs: Inputs) -> Outputs:
        encoded = self.encode(texts_of(inputs, "text"))
        masks = encoded["input_ids"] == self.tokenizer.mask_token_id
        if not masks.any(-1).all():
            raise BadRequest(f"input 'text' has a row without {self.tokenizer.mask_token}, the mask to fill")
        logits = self.model.forward(encoded).logits
        return {"tokens": json_column([
            self._filled(encoded["input_ids"][row], mask.nonzero().ravel(), logits[row])
            for row, mask in enumerate(masks)
        ])}  # fmt: skip

    def _filled(self, tokens: "torch.Tensor", places: "torch.Tensor", logits: "torch.Tensor") -> Any:
        scores = logits[places.to(logits.device)].float().softmax(-1)
        best = scores.topk(min(self.settings.top_k, scores.shape[-1]))
        tokens, choices = tokens[tokens != self.tokenizer.pad_token_id], []
        for place, values, ids in zip(places.tolist(), best.values.tolist(), best.indices.tolist(), strict=True):
            candidates = []
            for score, token in zip(values, ids, strict=True):
                tokens[place] = token
                whole = self.tokenizer.decode(tokens, skip_special_tokens=len(places) == 1)
                word = self.tokenizer.decode([token])
                candidates.append({"score": score, "token": token, "token_str": word, "sequence": whole})
            tokens[place] = self.tokenizer.mask_token_id
            choices.append(candidates)
        return choices[0] if len(choices) == 1 else choices


class QuestionAnswering(TextPipeline):
    """The span of `context` that answers `question`; a long context is read in windows that overlap."""

    inputs = (TensorSpec("question", "BYTES", (-1,)), TensorSpec("context", "BYTES", (-1,)))
    outputs = (
        TensorSpec("answer", "BYTES", (-1,)), TensorSpec("score", "FP32", (-1,)),
        TensorSpec("start", "INT32", (-1,)), TensorSpec("end", "INT32", (-1,)),
    )  # fmt: skip

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        if not self.tokenizer.is_fast:
            raise LoadFailed(f"{model.name}: question-answering needs a fast tokenizer, saved as tokenizer.json")

    def run(self, inputs: Inputs) -> Outputs:
        questions, contexts = texts_of(inputs, "question"), texts_of(inputs, "context")
        if (longest := max(map(len, (*questions, *contexts)))) > MAX_CONTEXT:
            raise BadRequest(f"a question or context has {longest:,} characters, expected at most {MAX_CONTEXT:,}")
        stride = min(STRIDE, self._length // 4)
        try:
            encoded = self.encode(
                questions, contexts, padding=True, truncation="only_second", stride=stride,
                return_overflowing_tokens=True, return_offsets_mapping=True,
            )  # fmt: skip
        except Exception as error:  # the tokenizer's own: a question that leaves no place for the context
            problem = f"question and context do not fit the {self._length} tokens of the model"
            raise BadRequest(f"{problem}: {first_line(error)}") from None
        owners, offsets = encoded.pop("overflow_to_sample_mapping").tolist(), encoded.pop("offset_mapping").tolist()
        out = self.model.forward(encoded)
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)] * len(contexts)
        for window, owner in enumerate(owners):
            in_context = np.array([part == 1 for part in encoded.sequence_ids(window)])
            score, first, last = self._span(out.start_logits[window], out.end_logits[window], in_context)
            if score > best[owner][0]:
                best[owner] = (score, offsets[window][first][0], offsets[window][last][1])
        return {
            "answer": strings([text[a:b].encode() for text, (_, a, b) in zip(contexts, best, strict=True)]),
            "score": Tensor("FP32", np.array([score for score, _, _ in best], "<f4")),
            "start": Tensor("INT32", np.array([start for _, start, _ in best], "<i4")),
            "end": Tensor("INT32", np.array([end for _, _, end in best], "<i4")),
        }

    def _span(self, start: "torch.Tensor", end: "torch.Tensor", allowed: Any) -> tuple[float, int, int]:
        """Return probability, first and last token of the likeliest span among the allowed tokens."""
        import torch

        if not allowed.any():
            return 0.0, 0, 0
        mask = ~torch.from_numpy(allowed)
        first, last = (part.float().cpu().masked_fill(mask, -torch.inf).softmax(-1) for part in (start, end))
        scores = (first[:, None] * last[None, :]).triu().tril(self.settings.max_answer_len - 1)
        place = int(scores.argmax())
        return float(scores.max()), place // len(last), place % len(last)


class Embedding(TextPipeline):
    """One vector for each text: hidden states, pooled and normalised as sentence-transformers' files say."""

    on_request = frozenset({"prompt_tokens"})

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        pooling, normalize, longest = read_modules(model)
        self._pooling = settings.pooling or pooling
        self._normalize = normalize if settings.normalize is None else settings.normalize
        self._length = min(self._length, settings.max_length or longest or self._length)
        size = model.config.get_text_config().hidden_size
        self.outputs = (TensorSpec("embedding", "FP32", (-1, size)), TensorSpec("prompt_tokens", "INT32", (-1,)))

    def run(self, inputs: Inputs) -> Outputs:
        import torch

        encoded = self.encode(texts_of(inputs, "text"))
        mask = encoded["attention_mask"]
        states = self.model.forward(encoded).last_hidden_state.float()
        vectors = pool(states, mask.to(states.device), self._pooling)
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return {"embedding": Tensor("FP32", vectors.cpu().numpy()), "prompt_tokens": token_counts(encoded)}


class TextToText(TextPipeline):
    """Text of an encoder-decoder model: a summary, a translation, or what else it was trained for."""

    outputs = (TensorSpec("generated_text", "BYTES", (-1,)),)

    def __init__(self, model: PipelineModel, settings: TaskSettings) -> None:
        super().__init__(model, settings)
        # T5 has the prompt and the lengths of each task in its configuration.
        options = dict((getattr(model.config, "task_specific_params", None) or {}).get(settings.task, {}))
        self._prefix: str = options.pop("prefix", "")
        self._options = options | ({"max_new_tokens": settings.max_new_tokens} if settings.max_new_tokens else {})

    def run(self, inputs: Inputs) -> Outputs:
        texts = texts_of(inputs, "text")
        # One step is enough for empty texts, as a warm-up sends.
        options = self._options if any(texts) else {"max_new_tokens": 1}
        tokens = self.model.generate(self.encode([self._prefix + text for text in texts]), **options)
        with self._lock:
            decoded = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return {"generated_text": strings([text.encode() for text in decoded])}


PIPELINES: Final[Mapping[str, type[Pipeline]]] = {
    "text-classification": TextClassification, "token-classification": TokenClassification, "fill-mask": FillMask,
    "question-answering": QuestionAnswering, "feature-extraction": Embedding, "text2text-generation": TextToText,
    "text-ranking": TextRanking,
}  # fmt: skip


def json_column(rows: Sequence[Any]) -> Tensor:
    """Return the rows as BYTES of JSON, which V1 and generate embed as they are."""
    return strings([JsonText(msgspec.json.encode(row, enc_hook=lambda number: number.item())) for row in rows])


def token_counts(encoded: Any) -> Tensor:
    """Return the tokens of each row, without padding."""
    return Tensor("INT32", encoded["attention_mask"].sum(-1).numpy().astype("<i4"))


def pool(states: "torch.Tensor", mask: "torch.Tensor", mode: str) -> "torch.Tensor":
    """Return one vector for each row of hidden states; `mask` is 0 for padding."""
    import torch

    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(-1)
        return states[torch.arange(len(states), device=mask.device), last]
    if mode == "max":
        return states.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(1)
    weights = mask[:, :, None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def read_modules(model: PipelineModel) -> tuple[str, bool, int | None]:
    """Return pooling, normalisation and length by the files of sentence-transformers; else KServe's defaults."""
    folder = model.folder
    if not (folder / "modules.json").is_file():
        return "mean", True, None
    pooling, normalize = "mean", False
    for part in read_json(folder / "modules.json"):
        kind = str(part["type"]).rpartition(".")[2]
        if kind == "Normalize":
            normalize = True
        elif kind == "Pooling":
            pooling = _pooling_mode(model, read_json(folder / part["path"] / "config.json"))
        elif kind != "Transformer":
            raise LoadFailed(f"{model.name}: modules.json has a {kind}; served are Transformer, Pooling and Normalize")
    limits = folder / "sentence_bert_config.json"
    return pooling, normalize, read_json(limits).get("max_seq_length") if limits.is_file() else None


def read_activation(model: PipelineModel) -> str:
    """Return the activation of a cross-encoder: of sentence-transformers' files, newest layout first, else Sigmoid."""
    file, config = model.folder / "config_sentence_transformers.json", model.config
    stated = read_json(file).get("activation_fn") if file.is_file() else None
    stated = stated or (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    stated = stated or getattr(config, "sbert_ce_default_activation_function", None)
    name = str(stated or ("Identity" if config.problem_type == "regression" else "Sigmoid")).rpartition(".")[2]
    if name not in {"Identity", "Sigmoid"}:
        raise LoadFailed(f"{model.name}: activation_fn = {stated!r} is not supported; use Identity or Sigmoid")
    return name


def _pooling_mode(model: PipelineModel, config: Mapping[str, Any]) -> str:
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    mode = str(config.get("pooling_mode") or ", ".join(modes))
    mode = mode.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
    if mode not in {"mean", "cls", "max", "lasttoken"}:
        raise LoadFailed(f"{model.name}: pooling {mode!r} is not supported; set the parameter pooling: mean, cls, max")
    return mode
