"""How `microservice infer` makes its request: prompt and media, and every sampling field by flag, prompt or default.

Defaults are never taken silently: on a terminal all fields are asked for in one round, elsewhere each needs its flag or
--accept-defaults. What is given goes into the request as it stands.
"""

import base64
import json
import mimetypes
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from pilotlight.errors import UsageError
from pilotlight.microservices import archs, chat_body, kinds, secrets
from pilotlight.microservices.kinds import Parameter
from platformctl import microservices, output, tensor_asking


def every_field() -> dict[str, Parameter]:
    """Of all networks."""
    return {name: each for arch in kinds.networks() for name, each in chat_body.fields(arch).items()}


def field_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, parameter in reversed(every_field().items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar=parameter.type.upper(), help=f"{parameter.help}."
        )(command)
    return command


def body(
    network_arch: str, whole: dict[str, Any] | None, prompt: str, system: str, images: tuple[str, ...],
    videos: tuple[str, ...], given: Mapping[str, str | None], accept_defaults: bool,
) -> dict[str, Any]:  # fmt: skip
    """The request, checked against the network that gets it. A whole one lacks nothing, so nothing is asked for."""
    if whole is not None and (prompt or images or videos or system):
        raise UsageError("--body is the whole request: --prompt, --system, --image and --video do not go with it")
    typed = {name: text for name, text in given.items() if text is not None}
    if whole is not None and tensor_asking.is_tensors(network_arch, whole):
        if typed:
            raise UsageError(f"--{next(iter(typed)).replace('_', '-')} is for chats, and --body FILE has tensors")
        made = whole
    else:
        made = whole or {"messages": _messages(network_arch, prompt, system, images, videos)}
        made |= sampled(network_arch, made, typed, accept_defaults, complete=whole is not None)
        chat_body.check(network_arch, made)
    secrets.check_absent("the request", json.dumps(made, ensure_ascii=False), os.environ)
    return made


def sampled(
    network_arch: str, made: Mapping[str, Any], given: Mapping[str, str], accept_defaults: bool, *,
    complete: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Values of all fields that the network takes. One that it does not take stays, for `check` to refuse by name."""
    known = chat_body.fields(network_arch)
    every = every_field()
    values = {name: chat_body.value_of(name, text, every[name]) for name, text in given.items()}
    open_fields = {name: each for name, each in known.items() if name not in values and name not in made}
    if not open_fields or (complete and not accept_defaults):
        return values
    if accept_defaults:
        return {**_defaults(open_fields), **values}
    if not microservices.on_terminal():
        raise UsageError(_refusal(open_fields), "give them as flags, or --accept-defaults")
    return {**_asked(open_fields), **values}


def _refusal(fields: Mapping[str, Parameter]) -> str:
    told = ", ".join(f"--{name.replace('_', '-')} ({_told(each)})" for name, each in fields.items())
    return f"sampling parameters are not given, and defaults are not taken silently: {told}"


def _told(parameter: Parameter) -> str:
    default = "the model's own" if parameter.default in (None, "") else json.dumps(parameter.default)
    return f"{parameter.type}, default {default}"


def _defaults(fields: Mapping[str, Parameter]) -> dict[str, Any]:
    """A field without a default is left out, and the model's own holds."""
    taken = {name: each.default for name, each in fields.items() if each.default not in (None, "")}
    output.note("defaults: " + ", ".join(f"{name}={json.dumps(value)}" for name, value in taken.items()))
    return taken


def _asked(fields: Mapping[str, Parameter]) -> dict[str, Any]:
    """One round: all of them are listed, then each is asked for; Enter keeps its default."""
    output.note("Sampling parameters; Enter keeps the default:")
    for line in output.columns([(name, _told(each), each.help) for name, each in fields.items()]):
        output.note(line)
    answers = {name: _answer(name, each) for name, each in fields.items()}
    return {name: value for name, value in answers.items() if value not in (None, "")}


def _answer(name: str, parameter: Parameter) -> Any:
    while True:
        text = click.prompt(name, default="", show_default=False, prompt_suffix=f" [{_told(parameter)}]: ", err=True)
        try:
            return chat_body.value_of(name, text, parameter) if text else parameter.default
        except UsageError as error:
            output.note(str(error))


def whole(file: str) -> dict[str, Any]:
    """What --body names."""
    try:
        document = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text())
    except OSError as error:
        raise UsageError(f"--body {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--body {file} is no JSON: {error}") from None
    if not isinstance(document, dict) or not document:
        raise UsageError(f"--body {file} must be a JSON object that is not empty")
    return document


def _messages(
    network_arch: str, prompt: str, system: str, images: tuple[str, ...], videos: tuple[str, ...]
) -> list[dict[str, Any]]:  # fmt: skip
    tensor_asking.refuse_prompt(network_arch)
    if not prompt and microservices.on_terminal():
        prompt = microservices.asked("prompt")
    if not prompt:
        raise UsageError("--prompt is missing: what is asked of the model", "or --body FILE with the whole request")
    ours = archs.arch(network_arch, os.environ).command == "pilotlight"
    before = [{"role": "system", "content": system}] if system else []
    named = [[_sent(each) if ours else each for each in group] for group in (images, videos)]
    return [*before, chat_body.message(prompt, *named)]


def _sent(reference: str) -> str:
    """A file of this machine travels in the request, since our predictor reads no paths that clients name."""
    path = Path(reference)
    if "://" in reference or reference.startswith("data:") or not path.is_file():
        return reference
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
