"""Operations of the V2 protocol: inference with arrays, metadata, readiness and the list of models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pilotlight.client.errors import ConnectionFailed, DeadlineExceeded, InvalidInput, ResponseError
from pilotlight.client.session import Call, Operation, Reply, Session, document_of, reading, response_error
from pilotlight.client.tensors import array_of, tensors_of
from pilotlight.v2_tensors import InputSpec, Tensor, decode_response, encode_pieces, inputs_of
from pilotlight.wire.http_client import decode_json

if TYPE_CHECKING:
    from pilotlight.client.tensors import Array, Inputs


class InferResult(Mapping[str, "Array"]):
    """Outputs of an inference by name, as numpy arrays.

    Arrays are views of the response and read-only. BYTES are objects of type `bytes`; `strings` decodes them.
    """

    __slots__ = ("_tensors", "cold_start_s", "id", "model_name", "model_version", "parameters")

    def __init__(self, document: Mapping[str, Any], tensors: Sequence[Tensor], cold_start_s: float = 0.0) -> None:
        self._tensors = {each.name: each for each in tensors}
        names = ("id", "model_name", "model_version")
        self.id, self.model_name, self.model_version = (str(document.get(name, "")) for name in names)
        self.parameters: dict[str, Any] = dict(document.get("parameters") or {})
        self.cold_start_s = cold_start_s  # how long the call waited for the service to start

    def __getitem__(self, name: str) -> "Array":
        tensor = self._tensors.get(name)
        if tensor is None:
            raise KeyError(f"{name}; the outputs are {', '.join(self._tensors)}")
        with reading(f"output '{name}'"):
            return array_of(tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def strings(self, name: str) -> list[str]:
        """Return the elements of a BYTES output as text, row by row."""
        return [each.decode() for each in self[name].ravel()]

    def __repr__(self) -> str:
        shown = (f"{name}: {each.datatype}{list(each.shape)} {self[name]}" for name, each in self._tensors.items())
        return f"InferResult({self.model_name}, {', '.join(shown)})"


def infer(
    session: Session, /, model: "str | Inputs", inputs: "Inputs | None" = None, *, outputs: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None, request_id: str = "", version: str = "", timeout: float | None = None,
) -> Operation[InferResult]:  # fmt: skip
    """Run a model on arrays: `infer(model, inputs)`, or `infer(inputs)` where the server has one model.

    `inputs` are arrays by name, or one array for a model with one input; a missing batch dimension is added. They are
    checked against the model's metadata, which is fetched once, and again when model and metadata disagree.
    `outputs` chooses outputs. `timeout` are seconds for the whole call, cold start and retries included.
    Raise InvalidInput before anything is sent, else ResponseError, ConnectionFailed, DeadlineExceeded.
    """
    if inputs is None:
        model, inputs = "", model
    call = session.call(timeout)
    name = str(model) or (yield from _only_model(session, call))
    fields: dict[str, Any] = {"id": request_id} if request_id else {}
    if outputs:
        fields["outputs"] = [{"name": each} for each in outputs]
    fields["parameters"] = {**({"binary_data_output": True} if session.binary else {}), **(parameters or {})}
    specs, fresh = session.inputs.get((name, version)), False
    while True:
        if specs is None:
            specs, fresh = (yield from _fetch_inputs(session, call, name, version)), True
        try:
            tensors = tensors_of(inputs, specs, name, binary=session.binary)
        except InvalidInput:
            if fresh:
                raise
            specs = None
            continue
        reply = yield from call.exchange("POST", f"{_path(name, version)}/infer", *encode_pieces(tensors, fields))
        if reply.status == 200 or fresh:
            return _result(reply, name, call)
        # A replaced model rejects what fitted the one before; a rejected request was not executed.
        before, specs = specs, None
        if reply.status == 400:
            specs, fresh = (yield from _fetch_inputs(session, call, name, version)), True
        if specs is None or specs == before:
            return _result(reply, name, call)


def _result(reply: Reply, name: str, call: Call) -> InferResult:
    if reply.status != 200:
        raise response_error(reply, f"model '{name}'")
    with reading(f"model '{name}'"):
        document, tensors = decode_response(reply.headers, reply.body)
        return InferResult(document, tensors, call.cold_start_s)


def metadata(
    session: Session, /, model: str = "", *, version: str = "", timeout: float | None = None
) -> Operation[dict[str, Any]]:
    """Return the model's metadata: its versions, and name, datatype and shape of its inputs and outputs."""
    call = session.call(timeout)
    name = model or (yield from _only_model(session, call))
    return (yield from _fetch_metadata(session, call, name, version))


def ready(session: Session, /, model: str = "", *, timeout: float | None = None) -> Operation[bool]:
    """Return whether the server, or one model of it, serves; False where nothing answers. A service at zero starts."""
    call = session.call(timeout)
    try:
        reply = yield from call.get(f"{_path(model)}/ready" if model else "/v2/health/ready")
    except (ConnectionFailed, DeadlineExceeded):
        return False
    return reply.status == 200


def models(session: Session, /, *, timeout: float | None = None) -> Operation[list[str]]:
    """Return the names of the server's models."""
    return (yield from _fetch_models(session.call(timeout)))


def _path(model: str, version: str = "") -> str:
    if model in (".", "..") or version in (".", ".."):
        raise InvalidInput(f"{model!r}, version {version!r}: not a model name, but a path")
    parts = ["/v2/models", model, *(["versions", version] if version else [])]
    return "/".join([parts[0], *(quote(part, safe="") for part in parts[1:])])


def _only_model(session: Session, call: Call) -> Operation[str]:
    """Return the server's only model, or the one that is called as the service in the URL. Raise InvalidInput."""
    if not session.model:
        names, service = (yield from _fetch_models(call)), session.path.rpartition("/")[2]
        if len(names) != 1 and service not in names:
            known = f"has the models {', '.join(names)}" if names else "names no model"
            raise InvalidInput(f"{session.url} {known}; name one: infer(model, inputs)")
        session.model = names[0] if len(names) == 1 else service
    return session.model


def _fetch_models(call: Call) -> Operation[list[str]]:
    """Return the names by the list of KServe and ours, by Triton's index, or by OpenAI's list."""
    reply = yield from call.get("/v2/models")
    if reply.status == 200:
        document = document_of(reply, "models")
        with reading("models"):
            return [str(each) for each in document.get("models", ())]
    for method, path, key in (("POST", "/v2/repository/index", "name"), ("GET", "/v1/models", "id")):
        other = yield from call.exchange(method, path, (b"{}",) if method == "POST" else ())
        if other.status == 200:
            with reading("models"):
                listed: Any = decode_json(other.body)
                return [str(each[key]) for each in (listed["data"] if key == "id" else listed)]
    raise response_error(reply, "models")


def _fetch_inputs(session: Session, call: Call, name: str, version: str) -> Operation[list[InputSpec]]:
    document = yield from _fetch_metadata(session, call, name, version)
    with reading(f"model '{name}'"):
        session.inputs[name, version] = inputs_of(document)
    return session.inputs[name, version]


def _fetch_metadata(session: Session, call: Call, name: str, version: str) -> Operation[dict[str, Any]]:
    reply = yield from call.get(_path(name, version))
    hint = ""
    if reply.status == 404:
        with suppress(ResponseError):
            hint = f"its models are {', '.join((yield from _fetch_models(call)))}"
    return document_of(reply, f"model '{name}'", hint)
