"""Answers kept for requests that repeat: an LRU bounded by bytes. Off unless server and model both ask for it."""

from collections import OrderedDict
from hashlib import blake2b

from pilotlight_predictor.inference import InferRequest, Outputs
from pilotlight_predictor.protocol.raw import encode_raw


def cache_key(request: InferRequest, version: int) -> bytes:
    """Model, version and every input with its name, type, shape and bytes; the order of inputs does not matter."""
    digest = blake2b(f"{request.model}\0{version}".encode(), digest_size=16)
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        digest.update(f"\0{name}\0{tensor.datatype}{list(tensor.array.shape)}".encode())
        digest.update(encode_raw(tensor))
    return digest.digest()


class ResponseCache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._entries: OrderedDict[bytes, tuple[int, Outputs]] = OrderedDict()

    def get(self, key: bytes) -> Outputs | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: bytes, outputs: Outputs) -> None:
        size = sum(len(encode_raw(tensor)) for tensor in outputs.values()) + 64 * len(outputs)
        if size > self.capacity or key in self._entries:
            return
        self._entries[key] = (size, {n: t._replace(array=t.array.copy()) for n, t in outputs.items()})
        self.used += size
        while self.used > self.capacity:
            _, (freed, _) = self._entries.popitem(last=False)
            self.used -= freed
