"""Pictures asked of a model of tensors by V2: metadata says what it takes, binary tensors carry it there and back."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pilotlight.microservices import results
from pilotlight.microservices.calling import AskingFailed, call, exchange
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media, MediaRefused
from pilotlight.microservices.media.images import pixels
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.media.tensors import DTYPES, Input, tensor
from pilotlight.microservices.media.videos import frames

Array = np.ndarray[Any, Any]
HEADER = "Inference-Header-Content-Length"


class Model:
    """One served model and how pictures are put to it."""

    def __init__(self, url: str, name: str, of: Schema, limits: Limits, timeout: float) -> None:
        self._url, self._path, self._of = url, f"/v2/models/{name}", of
        self._limits, self._timeout = limits, timeout
        told = json.loads(call(url, "GET", self._path, b"", timeout))
        self._input = _picture_input(told["inputs"])

    def predict(self, media: Sequence[Media], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One prediction for each medium; a video is one batch of its frames, told together."""
        if any(each.kind == "video" for each in media):
            return [
                self._video(each, values) if each.kind == "video" else self._ask([each], values)[0] for each in media
            ]
        return self._ask(media, values)

    def _ask(self, media: Sequence[Media], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self._input.datatype == "BYTES":
            array = np.array([each.data for each in media], dtype=object)
        else:
            array = tensor([self._pixels(at, each) for at, each in enumerate(media)], self._input, self._of.prepare)
        return self._predictions(array, values, len(media))

    def _video(self, media: Media, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            pictures = frames(media, self._limits)
        except Refusal as error:
            raise MediaRefused(error.told) from error
        told = [
            self._predictions(tensor([picture], self._input, self._of.prepare), values, 1)[0] for picture in pictures
        ]
        return {"frames": told}

    def _pixels(self, at: int, media: Media) -> Array:
        try:
            return pixels(media, self._limits)
        except Refusal as error:
            raise MediaRefused(error.told, at) from error

    def _predictions(self, array: Array, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        return results.predictions(self._of, self._infer(self._fitting(array)), values, count)

    def _fitting(self, array: Array) -> Array:
        """Encoded pictures, one to a place, in as many dimensions as the model wants."""
        if self._input.datatype == "BYTES":
            return array.reshape(-1, *[1] * (len(self._input.shape) - 1))
        return array

    def _infer(self, array: Array) -> dict[str, Array]:
        raw = _packed(array)
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": self._input.name,
                        "shape": list(array.shape),
                        "datatype": self._input.datatype,
                        "parameters": {"binary_data_size": len(raw)},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        sent = {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
        headers, content = exchange(self._url, "POST", self._path + "/infer", head + raw, self._timeout, sent)
        return unpacked(headers, content)


def _picture_input(inputs: Sequence[Mapping[str, Any]]) -> Input:
    """The one input that is needed."""
    needed = [each for each in inputs if not each.get("optional")]
    if len(needed) != 1:
        names = ", ".join(each["name"] for each in needed)
        raise AskingFailed(f"the model needs {len(needed)} inputs ({names}), and pictures can be put to one", 400)
    return Input(needed[0]["name"], needed[0]["datatype"], tuple(int(each) for each in needed[0]["shape"]))


def _packed(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(struct.pack("<I", len(each)) + each for each in array.flat)
    return array.tobytes()


def unpacked(headers: Mapping[str, str], content: bytes) -> dict[str, Array]:
    """Outputs by name, wherever each of them is: behind the JSON, or within it."""
    length = int(headers.get(HEADER.lower(), len(content)))
    found = {}
    at = length
    for each in json.loads(content[:length])["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            kind = object if each["datatype"] == "BYTES" else DTYPES[each["datatype"]]
            found[each["name"]] = np.array(each["data"], dtype=kind).reshape(each["shape"])
            continue
        found[each["name"]] = _read(content[at : at + size], each["datatype"]).reshape(each["shape"])
        at += size
    return found


def _read(raw: bytes, datatype: str) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, dtype=DTYPES[datatype])
    found = list[bytes]()
    at = 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    made = np.empty(len(found), dtype=object)
    made[:] = found
    return made
