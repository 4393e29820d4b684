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
from tests.triton_compatibility.servers import edit

FOLDER: Final = Path(__file__).parent
REGION: Final = "compat_shm"
COMPRESSION: Final = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate, "none": None}
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
                yield key(case), _http(case, address) if "http" in case else _grpc(case, channel)
    finally:
        channel.close()
        region.close()
        region.unlink()


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
    method = SERVICE.methods_by_name[name]
    answer = GetMessageClass(method.output_type)
    request = ParseDict(fields, GetMessageClass(method.input_type)())
    pairs = [(each, base64.b64decode(value) if each.endswith("-bin") else value) for each, value in metadata or ()]
    path, options = f"/{SERVICE.full_name}/{name}", {"metadata": pairs, "timeout": case.get("deadline", 30)}
    options["compression"] = COMPRESSION.get(case.get("compression", "none"))
    coders = request.SerializeToString if False else type(request).SerializeToString, answer.FromString
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
