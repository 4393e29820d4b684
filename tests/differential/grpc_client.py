"""Asks one server by gRPC, with the messages of NVIDIA's own client, and gives the aspects of its answer."""

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from tests.differential.case import RpcCase
from tests.differential.http_client import Aspects, fields, kinds
from tritonclient.grpc import service_pb2

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class RpcAsking:
    """One channel to a server."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def close(self) -> None:
        self._channel.close()

    def aspects(self, case: RpcCase) -> Aspects:
        """The code, and the answer field by field or the sentence of the failure."""
        method = SERVICE.methods_by_name[case.method]
        request = GetMessageClass(method.input_type)(**case.request)
        answer = GetMessageClass(method.output_type)
        try:
            document = self._stream(case, request, answer) if case.stream else self._call(case, request, answer)
        except grpc.RpcError as error:
            return {"code": error.code().name, "error": error.details()}
        return {"code": "OK", **dict(fields("message", kinds(document) if case.kinds_only else document))}

    def _call(self, case: RpcCase, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(f"/{SERVICE.full_name}/{case.method}")
        return _document(answer.FromString(call(request.SerializeToString(), timeout=60, wait_for_ready=True)))

    def _stream(self, case: RpcCase, request: Any, answer: Any) -> list[Any]:
        call = self._channel.stream_stream(f"/{SERVICE.full_name}/{case.method}")
        replies = call(iter([request.SerializeToString()] * 2), timeout=60)
        return [_document(answer.FromString(reply)) for reply in replies]


def _document(message: Any) -> Mapping[str, Any]:
    return dict(MessageToDict(message, preserving_proto_field_name=True))
