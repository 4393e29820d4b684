"""Response cache: LRU, bounded by bytes. Off unless both server and model enable it."""

from collections import OrderedDict

from pilotlight_predictor.core.requests import InferRequest, Outputs, OutputsWithParameters, with_tensors
from pilotlight_predictor.core.tensors import Tensor, encode_raw


def cache_key(request: InferRequest, loaded: int) -> bytes:
    """Hash of the request: parameters, requested outputs and every input, independent of their order.

    `loaded` is unique to each load of each version, so that a reload never serves responses from before it.
    """
    from hashlib import blake2b  # not needed at start

    outputs = sorted(output.name for output in request.outputs)
    digest = blake2b(f"{loaded}\0{sorted(request.parameters.items())}\0{outputs}".encode(), digest_size=16)
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
        if isinstance(outputs, OutputsWithParameters):
            size += sum(len(name) + len(str(value)) + 64 for name, value in outputs.parameters.items())
        if size > self.capacity or key in self._entries:
            return
        copies: Outputs = {}
        for name, (datatype, array) in outputs.items():
            copies[name] = Tensor(datatype, array.copy())
            copies[name].array.flags.writeable = False  # shared by all requests that hit it
        self._entries[key] = (size, with_tensors(outputs, copies))
        self.used += size
        while self.used > self.capacity:
            _, (freed, _) = self._entries.popitem(last=False)
            self.used -= freed
