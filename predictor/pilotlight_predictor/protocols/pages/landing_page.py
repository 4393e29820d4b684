"""Landing page of a server: what it serves, and lines of curl and Python that call it. Pure; everything is escaped."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from pilotlight_predictor.core.tensors import NUMPY_TYPES, TensorSpec
from pilotlight_predictor.protocols.pages.model_description import ExampleTensor, ModelDescription
from pilotlight_predictor.protocols.pages.operations import (
    Operation,
    metadata_operation,
    model_operations,
    openai_operations,
)
from pilotlight_predictor.server.server_state import Readiness

STATIC: Final = files("pilotlight_predictor.protocols.pages") / "static"
MAX_MODELS: Final = 20  # with all their tensors; of more, the names
PLAIN_HOST: Final = re.compile(r"[\w.-]+(:\d{1,5})?|\[[\da-fA-F:.]+\](:\d{1,5})?", re.ASCII)
PLAIN_PREFIX: Final = re.compile(r"(/[\w.~@-]+)+", re.ASCII)
URL: Final = "\0"  # stands for the address until all else is escaped
OPENAI_CALLS: Final = frozenset({"chat.completions", "completions", "embeddings"})  # of the openai package
FROM_ENVIRONMENT: Final = 'os.environ["TOKEN"]'
REFRESH: Final = '<meta http-equiv="refresh" content="2">'


def address(headers: Mapping[str, str], tls: bool) -> str:
    """Return the server's address as the client knows it; the script completes it if a proxy hides its path."""
    host, prefix = headers.get("host", ""), headers.get("x-forwarded-prefix", "").rstrip("/")
    scheme = "https" if tls or headers.get("x-forwarded-proto") == "https" else "http"
    path = prefix if PLAIN_PREFIX.fullmatch(prefix) else ""
    return f"{scheme}://{host if PLAIN_HOST.fullmatch(host) else 'localhost'}{path}"


def landing_page(
    models: Sequence[ModelDescription], name: str, version: str, readiness: Readiness, url: str, *, token: bool
) -> str:
    """Return the page; it refreshes itself until the server is ready."""
    page, section = (Template((STATIC / each).read_text()) for each in ("landing.html", "model.html"))
    sections = [section.substitute(_model_texts(model, url, token)) for model in models[:MAX_MODELS]]
    if more := [escape(model.name) for model in models[MAX_MODELS:]]:
        sections.append(f"<section><h2>{len(more)} more</h2><p>{', '.join(more)}</p></section>")
    return page.substitute(
        name=escape(name), version=escape(version), state=escape(readiness.state), reason=escape(readiness.reason),
        refresh="" if readiness.ready else REFRESH, models="\n".join(sections),
        script=(STATIC / "landing.js").read_text(), style=(STATIC / "landing.css").read_text(),
    )  # fmt: skip


def _model_texts(model: ModelDescription, url: str, token: bool) -> dict[str, str]:
    operations = [*openai_operations([model]), *model_operations(model)]
    # Metadata, without a body, is the last resort.
    operation = next(each for each in operations if each.example is not None or each.body is None)
    shown = f'<span class="url">{escape(url)}</span>'
    return {
        "name": escape(model.name), "state": escape(model.state), "reason": escape(model.reason),
        "platform": escape(model.platform), "versions": escape(", ".join(model.versions)),
        "metadata": escape(metadata_operation(model).path.lstrip("/")),
        "tensors": "".join([_rows("input", model.inputs), _rows("output", model.outputs)]),
        "curl": escape(curl_lines(operation, token)).replace(URL, shown),
        "python": escape(python_lines(operation, model, token)).replace(URL, shown),
        "calls": "" if model.versions else "hidden",
    }  # fmt: skip


def _rows(kind: str, specs: Sequence[TensorSpec]) -> str:
    return "".join(
        f"<tr><td>{kind}{' (optional)' if spec.optional else ''}</td><td><code>{escape(spec.name)}</code></td>"
        f"<td>{spec.datatype}</td><td>{list(spec.shape)}</td></tr>\n"
        for spec in specs
    )


def curl_lines(operation: Operation, token: bool) -> str:
    """Return a command line for a POSIX shell; the address is `URL`."""
    start = f"curl '{URL}{operation.path}'" + (' -H "Authorization: Bearer $TOKEN"' if token else "")
    if operation.body is None:
        return start
    body = json.dumps(operation.example, ensure_ascii=False)
    if not operation.zero_bytes:
        return f"{start} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    head = f"{{ printf %s {shlex.quote(body)}; head -c {operation.zero_bytes} /dev/zero; }} |\n  "
    return f"{head}{start} \\\n  -H 'Inference-Header-Content-Length: {len(body.encode())}' --data-binary @-"


def python_lines(operation: Operation, model: ModelDescription, token: bool) -> str:
    """Return a program; the address is `URL`."""
    imports, credential = ("import os\n", FROM_ENVIRONMENT) if token else ("", "")
    if operation.name in OPENAI_CALLS:
        arguments = ", ".join(f"{key}={value!r}" for key, value in operation.example.items())
        client = f'OpenAI(base_url="{URL}/v1", api_key={credential or repr("none")})'
        call = f"print(client.{operation.name}.create({arguments}))"
        return f"{imports}from openai import OpenAI\n\nclient = {client}\n{call}"
    types = {tensor.datatype for tensor in model.example.values()}
    if operation.name == "infer" and "BF16" not in types and not model.sequence:
        inputs = "".join(f"    {name!r}: {_array(tensor)},\n" for name, tensor in model.example.items())
        client = f'pilotlight.Client("{URL}"{f", token={credential}" if token else ""})'
        call = f"inputs = {{\n{inputs}}}\nprint(dict(client.infer({model.name!r}, inputs)))"
        return f"{imports}import numpy as np\nimport pilotlight\n\nclient = {client}\n{call}"
    if operation.zero_bytes:
        operation = metadata_operation(model)
    data = "None" if operation.body is None else f"json.dumps({operation.example!r}).encode()"
    headers = f'{{"Authorization": "Bearer " + {credential}}}' if token else "{}"
    call = f'request = Request("{URL}{operation.path}", {data}, {headers})\nprint(urlopen(request).read().decode())'
    return f"import json\n{imports}from urllib.request import Request, urlopen\n\n{call}"


def _array(tensor: ExampleTensor) -> str:
    dtype = "object" if tensor.datatype == "BYTES" else repr(NUMPY_TYPES[tensor.datatype].name)
    if tensor.values is None:
        return f"np.zeros({list(tensor.shape)}, {dtype})"
    return f"np.array({tensor.values!r}, {dtype})"
