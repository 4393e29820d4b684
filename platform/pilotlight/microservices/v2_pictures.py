"""Inference with images on a tensor model by V2, with binary tensors as its metadata declares them."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pilotlight.microservices import results
from pilotlight.microservices.calling import InferenceFailed, call, exchange
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media, MediaRefused
from pilotlight.microservices.media.images import pixels
from pilotlight.microservices.media.refusals import MediaError
from pilotlight.microservices.media.tensors import DTYPES, Input, tensor
from pilotlight.microservices.media.videos import frames

Array = np.ndarray[Any, Any]
HEADER = "Inference-Header-Content-Length"


class ImageModel:
    """Client of one served model that takes images."""

    def __init__(self, url: str, name: str, schema: Schema, limits: Limits, timeout: float) -> None:
        self._url, self._path, self._schema = url, f"/v2/models/{name}", schema
        self._limits, self._timeout = limits, timeout
        metadata = json.loads(call(url, "GET", self._path, b"", timeout))
        self._input = _image_input(metadata["inputs"])

    def predict(self, media: Sequence[Media], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one prediction for each medium; a video's has one for each frame."""
        if any(each.kind == "video" for each in media):
            return [
                self._video(each, values) if each.kind == "video" else self._predict_images([each], values)[0]
                for each in media
            ]
        return self._predict_images(media, values)

    def _predict_images(self, media: Sequence[Media], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self._input.datatype == "BYTES":
            array = np.array([each.data for each in media], dtype=object)
        else:
            array = tensor(
                [self._pixels(index, each) for index, each in enumerate(media)], self._input, self._schema.prepare
            )
        return self._predictions(array, values, len(media))

    def _video(self, media: Media, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            images = frames(media, self._limits)
        except MediaError as error:
            raise MediaRefused(error.message) from error
        predictions = [
            self._predictions(tensor([image], self._input, self._schema.prepare), values, 1)[0] for image in images
        ]
        return {"frames": predictions}

    def _pixels(self, index: int, media: Media) -> Array:
        try:
            return pixels(media, self._limits)
        except MediaError as error:
            raise MediaRefused(error.message, index) from error

    def _predictions(self, array: Array, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        return results.predictions(self._schema, self._infer(self._reshape(array)), values, count)

    def _reshape(self, array: Array) -> Array:
        """Reshape encoded images to the model's number of dimensions."""
        if self._input.datatype == "BYTES":
            return array.reshape(-1, *[1] * (len(self._input.shape) - 1))
        return array

    def _infer(self, array: Array) -> dict[str, Array]:
        raw = _pack(array)
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
        request_headers = {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
        headers, content = exchange(
            self._url, "POST", self._path + "/infer", head + raw, self._timeout, request_headers
        )
        return unpack(headers, content)


def _image_input(inputs: Sequence[Mapping[str, Any]]) -> Input:
    """Return the only required input. Raise where there are several."""
    needed = [each for each in inputs if not each.get("optional")]
    if len(needed) != 1:
        names = ", ".join(each["name"] for each in needed)
        raise InferenceFailed(f"the model needs {len(needed)} inputs ({names}), and pictures can be put to one", 400)
    return Input(needed[0]["name"], needed[0]["datatype"], tuple(int(each) for each in needed[0]["shape"]))


def _pack(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(struct.pack("<I", len(each)) + each for each in array.flat)
    return array.tobytes()


def unpack(headers: Mapping[str, str], content: bytes) -> dict[str, Array]:
    """Return outputs by name, from the binary part or from the JSON."""
    length = int(headers.get(HEADER.lower(), len(content)))
    outputs = {}
    offset = length
    for each in json.loads(content[:length])["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            kind = object if each["datatype"] == "BYTES" else DTYPES[each["datatype"]]
            outputs[each["name"]] = np.array(each["data"], dtype=kind).reshape(each["shape"])
            continue
        outputs[each["name"]] = _read(content[offset : offset + size], each["datatype"]).reshape(each["shape"])
        offset += size
    return outputs


def _read(raw: bytes, datatype: str) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, dtype=DTYPES[datatype])
    values = list[bytes]()
    offset = 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        values.append(raw[offset + 4 : offset + 4 + length])
        offset += 4 + length
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
