"""POST …/infer, the hot path: decode, submit, encode, without a coroutine.

Requests of a known template are responded to together with their batch, others one by one (infer_response.py).
"""

from collections.abc import Awaitable
from functools import partial

from pilotlight.contract import HEADER_INFERENCE_LENGTH, HEADER_REQUEST_ID
from pilotlight_predictor.core.request_parameters import in_huge_request
from pilotlight_predictor.core.requests import NEWEST, InferRequest, size_of
from pilotlight_predictor.errors import BadRequest, Unsupported
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import HUGE, LONG, SHORT
from pilotlight_predictor.protocols.run_inference import await_response
from pilotlight_predictor.protocols.triton_requests import complete_parameters
from pilotlight_predictor.protocols.v2.infer_response import LENGTH, MAX_ID, Finish, batch_reply_for, respond
from pilotlight_predictor.protocols.v2.request_codec import decode_raw_request, decode_request
from pilotlight_predictor.protocols.v2.request_templates import TemplateCache
from pilotlight_predictor.server.handler_context import Server


def version_of(request: HttpRequest) -> int:
    text = request.params.get("version")
    if text is None:
        return NEWEST
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadRequest(f"version = '{text[:50]}', must be a number")
    return int(text)


def infer(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    params = request.params
    version = version_of(request) if "version" in params else NEWEST
    served = server.find(params["model"], version)
    if served.decoupled:
        raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
    if len(request.body) > SHORT and (served.reads_elements or _json_length(request) > LONG):
        return _infer_long(server, request, served, version)
    infer_request = _decode(server, served, request, version)
    batch_reply = None if request.sole_client or request.forwarded else batch_reply_for(server, served, infer_request)
    if batch_reply is not None:
        batch_reply.submit(request, infer_request)
    else:
        _infer(server, request, served, infer_request, request.finish)
    return None


def _header_length(request: HttpRequest) -> int | None:
    """Return the length of the JSON, 0 for a raw request; None if all of the body is JSON."""
    length = request.headers.get(HEADER_INFERENCE_LENGTH)
    if length is None:
        return None
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise BadRequest(f"{LENGTH} = '{length[:50]}', must be the number of bytes of the JSON")
    return int(length)


def _json_length(request: HttpRequest) -> int:
    length = _header_length(request)
    return len(request.body) if length is None else length


async def _infer_long(server: Server, request: HttpRequest, served: ModelVersion, version: int) -> HttpResponse:
    """Decode a large body off the event loop; in the meantime the client may disconnect and the model be replaced."""
    if HUGE < _json_length(request) <= len(request.body):
        infer_request = await server.codecs.run_in_process(
            decode_request, served.name, version, request.body, _header_length(request), in_huge_request, None,
            served.check_input,
        )  # fmt: skip
    else:
        infer_request = await server.codecs.run(lambda: _decode(server, served, request, version))
    # What exceeds this lies in shared memory: JSON has at least 2 bytes a number.
    with server.hold(min(size_of(infer_request.inputs), 4 * len(request.body))):
        return await await_response(
            request, lambda finish: _infer(server, request, server.find(served.name, version), infer_request, finish)
        )


def _infer(
    server: Server, request: HttpRequest, served: ModelVersion, infer_request: InferRequest, finish: Finish
) -> None:
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID) or infer_request.id[:MAX_ID]
    complete_parameters(infer_request, request)
    done = partial(respond, server, request, served, infer_request, finish)
    server.metrics.in_flight += 1
    try:
        # The only request in flight gains nothing by a loop iteration in which others could join the batch.
        result = served.infer_inline(infer_request, server.limits) if request.sole_client else None
        if result is None:
            request.on_abandon = served.infer(infer_request, done, server.limits).cancel
    except Exception:
        server.metrics.in_flight -= 1
        raise
    if result is not None:
        done(result)


def _decode(server: Server, served: ModelVersion, request: HttpRequest, version: int) -> InferRequest:
    body = request.body
    if HEADER_INFERENCE_LENGTH not in request.headers:
        templates = served.templates
        if templates is None:
            templates = served.templates = TemplateCache()
        known: InferRequest | None = templates.read(served.name, version, body)
        return known or decode_request(
            served.name, version, body, None, server.shared_memory.find, templates,
            served.check_input if len(body) > SHORT else None,
        )  # fmt: skip
    length = _header_length(request)
    if length:
        check = served.check_input if len(body) > SHORT else None
        return decode_request(served.name, version, body, length, server.shared_memory.find, check=check)
    if len(served.inputs) != 1:
        raise BadRequest(f"a raw request needs a model with one input; '{served.name}' has {len(served.inputs)}")
    spec = served.inputs[0]
    if served.config.max_batch_size:
        spec = spec._replace(shape=spec.shape[1:])
    return decode_raw_request(served.name, version, body, spec)
