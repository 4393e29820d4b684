"""Routes of MLflow's scoring server, and of SageMaker's containers: POST /invocations and GET /ping, for one model.

A body is {"dataframe_split": …}, {"dataframe_records": […]}, {"instances": …} or {"inputs": …}, each with "params" if
the model has any, or text/csv with a line of names; the response is {"predictions": …}. Frames become V1's columns.
"""

import csv
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import msgspec

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import NEWEST, InferResponse
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response, valid_text
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.protocols.plain_predict.routes import default_model, ready
from pilotlight_predictor.protocols.run_inference import Finish, decode_and_run, run_inference
from pilotlight_predictor.protocols.v1_codec import (
    COLUMNS,
    ROWS,
    DecodedPredict,
    decode_predict,
    encode_predictions,
    read_document,
)
from pilotlight_predictor.server.handler_context import Server

FORMS: Final = ("dataframe_split", "dataframe_records", ROWS, COLUMNS)
EXAMPLE: Final = '{"dataframe_split": {"columns": […], "data": [[…]]}}'
_CODES: Final = {400: "BAD_REQUEST", 404: "RESOURCE_DOES_NOT_EXIST", 503: "TEMPORARILY_UNAVAILABLE"}


def error_body(error: PredictorError) -> HttpResponse:
    code = _CODES.get(error.status, "BAD_REQUEST" if error.status < 500 else "INTERNAL_ERROR")
    return json_response({"error_code": code, "message": valid_text(error)}, error.status)


def invocations(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    served = server.find(default_model(server), NEWEST)
    content_type = request.header("content-type").partition(";")[0].strip()
    arguments = (served.name, content_type, request.body, served.inputs, served.config.max_batch_size > 0)

    def run(decoded: DecodedPredict, finish: Finish) -> None:
        def encode(response: InferResponse) -> HttpResponse:
            return HttpResponse(200, encode_predictions(decoded, response))

        current = server.find(served.name, NEWEST)
        run_inference(server, request, current, decoded.request, PROTOCOL, encode, as_text=True, finish=finish)

    return decode_and_run(server, request, decode, arguments, run)


def decode(model: str, content_type: str, body: Buffer, specs: Sequence[TensorSpec], batched: bool) -> DecodedPredict:
    """Decode a body of any of the forms. Raises BadRequest."""
    if content_type == "text/csv":
        return _decode_frame(model, *_read_csv(body, specs), specs, batched)
    document = read_document(body, EXAMPLE)
    forms = [form for form in FORMS if form in document]
    if len(forms) != 1:
        raise BadRequest(f"the body has {' and '.join(forms) or 'no input'}, must have one of {', '.join(FORMS)}")
    params = document.get("params") or {}
    if not isinstance(params, dict):
        raise BadRequest('params must be an object: {"name": value}')
    form, content = forms[0], document[forms[0]]
    if form in {ROWS, COLUMNS}:
        decoded = decode_predict(model, NEWEST, {form: content}, specs, batched=batched)
    else:
        table = _read_split(content) if form == "dataframe_split" else _read_records(content)
        decoded = _decode_frame(model, *table, specs, batched)
    decoded.request.parameters = params
    return decoded._replace(by_rows=True)


def _decode_frame(
    model: str, names: Sequence[str], rows: Sequence[Sequence[Any]], specs: Sequence[TensorSpec], batched: bool
) -> DecodedPredict:
    """Decode a table: by column names; as a matrix if it has none, or for a model with one input of another name."""
    if not rows or any(len(row) != len(names) for row in rows):
        raise BadRequest(f"the table must have rows of {len(names)} values, at least one: {', '.join(names)}")
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    known = {name for spec in specs for name in (spec.name, *spec.columns)}
    unnamed = list(columns) == list(map(str, range(len(names))))
    if known and (unnamed or len(specs) == 1) and known.isdisjoint(columns):
        return decode_predict(model, NEWEST, {ROWS: list(map(list, rows))}, specs, batched=batched)
    return decode_predict(model, NEWEST, {COLUMNS: columns}, specs, batched=batched)


def _read_split(content: Any) -> tuple[list[str], list[list[Any]]]:
    try:
        table = msgspec.convert(content, dict[str, Any])
        rows = msgspec.convert(table["data"], list[list[Any]])
        names = table.get("columns") or range(len(rows[0]) if rows else 0)
        return [str(name) for name in names], rows
    except (msgspec.ValidationError, KeyError, TypeError):
        raise BadRequest(f"dataframe_split must have data, and may have columns: {EXAMPLE}") from None


def _read_records(content: Any) -> tuple[list[str], list[list[Any]]]:
    try:
        records = msgspec.convert(content, list[dict[str, Any]])
        names = list(records[0]) if records else []
        return names, [[record[name] for name in names] for record in records]
    except (msgspec.ValidationError, KeyError):
        raise BadRequest("dataframe_records must be a list of objects with the same names") from None


def _read_csv(body: Buffer, specs: Sequence[TensorSpec]) -> tuple[list[str], list[list[Any]]]:
    try:
        names, *rows = csv.reader(bytes(body).decode().splitlines())
    except (UnicodeDecodeError, ValueError, csv.Error):
        raise BadRequest("the body must be UTF-8 text with a line of names and lines of values (text/csv)") from None
    text = {spec.name for spec in specs if spec.datatype == "BYTES"}
    numeric = [name not in text for name in names]
    return names, [[_cell(value) if n else value for value, n in zip(row, numeric, strict=False)] for row in rows]


def _cell(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def ping(server: Server, request: HttpRequest) -> HttpResponse:
    response = ready(server, request)
    return HttpResponse(200, [b"\n"]) if response.status == 200 else response


_ROUTES: Final = (
    Route("POST", "/invocations", invocations, Action.INFER, hot=True),
    Route("GET", "/ping", ping, Action.HEALTH, hot=True),
)
PROTOCOL = ServingProtocol("invocations", _ROUTES, error_body)
