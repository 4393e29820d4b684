"""Requests of `microservice infer`: body from flags, prompts or defaults; wait for the model, infer, probe.

Defaults are never used silently: on a terminal every field is prompted for, elsewhere it needs its flag or
--accept-defaults.
"""

import base64
import json
import mimetypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.inference import client, predict
from pilotlight.microservices.jobs.org_resources import own_kind
from pilotlight.microservices.media import fetch, limits_from
from pilotlight.microservices.registry import container_command, model_kinds, secret_references
from pilotlight.microservices.registry.model_kinds import ModelRequest, Parameter, Schema
from pilotlight.microservices.registry.records import Entry, PlatformStatus
from platformctl import output
from platformctl.microservice import chat_fields, health_findings, shared_options
from platformctl.microservice.shared_options import ReadStatus


def all_fields() -> dict[str, Parameter]:
    """Return the sampling fields of all networks."""
    return {name: each for arch in model_kinds.networks() for name, each in chat_fields.sampling_fields(arch).items()}


def field_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, parameter in reversed(all_fields().items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar=parameter.type.upper(), help=f"{parameter.help}."
        )(command)
    return command


def check_flags(
    network_arch: str, whole: dict[str, Any] | None, prompt: str, system: str, images: tuple[str, ...],
    videos: tuple[str, ...], flags: Mapping[str, str | None],
) -> None:  # fmt: skip
    """Raise for what can be refused before anything is prompted for."""
    values = {name: text for name, text in flags.items() if text is not None}
    if whole is None:
        shared_options.refuse_prompt(network_arch)
        chat_fields.check(network_arch, {"messages": [chat_fields.message(prompt, images, videos)], **values})
    elif prompt or images or videos or system:
        raise UsageError("--body is the whole request: --prompt, --system, --image and --video do not go with it")
    elif values and shared_options.is_tensor_request(network_arch, whole):
        raise UsageError(f"--{next(iter(values)).replace('_', '-')} is for chats, and --body FILE has tensors")


def build_request(
    network_arch: str, whole: dict[str, Any] | None, prompt: str, system: str, images: tuple[str, ...],
    videos: tuple[str, ...], flags: Mapping[str, str | None], accept_defaults: bool,
) -> dict[str, Any]:  # fmt: skip
    """Build and check the request for a network. A whole body is not prompted for fields."""
    if whole is not None and shared_options.is_tensor_request(network_arch, whole):
        request = whole
    else:
        values = {name: text for name, text in flags.items() if text is not None}
        request = whole or {"messages": _messages(network_arch, prompt, system, images, videos)}
        request |= sampling_values(network_arch, request, values, accept_defaults, complete=whole is not None)
        chat_fields.check(network_arch, request)
    secret_references.check_absent("the request", json.dumps(request, ensure_ascii=False), os.environ)
    return request


def sampling_values(
    network_arch: str, request: Mapping[str, Any], flags: Mapping[str, str], accept_defaults: bool, *,
    complete: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the sampling fields. A field unknown to the network is left for `check` to refuse by name."""
    known = chat_fields.sampling_fields(network_arch)
    every = all_fields()
    values = {name: chat_fields.parse_value(name, text, every[name]) for name, text in flags.items()}
    open_fields = {name: each for name, each in known.items() if name not in values and name not in request}
    if not open_fields or (complete and not accept_defaults):
        return values
    if accept_defaults:
        # A field without a default is omitted: the model's own applies.
        defaults = {name: each.default for name, each in open_fields.items() if each.default not in (None, "")}
        output.note("defaults: " + ", ".join(f"{name}={json.dumps(value)}" for name, value in defaults.items()))
        return {**defaults, **values}
    if not shared_options.on_terminal():
        demanded = {name: each for name, each in open_fields.items() if each.default is not None}
        if not demanded:
            return values
        missing = ", ".join(f"--{name.replace('_', '-')} ({_describe(each)})" for name, each in demanded.items())
        message = f"sampling parameters are not given, and defaults are not taken silently: {missing}"
        raise UsageError(message, "give them as flags, or --accept-defaults")
    return {**_prompt_fields(open_fields), **values}


def _describe(parameter: Parameter) -> str:
    default = "the model's own" if parameter.default in (None, "") else json.dumps(parameter.default)
    return f"{parameter.type}, default {default}"


def _prompt_fields(fields: Mapping[str, Parameter]) -> dict[str, Any]:
    """List all fields, then prompt for each; Enter selects the default."""
    output.note("Sampling parameters; Enter keeps the default:")
    for line in output.columns([(name, _describe(each), each.help) for name, each in fields.items()]):
        output.note(line)
    answers = {name: _answer(name, each) for name, each in fields.items()}
    return {name: value for name, value in answers.items() if value not in (None, "")}


def _answer(name: str, parameter: Parameter) -> Any:
    while True:
        text = click.prompt(
            name, default="", show_default=False, prompt_suffix=f" [{_describe(parameter)}]: ", err=True
        )
        try:
            return chat_fields.parse_value(name, text, parameter) if text else parameter.default
        except UsageError as error:
            output.note(str(error))


def read_body(file: str) -> dict[str, Any]:
    """Return the JSON object of --body."""
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
    if not prompt and shared_options.on_terminal():
        prompt = shared_options.prompt("prompt")
    if not prompt:
        raise UsageError("--prompt is missing", "or --body FILE with the whole request")
    ours = container_command.arch(network_arch, os.environ).command == "pilotlight"
    before = [{"role": "system", "content": system}] if system else []
    media = [[_inline_media(each) if ours else each for each in group] for group in (images, videos)]
    return [*before, chat_fields.message(prompt, *media)]


def _inline_media(reference: str) -> str:
    """Encode a local file as a data URI: the predictor reads no paths named by clients."""
    path = Path(reference)
    if "://" in reference or reference.startswith("data:") or not path.is_file():
        return reference
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


@contextmanager
def _ready_route(job_id: str, entry: Entry, max_wait_s: float) -> Iterator[tuple[str, ReadStatus, client.Wait]]:
    """Wait for the route; yield its URL with what else a wait for the model needs."""
    target, ticker = shared_options.platform_of(entry), output.ProgressLog()
    wait = client.Wait(max_wait_s, lambda message: ticker.log("loading", shared_options.redacted(message)))

    def read_status() -> PlatformStatus:
        return target.status(job_id, entry)

    with shared_options.hints_for(job_id):
        try:
            with client.open_route(lambda: target.open_route(job_id, entry), read_status, wait) as url:
                yield url, read_status, wait
        finally:
            ticker.close()


def wait_for_model(job_id: str, entry: Entry, max_wait_s: float) -> None:
    """Return once the model is loaded."""
    with _ready_route(job_id, entry, max_wait_s) as (url, read_status, wait):
        client.wait_for_model(url, read_status, wait)


def infer(
    job_id: str, entry: Entry, request: Mapping[str, Any], tensors: bool, timeout: float, max_wait_s: float
) -> client.ChatResponse:
    """Send a chat or V2 tensor request; waits while the model loads."""
    send = partial(client.post, client.TENSORS if tensors else client.PATH)
    with _ready_route(job_id, entry, max_wait_s) as (url, read_status, wait):
        try:
            if tensors:  # only chat responses tell a loading model from a failed one
                client.wait_for_model(url, read_status, wait)
            reply = client.send_chat(url, request, read_status, wait, timeout=timeout, send=send)
            health_findings.clear(job_id, health_findings.REFUSED)
            return reply
        except UsageError as error:
            health_findings.record(job_id, shared_options.redacted(str(error).removeprefix(client.REFUSED)))
            raise shared_options.explain_refusal(url, job_id, error) from None


def message_content(document: Any) -> str:
    """Return the content of the first choice. Raise where a 200 has no such content."""
    try:
        text = document["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise PlatformError(f"it responded 200 without choices[0].message.content: {str(document)[:200]}") from None
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def picture_schema(job_id: str, entry: Entry) -> Schema | None:
    """Return the schema of a model that takes pictures as tensors; None for others."""
    if container_command.arch(entry.network_arch, os.environ).command != shared_options.OURS:
        return None
    kind = own_kind(entry.network_arch, "", os.environ)
    schema = model_kinds.schema(entry.network_arch, health_findings.recorded(job_id, model_kinds.FILE), kind)
    return schema if schema.protocol == "tensors" and schema.kind != "tensors" else None


def picture_request(schema: Schema, files: Sequence[str], parameters: Mapping[str, Any]) -> ModelRequest:
    """Return the request for pictures: files of this machine, or addresses of hosts that media are taken from."""
    for file in files:
        if "://" not in file and not Path(file).is_file():
            raise UsageError(f"{file}: there is no such file", "--image FILE, or an address")
    paths = [file if "://" in file else str(Path(file).resolve()) for file in files]
    return model_kinds.validate(schema, {schema.parameter_with_role("media"): paths, **parameters})


def infer_pictures(
    job_id: str, entry: Entry, schema: Schema, request: ModelRequest, timeout: float, max_wait_s: float
) -> dict[str, Any]:
    """Send pictures as tensors; waits while the model loads."""
    limits = replace(limits_from(os.environ), roots=("/",))  # whoever types this reads the files
    media = fetch(request.media, None, limits)
    wait_for_model(job_id, entry, max_wait_s)
    with shared_options.platform_of(entry).open_route(job_id, entry) as url:
        return predict.predict(url, schema, request, media, limits, timeout)


def picture_lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each class, or each detection, of each picture; JSON for what is neither."""
    rows: list[tuple[str, ...]] = []
    for each in results["predictions"]:
        for found in each.get("detections", [each] if "label" in each else []):
            box = " ".join(f"{edge:g}" for edge in found.get("box", ()))
            rows.append((each["name"], str(found.get("label", "")), f"{found['confidence'] or 0:.4f}", box))
        if "detections" not in each and "label" not in each:
            rows.append((each["name"], json.dumps(each)))
    return output.columns(rows, "")


def parse_parameters(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE arguments; a value that is not JSON is text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--parameter {text}, must be NAME=VALUE")
        try:
            parsed[name] = json.loads(value)
        except ValueError:
            parsed[name] = value
    return parsed
