"""Parameters of text generation: parsing and validation for every protocol. Pure.

Sampling, for the OpenAI protocol and V2's `sampling_parameters`; tools and response format of a chat, for the OpenAI
protocol and the text backend's inputs of the same names. Names and ranges are OpenAI's, with `top_k` and `ignore_eos`
added.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pilotlight_predictor.errors import BadRequest

MAX_BIASES: Final = 1024  # each is added at every token
MAX_STOPS: Final = 16
MAX_SEED: Final = 2**63 - 1
MAX_INT: Final = 2**31 - 1
MIN_TEMPERATURE: Final = 1e-6  # below it, scores overflow; only the best token would have a probability anyway
CHAT_FIELDS: Final = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
MAX_TOOLS: Final = 128
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
FUNCTION_FIELDS: Final = {"name", "description", "parameters", "strict"}
SCHEMA_FIELDS: Final = {"name", "description", "schema", "strict"}
NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_Token = Annotated[int, Meta(ge=0, le=2**31)]


class BadField(BadRequest):
    """Invalid field; `field` is its name, for protocols that report it separately from the message."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TaskNotSupported(BadField):
    """The model cannot serve the route; the message names one that it serves."""

    def __init__(self, message: str) -> None:
        super().__init__("model", message)


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. `max_tokens` 0: up to the context's length; `logprobs` -1: none."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_INT)] = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=MAX_INT)] = 0
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    seed: Annotated[int, Meta(ge=-MAX_SEED, le=MAX_SEED)] | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=MAX_STOPS)] = ()
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[dict[_Token, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] = {}
    logprobs: Annotated[int, Meta(ge=0, le=20)] = -1
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE or self.top_k == 1

    @property
    def plain(self) -> bool:
        """Whether sampling is a plain argmax without log probabilities: computed for a whole batch at once."""
        return self.greedy and not (
            self.presence_penalty or self.frequency_penalty or self.logit_bias or self.logprobs >= 0
        )


def read_sampling(parameters: Mapping[str, Any], default_max_tokens: int = 0, prefix: str = "") -> SamplingParameters:
    """Validate parameters. Raises BadField; `prefix`: put before a field's name in errors ("sampling_parameters.")."""
    fields: dict[str, Any] = {"max_tokens": default_max_tokens} if default_max_tokens else {}
    for name, value in parameters.items():
        if name not in _MUST:
            raise BadField(name, f"{prefix}{name} is unknown, must be one of {', '.join(_MUST)}")
        if name == "stop" and isinstance(value, str):
            fields[name] = [value]
        elif isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:  # 5.0 is a whole number too
            fields[name] = int(value)
        elif value is not None:
            fields[name] = value
    try:
        return msgspec.convert(fields, SamplingParameters, str_keys=True)
    except msgspec.ValidationError as error:
        name = re.findall(r"\$\.(\w+)", str(error))[-1]
        value = parameters[name]
        shown = "an object" if isinstance(value, dict) else as_json(value)
        raise BadField(name, f"{prefix}{name} = {shown}, must be {_MUST[name]}") from None


def as_json(value: Any) -> str:
    """Return a value for a message, cut to 60 characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"


_MUST: Final = {
    "max_tokens": "a whole number of 1 or greater",
    "temperature": "a number from 0 to 2",
    "top_p": "a number above 0, at most 1",
    "top_k": "a whole number; 0 is all tokens",
    "n": "a whole number from 1 to 128",
    "seed": f"a whole number from {-MAX_SEED} to {MAX_SEED}",
    "stop": f"a string or a list of at most {MAX_STOPS} strings, none of them empty",
    "presence_penalty": "a number from -2 to 2",
    "frequency_penalty": "a number from -2 to 2",
    "logit_bias": f"an object of at most {MAX_BIASES} token numbers and biases from -100 to 100",
    "logprobs": "a whole number from 0 to 20",
    "ignore_eos": "true or false",
}


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a chat. `tools` is empty with tool_choice none; `schema` None: any text."""

    tools: Sequence[dict[str, Any]] = ()
    required: bool = False
    named: str = ""
    parallel: bool = True
    schema: Mapping[str, Any] | None = None

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """Schema of the arguments of each function that may be called."""
        functions = [tool["function"] for tool in self.tools]
        return {
            function["name"]: function.get("parameters") or NO_PARAMETERS
            for function in functions
            if self.named in ("", function["name"])
        }


def read_chat_options(fields: Mapping[str, Any]) -> ChatOptions:
    """Validate tools, tool_choice, parallel_tool_calls and response_format. Raises BadField."""
    tools, choice, parallel = (fields.get(name) for name in CHAT_FIELDS[:3])
    names = _tool_names(tools)
    if parallel is not None and not isinstance(parallel, bool):
        raise BadField("parallel_tool_calls", "parallel_tool_calls must be true or false")
    if choice is not None and choice not in ("none", "auto", "required") and not isinstance(choice, dict):
        raise BadField("tool_choice", "tool_choice must be none, auto, required or an object that names a function")
    named = _named(choice) if isinstance(choice, dict) else ""
    if not names and (named or choice == "required"):
        raise BadField("tool_choice", "tool_choice needs tools")
    if named and named not in names:
        raise BadField(
            "tool_choice", f"tool_choice names '{named[:64]}', must be one of tools: {', '.join(names[:10])}"
        )
    return ChatOptions(
        tools=() if choice == "none" else tools or (), required=bool(named) or choice == "required", named=named,
        parallel=parallel is not False, schema=_schema(fields.get("response_format")),
    )  # fmt: skip


def _tool_names(tools: Any) -> list[str]:
    if tools is None:
        return []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise BadField("tools", f"tools must be a list of at most {MAX_TOOLS} functions")
    names: list[str] = []
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise BadField(at, f'{at} must be {{"type": "function", "function": {{…}}}}')
        name = _name(function, f"{at}.function")
        _known(function, FUNCTION_FIELDS, f"{at}.function")
        if not isinstance(function.get("parameters"), dict | None):
            raise BadField(f"{at}.function.parameters", f"{at}.function.parameters must be a JSON schema, an object")
        if name in names:
            raise BadField(f"{at}.function.name", f"{at}.function.name = '{name}' is the name of another tool")
        names.append(name)
    return names


def _named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    if choice.get("type") != "function" or not isinstance(function, dict):
        raise BadField("tool_choice", 'tool_choice must be {"type": "function", "function": {"name": …}}')
    return _name(function, "tool_choice.function")


def _schema(value: Any) -> Mapping[str, Any] | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    form = value.get("json_schema") if isinstance(value, dict) else None
    if kind != "json_schema" or not isinstance(form, dict):
        types = "text, json_object or json_schema with a json_schema object"
        raise BadField("response_format", f"response_format must be an object with type {types}")
    at = "response_format.json_schema"
    _name(form, at)
    _known(form, SCHEMA_FIELDS, at)
    schema = form.get("schema", {"type": "object"})
    if not isinstance(schema, dict):
        raise BadField(f"{at}.schema", f"{at}.schema must be a JSON schema, an object")
    return schema


def _name(item: Mapping[str, Any], at: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadField(f"{at}.name", f"{at}.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -")
    return name


def _known(item: Mapping[str, Any], known: set[str], at: str) -> None:
    if unknown := item.keys() - known:
        name = f"{at}.{min(unknown)[:100]}"
        raise BadField(name, f"{name} is not a field of this request")
    for name, kind, must in (("strict", bool, "true or false"), ("description", str, "text")):
        if not isinstance(item.get(name), kind | None):
            raise BadField(f"{at}.{name}", f"{at}.{name} must be {must}")


def check_tool_messages(index: int, message: Mapping[str, Any]) -> None:
    """Validate a message's `tool_calls`, and `tool_call_id` of the role tool. Raises BadField."""
    at = f"messages[{index}]"
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise BadField(f"{at}.tool_call_id", f"{at}.tool_call_id must be the id of the tool call")
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list) or len(calls) > MAX_TOOLS:
        raise BadField(f"{at}.tool_calls", f"{at}.tool_calls must be a list of at most {MAX_TOOLS} calls")
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadField(f"{at}.tool_calls[{number}]", f"{at}.tool_calls[{number}].function must have a name")
        if call_arguments(function.get("arguments")) is None:
            name = f"{at}.tool_calls[{number}].function.arguments"
            raise BadField(name, f"{name} must be a JSON object as text")


def call_arguments(value: Any) -> dict[str, Any] | None:
    """Return the arguments of a call, which are an object or its JSON; None if they are neither."""
    try:
        decoded = msgspec.json.decode(value) if isinstance(value, str) and value.strip() else value or {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None
