"""Text generation: a directory in Hugging Face's layout, run by transformers (docs/reference/openai.md).

A decoupled model with the tensors of Triton's vLLM backend: `text_input` in, `text_output` out, one response or, with
`stream`, one per step. The OpenAI protocol uses the same tensors, with `messages` for a chat. All requests share one
engine (engine.py).
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from pilotlight_predictor.backends.base import DecoupledRequest, LoadSpec
from pilotlight_predictor.backends.text.adapter_table import AdapterTable
from pilotlight_predictor.backends.text.engine import TextEngine
from pilotlight_predictor.backends.text.generation_request import Task
from pilotlight_predictor.backends.text.grammar import Grammar, GrammarCompiler
from pilotlight_predictor.backends.text.lora_layers import NO_ADAPTER
from pilotlight_predictor.backends.text.model import TextModel, integer_parameter, load_model
from pilotlight_predictor.backends.text.prompt import PromptTokenizer, read_messages
from pilotlight_predictor.backends.text.tool_calls import ToolCallFormat, ToolCallParser, call_grammar, json_rule
from pilotlight_predictor.backends.transformers_library import LOADING, import_transformers, load_part
from pilotlight_predictor.core.backend_table import backend_for_folder, find_backend
from pilotlight_predictor.core.generation_params import (
    CHAT_FIELDS,
    BadField,
    ChatOptions,
    SamplingParameters,
    read_chat_options,
    read_sampling,
)
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BadRequest

LIBRARY: Final = ("AutoModelForCausalLM", "AutoTokenizer", "DynamicCache")
SLOTS: Final = 32
DEFAULT_MAX_TOKENS: Final = 16  # default max_tokens of a completion
# Prefixes of request parameters that are not for sampling.
NOT_SAMPLING: Final = ("return_", "triton_", "sequence_", "binary_data", "priority", "timeout", "headers")
OPTIONAL_OUTPUTS: Final = ("finish_reason", "index", "num_input_tokens", "num_output_tokens", "logprobs", "tool_calls")
INPUTS: Final = (
    *(TensorSpec(name, "BYTES", (1,), optional=True) for name in ("text_input", "messages", "sampling_parameters")),
    TensorSpec("tokens", "INT32", (-1,), optional=True),
    *(TensorSpec(name, "BOOL", (1,), optional=True) for name in ("stream", "exclude_input_in_output")),
    *(TensorSpec(name, "BYTES", (1,), optional=True) for name in CHAT_FIELDS),
)
OUTPUTS: Final = (
    TensorSpec("text_output", "BYTES", (-1,)),
    TensorSpec("finish_reason", "BYTES", (-1,)),
    TensorSpec("index", "INT32", (-1,)),
    TensorSpec("num_input_tokens", "UINT32", (-1,)),
    TensorSpec("num_output_tokens", "UINT32", (-1,)),
    TensorSpec("logprobs", "BYTES", (-1,)),
    TensorSpec("tool_calls", "BYTES", (-1,)),
)


class TextInstance:
    quick = False
    decoupled = True
    inputs: Sequence[TensorSpec] = INPUTS
    outputs: Sequence[TensorSpec] = OUTPUTS

    def __init__(
        self, name: str, model: TextModel, tokens: PromptTokenizer, engine: TextEngine, compiler: GrammarCompiler,
        adapters: AdapterTable, shared: list[int],
    ) -> None:  # fmt: skip
        self._name, self._model, self._tokens, self.engine = name, model, tokens, engine
        self._compiler, self.adapters = compiler, adapters
        self._shared = shared  # how many instances use the engine
        self._shared[0] += 1
        self.chats = tokens.chats

    def begin(self, batch: Sequence[DecoupledRequest]) -> None:
        for request in batch:
            try:
                task = self._task(request)
            except Exception as error:  # fails this request only
                request.send(error)
            else:
                self.engine.submit(task)

    def clone(self) -> "TextInstance":
        parts = (self._model, self._tokens, self.engine, self._compiler, self.adapters, self._shared)
        return TextInstance(self._name, *parts)

    def close(self) -> None:
        self._shared[0] -= 1
        if not self._shared[0]:
            self.engine.close()
            self._model.free()

    def _task(self, request: DecoupledRequest) -> Task:
        infer_request = request.request
        parameters, stream, exclude = _settings(infer_request)
        adapter = _adapter(parameters)
        text, messages = _text(infer_request, "text_input"), _text(infer_request, "messages")
        tokens, options = infer_request.inputs.get("tokens"), _chat_options(infer_request)
        if messages:
            prompt = self._tokens.chat(read_messages(messages.encode()), options.tools)
        elif options.tools:
            raise BadField("tools", "tools need the input 'messages'")
        elif tokens is not None and tokens.array.size and text is None:
            prompt = self._tokens.check(tokens.array.ravel().tolist())
        elif text is not None:
            prompt = self._tokens.encode(text)
        else:
            raise BadRequest(f"model '{self._name}' needs the input 'text_input', or 'messages' for a chat")
        sampling = read_sampling(parameters, 0 if messages else DEFAULT_MAX_TOKENS, "sampling_parameters.")
        repeats = not (stream or messages) if exclude is None else not exclude
        if repeats and stream:
            raise BadRequest("exclude_input_in_output = false, must be true or left out when stream is true")
        names, flags = {output.name for output in infer_request.outputs}, infer_request.parameters
        # Requested by name, or by a parameter `return_…` as in Triton's vLLM backend.
        outputs = [name for name in OPTIONAL_OUTPUTS if name in names or flags.get(f"return_{name}") is True]
        max_tokens = self._max_tokens(prompt, sampling)
        form = self._tokens.tool_format(options.tools) if options.tools else None
        identity = self.adapters.acquire(adapter) if adapter else NO_ADAPTER
        return Task(
            request, prompt, sampling, max_tokens, self._model.eos_tokens, self._tokens, stream=stream,
            before=(text or "") if repeats else "", outputs=frozenset(outputs),
            grammars=self._grammars(options, form, sampling.n),
            new_parser=form and partial(ToolCallParser, form, options), adapter=identity,
            on_released=partial(self.adapters.release, identity) if adapter else lambda: None,
        )  # fmt: skip

    def _grammars(self, options: ChatOptions, form: ToolCallFormat | None, count: int) -> list[Grammar]:
        """Grammars of the choices: of calls if one is required, else of a schema beside calls; empty for any text."""
        if options.schema is None and not options.required:
            return []
        starts, rules = [], []
        if form is not None:
            starts, rules = ["calls"], [call_grammar(form, options, self._marker)]
        if options.schema is not None and not options.required:
            starts.append("answer")
            rules.append(f"answer: {json_rule(options.schema)}")
        text = "\n".join([f"start: {' | '.join(starts)}", *rules])
        schemas = [options.schema, *(options.schemas.values() if form is not None else ())]
        return self._compiler.compile(text, schemas, "tools" if options.required else "response_format", count)

    def _marker(self, text: str) -> str:
        token = self._tokens.special_token(text)
        return json.dumps(text) if token is None else f"<[{token}]>"

    def _max_tokens(self, prompt: Sequence[int], sampling: SamplingParameters) -> int:
        """Maximum number of generated tokens. Raises BadField if prompt and max_tokens do not fit the context."""
        context = self._model.context
        if sampling.n > self.engine.slots:
            raise BadField("n", f"n = {sampling.n}, must be at most {self.engine.slots} for model '{self._name}'")
        if len(prompt) >= context:
            wanted = f"fewer than the {context} of model '{self._name}'"
            raise BadField("prompt", f"the prompt has {len(prompt)} tokens, must have {wanted}")
        remaining = context - len(prompt)
        if sampling.max_tokens > remaining:
            why = f"the context of model '{self._name}' has {context} tokens and the prompt {len(prompt)}"
            raise BadField("max_tokens", f"max_tokens = {sampling.max_tokens}, must be at most {remaining}: {why}")
        return sampling.max_tokens or remaining


def _adapter(parameters: dict[str, Any]) -> str:
    """Remove and return the adapter of a request, by the name of Triton's vLLM backend; empty for the base model."""
    name = parameters.pop("lora_name", None) or ""
    if not isinstance(name, str):
        raise BadField("lora_name", f"lora_name = {name!r}, must be the name of an adapter")
    return name


def _settings(request: InferRequest) -> tuple[dict[str, Any], bool, bool | None]:
    """Sampling parameters, stream and exclude_input_in_output, from inputs or the request's parameters."""
    parameters = dict(request.parameters)
    stream, exclude = (
        _flag(request, parameters.pop(name, None), name) for name in ("stream", "exclude_input_in_output")
    )
    text = _text(request, "sampling_parameters")
    if not text:
        return {n: v for n, v in parameters.items() if not n.startswith(NOT_SAMPLING)}, bool(stream), exclude
    try:
        return msgspec.json.decode(text, type=dict[str, Any]), bool(stream), exclude
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise BadField("sampling_parameters", "sampling_parameters must be a JSON object") from None


def _chat_options(request: InferRequest) -> ChatOptions:
    fields: dict[str, Any] = {}
    for name in CHAT_FIELDS:
        if text := _text(request, name):
            try:
                fields[name] = msgspec.json.decode(text)
            except msgspec.DecodeError:
                raise BadField(name, f"input '{name}' must be JSON") from None
    return read_chat_options(fields)


def _flag(request: InferRequest, parameter: Any, name: str) -> bool | None:
    tensor = request.inputs.get(name)
    value = tensor.array.ravel()[0].item() if tensor is not None and tensor.array.size else parameter
    if value is not None and not isinstance(value, bool):
        raise BadField(name, f"{name} = {value!r}, must be true or false")
    return value


def _text(request: InferRequest, name: str) -> str | None:
    tensor = request.inputs.get(name)
    if tensor is None or not tensor.array.size:
        return None
    try:
        return bytes(tensor.array.ravel()[0]).decode()
    except UnicodeDecodeError:
        raise BadField(name, f"input '{name}' is not UTF-8 text") from None


def alternative_backend(spec: LoadSpec) -> str:
    """Leave models of other tasks to the backend huggingface."""
    return "huggingface" if backend_for_folder(spec.folder) is find_backend("huggingface") else "text"


def prepare() -> None:
    with LOADING:
        import_transformers(*LIBRARY)


def load(spec: LoadSpec) -> TextInstance:
    slots = integer_parameter(spec, "MAX_SEQUENCES", SLOTS)
    with LOADING:
        import_transformers(*LIBRARY)
        tokenizer = load_part("AutoTokenizer", spec.folder)
        model = load_model(spec, spec.folder)
    tokens = PromptTokenizer(tokenizer, spec.config.name, model.context)
    compiler, engine = GrammarCompiler(tokens, model.eos_tokens), TextEngine(model, slots)
    adapters = AdapterTable(spec.config.name, model.lora, engine)
    return TextInstance(spec.config.name, model, tokens, engine, compiler, adapters, [0])
