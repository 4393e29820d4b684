"""Send a case to a server and return the outcome: status, error and, where the case compares it, the body."""

import base64
import json
import time
from collections.abc import Iterator, Mapping
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from tests.differential.grpc_client import SERVICE
from tests.differential.http_client import ask_http
from tests.triton_compatibility.http2_client import play_http2
from tests.triton_compatibility.servers import edit

FOLDER: Final = Path(__file__).parent
REGION: Final = "compat_shm"
COMPRESSION: Final = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate, "none": None}
MEANWHILE_S: Final = 0.4  # until the calls of `meanwhile` run, each of which takes a second
Case = Mapping[str, Any]
Outcome = dict[str, Any]


class Address(NamedTuple):
    repository: Path
    http: int
    grpc: int
    metrics: int


def read_cases() -> list[Case]:
    return [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]


def key(case: Case) -> str:
    return f"{case['row']}: {case['name']}"


def outcomes(cases: list[Case], address: Address) -> Iterator[tuple[str, Outcome]]:
    """Send the cases of one server in order."""
    region = SharedMemory(REGION, create=True, size=4096)
    channel = grpc.insecure_channel(f"127.0.0.1:{address.grpc}")
    try:
        region.buf[:64] = bytes(64)
        for case in cases:
            if "edit" in case:
                edit(address.repository, *case["edit"])
            else:
                yield key(case), _play(case, address, channel)
    finally:
        channel.close()
        region.close()
        region.unlink()


def _play(case: Case, address: Address, channel: grpc.Channel) -> Outcome:
    """Play a case, while the calls of `meanwhile` run: method, fields and their number."""
    name, fields, copies = case.get("meanwhile", ("ModelInfer", {}, 0))
    request, answer, path = _message(name, fields)
    infer = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
    running = [infer.future(request) for _ in range(copies)]
    if running:
        time.sleep(MEANWHILE_S)
    if "trace" in case:
        outcome = {"status": "OK", "body": _read_trace(address.repository.parent / case["trace"])}
    elif "http2" in case:
        outcome = play_http2(case["http2"], address.grpc)
    else:
        outcome = _http(case, address) if "http" in case else _grpc(case, channel)
    for future in running:
        future.result(30)
    return outcome


def _read_trace(file: Path) -> dict[str, Any]:
    """Return a trace once it is written: its head, names of timestamps but those of the frontend, and tensors."""
    deadline = time.monotonic() + 10
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)  # of a server that writes in several steps
    events = json.loads(file.read_text())
    heads = [event for event in events if "model_name" in event]
    names = {stamp["name"] for event in events for stamp in event.get("timestamps", ())}
    return {
        "heads": [{key: value for key, value in head.items() if key != "id"} for head in heads],
        "one_id": len({event["id"] for event in events}) == 1,
        "timestamps": sorted(name for name in names if not name.startswith(("HTTP_", "GRPC_"))),
        "tensors": [[event["activity"], event["tensor"]] for event in events if "tensor" in event],
    }


def _message(name: str, fields: Mapping[str, Any]) -> tuple[Any, Any, str]:
    """Return the request of a method, the class of its responses and its path."""
    method = SERVICE.methods_by_name[name]
    request = ParseDict(fields, GetMessageClass(method.input_type)())
    return request, GetMessageClass(method.output_type), f"/{SERVICE.full_name}/{name}"


def _http(case: Case, address: Address) -> Outcome:
    method, path, body, headers = [*case["http"], b"", {}][:4] if len(case["http"]) != 3 else [*case["http"], {}]
    if isinstance(body, dict) and body.keys() == {"base64"}:
        body = base64.b64decode(body["base64"])
    body = body.encode() if isinstance(body, str) else body
    answer = ask_http(address.metrics if case.get("port") else address.http, method, path, body, headers)
    outcome: Outcome = {"status": answer.status}
    text = answer.body.decode("utf-8", "replace")
    if answer.status >= 400:
        try:
            document = json.loads(text)
            outcome["error"] = document["error"] if isinstance(document, dict) else text
        except (ValueError, KeyError):
            outcome["error"] = text
    elif case.get("body"):
        try:
            outcome["body"] = json.loads(text)
        except ValueError:
            outcome["body"] = text
    if isinstance(body := outcome.get("body", outcome.get("error")), str) and body.startswith("data: "):
        events = [json.loads(each.removeprefix("data: ")) for each in body.strip().split("\n\n")]
        outcome |= {"body": events} if answer.status < 400 else {"error": events[0]["error"]}
    if "shows" in case:
        outcome["shows"] = all(each in text for each in case["shows"])
    return outcome


def _grpc(case: Case, channel: grpc.Channel) -> Outcome:
    name, fields, metadata = [*case["grpc"], None][:3]
    request, answer, path = _message(name, fields)
    pairs = [(each, base64.b64decode(value) if each.endswith("-bin") else value) for each, value in metadata or ()]
    options = {"metadata": pairs, "timeout": case.get("deadline", 30)}
    options["compression"] = COMPRESSION.get(case.get("compression", "none"))
    coders = type(request).SerializeToString, answer.FromString
    try:
        if case.get("stream"):
            call = channel.stream_stream(path, *coders)(iter([request]), **options)
            if "cancel" in case:
                time.sleep(case["cancel"])
                call.cancel()
            replies = [MessageToDict(each, preserving_proto_field_name=True) for each in call]
            errors = [each["error_message"] for each in replies if "error_message" in each]
            outcome: Outcome = {"status": "OK", **({"error": errors[0]} if errors else {})}
            document: Any = replies
        elif "cancel" in case:
            future = channel.unary_unary(path, *coders).future(request, **options)
            time.sleep(case["cancel"])
            future.cancel()
            future.result()
            outcome = {"status": "OK"}
        else:
            reply = channel.unary_unary(path, *coders)(request, **options)
            outcome, document = {"status": "OK"}, MessageToDict(reply, preserving_proto_field_name=True)
    except grpc.FutureCancelledError:
        return {"status": "CANCELLED"}
    except grpc.RpcError as error:
        return {"status": error.code().name, "error": error.details()}
    return {**outcome, **({"body": document} if case.get("body") else {})}
