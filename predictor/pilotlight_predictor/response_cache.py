"""Answers kept for requests that repeat: an LRU bounded by bytes. Off unless server and model both ask for it."""

from collections import OrderedDict

from pilotlight_predictor.inference import InferRequest, Outputs, OutputsWithParameters, like
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.tensors import Tensor


def cache_key(request: InferRequest, loaded: int) -> bytes:
    """What was loaded, parameters, the outputs asked for (a model may compute those alone) and every input with its
    name, type, shape and bytes; order does not matter.

    `loaded` is a number of its own for every load of every version, so a reload never answers from before it.
    """
    from hashlib import blake2b  # a start needs no hashes

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
        self._entries[key] = (size, like(outputs, {name: _kept(tensor) for name, tensor in outputs.items()}))
        self.used += size
        while self.used > self.capacity:
            _, (freed, _) = self._entries.popitem(last=False)
            self.used -= freed


def _kept(tensor: Tensor) -> Tensor:
    """A copy that nobody can write into: whoever gets a kept answer shares it with all later askers."""
    array = tensor.array.copy()
    array.flags.writeable = False
    return Tensor(tensor.datatype, array)
