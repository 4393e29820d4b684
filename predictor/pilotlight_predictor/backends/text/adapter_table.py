"""LoRA adapters of one text model by name: loaded, replaced and unloaded while requests run.

A name leads to an identity, which is never used again. A request holds the identity it began with: an adapter that is
unloaded or replaced takes no new requests, and its weights are freed after its last one.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from threading import Lock

import msgspec

from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.backends.text.engine import TextEngine
from pilotlight_predictor.backends.text.lora_adapter import read_adapter
from pilotlight_predictor.backends.text.lora_layers import LoraLayers
from pilotlight_predictor.errors import BadRequest, LoadFailed, NotFound


class AdapterEntry(msgspec.Struct):
    identity: int
    path: str
    requests: int = 0
    removed: bool = False


class AdapterTable:
    """Adapters of one model. `load` and `unload` block until the engine's next step, so not for its own thread."""

    def __init__(self, model: str, layers: LoraLayers, engine: TextEngine) -> None:
        self._model, self._layers, self._engine = model, layers, engine
        self._identities = count(1)
        self._entries: dict[int, AdapterEntry] = {}
        self._names: dict[str, AdapterEntry] = {}
        self._lock, self._changing = Lock(), Lock()

    @property
    def paths(self) -> Mapping[str, str]:
        with self._lock:
            return {name: entry.path for name, entry in self._names.items()}

    def load(self, name: str, path: str, *, replace: bool = False) -> None:
        """Load an adapter, or replace it: requests get the old one or the new one. Raise LoadFailed or BadRequest."""
        with self._changing:
            if name in self._names and not replace:
                raise BadRequest(f"adapter '{name}' is already loaded: unload it first, or set load_inplace to true")
            adapter = read_adapter(name, Path(path), self._layers.shapes)
            entry = AdapterEntry(next(self._identities), path)
            try:
                self._engine.call(lambda: self._layers.add(entry.identity, adapter))
            except RuntimeError as error:  # torch's, as out of memory
                raise LoadFailed(f"adapter '{name}' cannot be loaded: {first_line(error)}") from error
            with self._lock:
                before = self._names.get(name)
                self._names[name] = self._entries[entry.identity] = entry
            if before is not None:
                self._retire(before)

    def unload(self, name: str) -> None:
        """Unload an adapter: requests in flight finish. Raise NotFound."""
        with self._changing:
            with self._lock:
                entry = self._names.pop(name, None)
            if entry is None:
                raise NotFound(f"adapter '{name}' of model '{self._model}' is not loaded")
            self._retire(entry)

    def acquire(self, name: str) -> int:
        """Return the identity of an adapter for a request, which `release` ends. Raise NotFound."""
        with self._lock:
            if (entry := self._names.get(name)) is None:
                raise NotFound(f"adapter '{name}' of model '{self._model}' is not loaded; GET /v1/models lists them")
            entry.requests += 1
            return entry.identity

    def release(self, identity: int) -> None:
        """End a request, in the engine's thread."""
        with self._lock:
            entry = self._entries[identity]
            entry.requests -= 1
            if entry.requests or not entry.removed:
                return
            del self._entries[identity]
        self._layers.remove(identity)

    def _retire(self, entry: AdapterEntry) -> None:
        """Free the weights of an adapter without a name: now, or with its last request."""
        with self._lock:
            entry.requests += 1  # of this call, which ends in the engine's thread
            entry.removed = True
        self._engine.call(lambda: self.release(entry.identity))
