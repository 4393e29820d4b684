"""Protobuf's own library as the judge: messages made from the published proto, and from what 0.11 changed of it."""

from functools import cache
from pathlib import Path
from typing import Any

from tests.serving import ROOT

PACKAGE = "nvidia.inferenceserver"
# From 0.11 on an input has dims, and a raw output is described by its dims and the bytes of the whole batch.
CHANGES = (
    ("uint64 byte_size = 2;  // of one row\n  }\n  message Output {\n    message Class {\n      uint32 count",
     "repeated int64 dims = 2;\n    uint64 batch_byte_size = 3;\n  }\n  message Output {\n    message Class {\n"
     "      uint32 count"),
    ("uint64 byte_size = 2;  // of one row\n    Class cls", "Class cls"),
    ("uint64 byte_size = 1;  // of one row", "repeated int64 dims = 1;\n      uint64 batch_byte_size = 2;"),
    ("uint32 model_version = 2;", "int64 model_version = 2;\n  uint64 id = 5;"),
    ("  string version = 2;\n  InferRequestHeader", "  int64 version = 2;\n  InferRequestHeader"),
)  # fmt: skip


@cache
def _pool(generation: str, folder: Path) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool
    from grpc_tools import protoc

    text = (ROOT / "protos" / "trtis.proto").read_text()
    for old, new in CHANGES if generation == "1.0" else ():
        assert old in text, old
        text = text.replace(old, new, 1)
    (folder / "trtis.proto").write_text(text)
    out = folder / f"{generation}.binpb"
    assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={out}", "trtis.proto"]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


class Judge:
    """Reads and writes the messages of one generation of clients."""

    def __init__(self, generation: str, folder: Path) -> None:
        self._pool = _pool(generation, folder)

    def new(self, name: str, **fields: Any) -> Any:
        from google.protobuf import message_factory

        found = self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
        return message_factory.GetMessageClass(found)(**fields)

    def text(self, name: str, text: str | bytes) -> Any:
        from google.protobuf import text_format

        return text_format.Parse(text, self.new(name))

    def binary(self, name: str, content: bytes) -> Any:
        message = self.new(name)
        assert message.ParseFromString(content) == len(content)
        return message
