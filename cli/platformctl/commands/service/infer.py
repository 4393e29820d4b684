"""`platformctl infer`: one inference request, built from the model's metadata."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
from msgspec.structs import replace

from pilotlight.contract import HEADER_COLD_START, HEADER_TAG, TASK_NOT_SUPPORTED
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.v2_tensors import InputSpec, flatten, inputs_of
from pilotlight.wire.http_client import HttpReply
from platformctl import output, targets
from platformctl.services import infer_request
from platformctl.services.infer_request import MESSAGES, TEXT_INPUT, TEXT_OUTPUT
from platformctl.targets import Gateway

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
TABLES: Final = (".csv", ".tsv")
SHOWN: Final = 12
CHAT_TOKENS: Final = 256  # default of --max-tokens; an engine's own is the rest of its context
SLOW_S: Final = 0.5  # a slower first response was a cold start, if no gateway header says so


@click.command()
@targets.name_argument()
@targets.options
@click.option("--data", metavar="JSON", help='Values of one input, {"NAME": values}, or a V2 request; - reads stdin.')
@click.option(
    "--file", type=FILE, metavar="FILE", help="The same from .json, rows from .csv, an array from .npy, else bytes."
)
@click.option("--image", type=FILE, metavar="FILE", help="Image, converted to the shape and type of the input.")
@click.option("--text", metavar="TEXT", help="String.")
@click.option("--binary", type=FILE, metavar="FILE", help="Raw tensor, little-endian.")
@click.option("--input", "input_name", default="", metavar="NAME", help="Name of the input, if the model has several.")
@click.option(
    "--outputs", default="", metavar="NAMES", help="Outputs to return, by comma (default: the model's choice)."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help=f"Limit of generated text (chat default: {CHAT_TOKENS})."
)
@click.option("--model", default="", metavar="NAME", help="Name of the model (default: that of the service).")
@click.option("--tag", default="", metavar="TAG", help="Call the revision with this tag.")
@click.option("--token", envvar="PILOTLIGHT_TOKEN", metavar="TOKEN", help="Bearer token. [env: PILOTLIGHT_TOKEN]")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Header of the request; repeatable."
)
@click.option("--timeout", default=300.0, show_default=True, metavar="SECONDS", help="Timeout of the response.")
@output.formats("table", "json", "yaml")
def infer(
    service_options: targets.ServiceOptions, name: str, input_name: str, outputs: str,
    max_tokens: int | None, model: str, tag: str, token: str | None, headers: Sequence[str], timeout: float,
    **sources: Any,
) -> None:  # fmt: skip
    """Send one request to a service. A service at zero starts for it.

    Example: platformctl infer iris --data '[5.1, 3.5, 1.4, 0.2]'
    """
    kinds = [kind for kind, value in sources.items() if value is not None]
    if len(kinds) != 1:
        problem = "give only one of" if kinds else "infer needs the input of the model: one of"
        options = ", ".join(f"--{kind}" for kind in kinds or sources)
        raise UsageError(f"{problem} {options}", f"platformctl infer {name} --data '[5.1, 3.5, 1.4, 0.2]'")
    kind, value = read_source(kinds[0], sources[kinds[0]])
    key, target = service_options.key(name), service_options.connect_running()
    own = {**({HEADER_TAG.lower(): tag} if tag else {}), **({"authorization": f"Bearer {token}"} if token else {})}
    own |= infer_request.parse_headers(headers)
    status = target.status(key)
    with target.open_route(tagged(status, tag)) as route:
        gateway = Gateway(route.url, {each.lower(): text for each, text in route.headers.items()} | own)
        if {each.role for each in status.revisions} == {"router"}:
            infer_graph(gateway, key[1], kind, value, timeout, max_tokens)
        else:
            infer_model(gateway, key[1], model, kind, value, input_name, outputs, timeout, max_tokens)


def infer_model(
    gateway: Gateway, service: str, model: str, kind: str, value: Any, input_name: str, outputs: str, timeout: float,
    max_tokens: int | None = None,
) -> None:  # fmt: skip
    """Send one request to a model, by default that of the service, and print the response."""
    called, path, metadata_reply = model or service, *read_metadata(gateway, model or service, timeout)
    models = list_models(gateway, timeout) if metadata_reply.status == 404 else ()
    if len(models) == 1 and not model:  # a repository, whose model has a name of its own
        called, path, metadata_reply = models[0], *read_metadata(gateway, models[0], timeout)
    may_chat = kind == "text" and not (outputs or input_name)
    if may_chat and (chat := send_chat(gateway, called, value, metadata_reply, timeout, max_tokens)):
        show(parse_reply(chat, called, service=service), chat, cold_start_of(metadata_reply, chat))
        return
    metadata = parse_reply(metadata_reply, called, models)
    inputs, described = inputs_of(metadata), metadata.get("outputs", ())
    names = {each.name for each in inputs}
    takes_prompt = input_name in {"", TEXT_INPUT} and TEXT_INPUT in names
    prompt = infer_request.prompt_of(kind, value) if takes_prompt else None
    if prompt and (outputs or kind == "data") and not is_decoupled(gateway, path, timeout):
        prompt = None
    if prompt and outputs:
        hint = f"leave it out: platformctl infer {service} --text {shlex.quote(prompt[TEXT_INPUT])}"
        raise UsageError(f"{called} generates text: --outputs is for models with one response of tensors", hint)
    if prompt and max_tokens:
        prompt["max_tokens"] = max_tokens
    elif max_tokens:
        raise UsageError(f"{called} generates no text from this input: --max-tokens limits generated text")
    reply = send_prompt(gateway, path, prompt, timeout) if prompt else None
    if reply is None:
        request = infer_request.with_outputs(build_body(kind, value, inputs, input_name), outputs)
        reply = gateway.request("POST", f"{path}/infer", request.body, request.headers, timeout)
    repeated = prompt[TEXT_INPUT] if prompt and MESSAGES in names else ""
    show(parse_reply(reply, called, service=service), reply, cold_start_of(metadata_reply, reply), repeated, described)


def cold_start_of(first: HttpReply, last: HttpReply) -> str | None:
    """Return the milliseconds of a cold start by the gateway's header, else by the time of the first response."""
    known = first.headers.get(HEADER_COLD_START) or last.headers.get(HEADER_COLD_START)
    return known or (f"{1000 * first.seconds:.0f}" if first.seconds > SLOW_S else None)


def read_metadata(gateway: Gateway, model: str, timeout: float) -> tuple[str, HttpReply]:
    """Return the path of a model and the response with its metadata."""
    path = f"/v2/models/{quote(model, safe='')}"
    return path, gateway.request("GET", path, timeout=timeout)


def is_decoupled(gateway: Gateway, path: str, timeout: float) -> bool:
    """Whether a model may give several responses to a request, by its configuration; other servers have none."""
    reply = gateway.request("GET", f"{path}/config", timeout=timeout)
    try:
        return reply.status == 200 and json.loads(reply.body)["model_transaction_policy"]["decoupled"] is True
    except (ValueError, KeyError, TypeError):
        return False


def send_chat(
    gateway: Gateway, model: str, text: str, metadata: HttpReply, timeout: float, max_tokens: int | None
) -> HttpReply | None:
    """Send a text as a chat, which applies the model's template; None if it has none, or takes no chat.

    A server without V2, and so without metadata, may be an engine. Without `max_tokens` the response is limited too,
    unless the context of the model is shorter than that.
    """
    inputs = inputs_of(parse_reply(metadata, model)) if metadata.status == 200 else []
    if not (metadata.status == 404 or MESSAGES in {each.name for each in inputs}):
        return None
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    for limit in [max_tokens] if max_tokens else [CHAT_TOKENS, None]:
        limited = json.dumps({**body, "max_tokens": limit} if limit else body).encode()
        headers = {"Content-Type": "application/json"}
        reply = gateway.request("POST", "/v1/chat/completions", limited, headers, timeout)
        if reply.status != 400 or b"max_tokens" not in reply.body:
            break
    no_template = reply.status == 400 and TASK_NOT_SUPPORTED.encode() in reply.body
    return None if reply.status in {404, 405} or no_template else reply


def send_prompt(gateway: Gateway, path: str, prompt: Mapping[str, Any], timeout: float) -> HttpReply | None:
    """Send a prompt with its parameters by `generate`; None if the server has none.

    A text model is decoupled: V2 has no HTTP response for it, and the 501 would count as an error of the service.
    """
    headers = {"Content-Type": "application/json"}
    reply = gateway.request("POST", f"{path}/generate", json.dumps(prompt).encode(), headers, timeout)
    return reply if reply.status != 404 else None


def infer_graph(
    gateway: Gateway, name: str, kind: str, value: Any, timeout: float, max_tokens: int | None = None
) -> None:
    """Send a whole request to an InferenceGraph, which has no model, and so no metadata, of its own."""
    if kind != "data" or not isinstance(value, dict):
        hint = "a whole request as its services take it: --data '{\"inputs\": …}' or '{\"instances\": …}'"
        raise UsageError(f"{name} is an InferenceGraph, which has no inputs of its own", hint)
    if max_tokens:
        message = f"{name} is an InferenceGraph, which takes a whole request: --max-tokens is for one model"
        raise UsageError(message, "write the limit into the request as its services take it")
    headers = {"Content-Type": "application/json"}
    reply = gateway.request("POST", "/", json.dumps(value).encode(), headers, timeout)
    show(parse_reply(reply, name), reply, reply.headers.get(HEADER_COLD_START))


def tagged(status: "ServiceStatus", tag: str) -> "ServiceStatus":
    """Return the status with the URL of the tagged revision, if the target has URLs per tag."""
    addresses = {name: each.url for each in status.revisions if each.url for name in each.tags}
    if not tag or not any(each.url for each in status.revisions):
        return status
    if tag not in addresses:
        there = ", ".join(sorted(addresses)) or "none"
        raise NotFound(f"no revision of {status.name} has the tag {tag}; there are {there}", "platformctl status NAME")
    return replace(status, url=addresses[tag])


def read_source(kind: str, value: Any) -> tuple[str, Any]:
    """Return an input option with its JSON decoded: that of stdin and of a .json file as `data`."""
    if kind == "file" and value.suffix == ".json":
        return "data", _parsed(value.read_text())
    return kind, _parsed(sys.stdin.read() if value == "-" else value) if kind == "data" else value


def build_body(kind: str, value: Any, inputs: list[InputSpec], input_name: str) -> infer_request.InferRequest:
    """Build the request from the one input option that was given."""
    if kind == "data" or (kind == "text" and not inputs):
        return infer_request.from_json(value, inputs, input_name)
    if kind == "file" and value.suffix in TABLES and (rows := infer_request.csv_rows(value, inputs)) is not None:
        return infer_request.from_json(rows, inputs, input_name)
    spec = infer_request.select_input(inputs, input_name)
    if kind == "file" and value.suffix == ".txt" and spec.datatype != "BYTES":
        hint = (
            "give a table with --file values.csv, JSON with --data '[1, 2]' or --file values.json, or --file values.npy"
        )
        raise UsageError(f"{value} is text, and input '{spec.name}' takes {spec.datatype}", hint)
    if kind == "file" and value.suffix == ".npy":
        return infer_request.encode([infer_request.npy_tensor(spec, value)])
    if kind == "image":
        tensor = infer_request.image_tensor(spec, value)
        if spec.datatype != "BYTES" and not infer_request.image_layout(spec)[2]:
            size = " x ".join(map(str, tensor.shape[-3:]))
            output.note(f"sent as {size}: input '{spec.name}' takes any height and width")
        return infer_request.encode([tensor])
    if kind == "text":
        return infer_request.encode([infer_request.text_tensor(spec, value)])
    return infer_request.encode([infer_request.raw_tensor(spec, value.read_bytes())])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        file = f"a file with --file {text[1:]}, " if text.startswith("@") else ""
        raise UsageError(f"the data is no JSON: {error}", f"{file}text is given with --text") from None


def list_models(gateway: Gateway, timeout: float) -> list[str]:
    """Return the names of the service's models; empty if it does not list them."""
    reply = gateway.request("GET", "/v2/models", timeout=timeout)
    try:
        return list(json.loads(reply.body)["models"]) if reply.status == 200 else []
    except (ValueError, KeyError, TypeError):
        return []


def parse_reply(reply: HttpReply, model: str, there: Sequence[str] = (), service: str = "") -> dict[str, Any]:
    """Return the response document. Raises NotFound or PlatformError with the service's error message."""
    try:
        document = json.loads(reply.body)
    except ValueError:
        document = {"error": reply.body[:200].decode(errors="replace")}
    if reply.status == 200 and isinstance(document, dict):
        return document
    said = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(document, dict) and "cause" in document:  # of an InferenceGraph
        said = f"{said}: {document['cause']}"
    said = said or "an empty response, from an ingress without this service"
    if reply.status == 404:
        raise NotFound(f"{model}: {said}", f"--model names the model; there are {', '.join(there)}" if there else "")
    hint = "pass its token: --token TOKEN, or the variable PILOTLIGHT_TOKEN" if reply.status == 401 else ""
    if reply.status == 501 and service:
        hint = f"of a model that generates text: platformctl infer {service} --text TEXT"
    if reply.status == 500 and service:
        hint = f"the error of the model: platformctl logs {service}"
    raise PlatformError(f"the service responded {reply.status}: {said}", hint)


def show(answer: Any, reply: HttpReply, cold_start: str | None, repeated: str = "", described: Any = ()) -> None:
    """Print a table of the outputs, the text of a language model without the `repeated` prompt, or the document.

    `described` are the outputs in the model's metadata.
    """
    cold = f", after a cold start of {cold_start} ms" if cold_start else ""
    labels = {each["name"]: (each.get("parameters") or {}).get("labels") for each in described}
    rows = [("OUTPUT", "TYPE", "SHAPE", "VALUES")]
    for each in answer.get("outputs", ()):
        values = format_values(each.get("data", []), labels.get(each["name"]) or ())
        rows.append((each["name"], each["datatype"], str(each["shape"]).replace(" ", ""), values))
    cut = False
    try:
        text = answer["choices"][0]["message"]["content"]
        cut = answer["choices"][0].get("finish_reason") == "length"
    except (LookupError, TypeError):  # no chat
        text = answer.get(TEXT_OUTPUT)
    line = text.removeprefix(repeated) if isinstance(text, str) else json.dumps(answer, indent=2, ensure_ascii=False)
    output.data(answer, output.columns(rows, indent="") if "outputs" in answer else [line])
    output.note(f"response in {1000 * reply.seconds:.1f} ms{cold}")
    if cut:
        output.note("the text ends at its limit of tokens; raise it: --max-tokens N")


def format_values(data: list[Any], labels: Sequence[str]) -> str:
    """Return the first values, floats with six significant digits, those of classes behind their labels."""
    shown = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in flatten(data)]
    if labels and not len(shown) % len(labels):
        shown = [f"{label}={each}" for label, each in zip(cycle(labels), shown, strict=False)]
    return " ".join(shown[:SHOWN]) + (f" … ({len(shown)} in all)" if len(shown) > SHOWN else "")
