"""Classifies pictures, or rows of numbers, as the image client of the TensorRT Inference Server did.

    python examples/clients/trtis_image_client.py -m iris -c 2 examples/iris/flowers.csv
    python examples/clients/trtis_image_client.py -m resnet50 -s INCEPTION cat.jpg dog.jpg

The server says what the model takes (/api/status). A picture is scaled to it, which needs Pillow; anything else is read
as lines of comma-separated numbers. All of a file's rows go as one batch.
"""

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np

DIRECT = build_opener(ProxyHandler({}))  # the server is addressed directly, whatever proxy is set for the world outside
TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "UINT8": "<u1", "INT8": "<i1", "INT32": "<i4", "INT64": "<i8"}


class Model(NamedTuple):
    input: str
    dtype: Any
    dims: list[int]
    format: str
    output: str


def describe(url: str, name: str) -> Model:
    """The first input and the first output of the model, from the text of its status."""
    text = ask(Request(f"{url}/api/status/{name}")).decode()
    fields = {}
    for side in ("input", "output"):
        block = re.search(rf"^ +{side} {{\n(.*?)^ +}}", text, re.MULTILINE | re.DOTALL)
        if block is None:
            raise SystemExit(f"the server does not say what {side}s '{name}' has")
        fields[side] = re.findall(r'(\w+): "?([^"\n]*)', block[1])
    told = dict(fields["input"])
    dims = [int(value) for key, value in fields["input"] if key == "dims"]
    dtype = TYPES[told["data_type"].removeprefix("TYPE_")]
    return Model(told["name"], dtype, dims, told.get("format", ""), dict(fields["output"])["name"])


def rows_of(file: Path, model: Model, scaling: str) -> Any:
    if len(model.dims) == 3:
        return picture(file, model, scaling)[None]
    return np.loadtxt(file, delimiter=",", ndmin=2).astype(model.dtype).reshape(-1, *model.dims)


def picture(file: Path, model: Model, scaling: str) -> Any:
    from PIL import Image

    last = model.format == "FORMAT_NHWC" or (not model.format and model.dims[2] in (1, 3))
    height, width, channels = model.dims if last else (model.dims[1], model.dims[2], model.dims[0])
    image = Image.open(file).convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, "<f4").reshape(height, width, channels)
    if scaling == "INCEPTION":
        pixels = pixels / 127.5 - 1
    elif scaling == "VGG":
        pixels = pixels - ((128,) if channels == 1 else (123, 117, 104))
    return (pixels if last else pixels.transpose(2, 0, 1)).astype(model.dtype)


def classify(url: str, name: str, model: Model, rows: Any, count: int) -> list[list[tuple[str, float, str]]]:
    """For each row its best classes: number, score and label."""
    size = rows[0].nbytes
    header = (
        f'batch_size: {len(rows)} input {{ name: "{model.input}" byte_size: {size} }} '
        f'output {{ name: "{model.output}" cls {{ count: {count} }} }}'
    )
    text = ask(Request(f"{url}/api/infer/{name}", rows.tobytes(), {"NV-InferRequest": header})).decode()
    return [
        [_class(found) for found in re.findall(r"cls {(.*?)}", row, re.DOTALL)] for row in text.split("classes {")[1:]
    ]


def _class(text: str) -> tuple[str, float, str]:
    fields = dict(re.findall(r'(\w+): "?([^"\n]*)', text))  # what is 0 or empty is left out
    return fields.get("idx", "0"), float(fields.get("value", 0)), fields.get("label", "")


def ask(request: Request) -> bytes:
    try:
        with DIRECT.open(request, timeout=60) as response:
            return bytes(response.read())
    except HTTPError as error:
        raise SystemExit(f"{error.code}: {error.headers.get('NV-Status', error.reason)}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-u", "--url", default="http://127.0.0.1:8080")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-c", "--classes", type=int, default=1)
    parser.add_argument("-s", "--scaling", choices=("NONE", "INCEPTION", "VGG"), default="NONE")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    arguments = parser.parse_args()
    model = describe(arguments.url, arguments.model)
    for file in arguments.files:
        rows = rows_of(file, model, arguments.scaling)
        for best in classify(arguments.url, arguments.model, model, rows, arguments.classes):
            print(f"{file.name}: " + ", ".join(f"{index} ({label}) = {value:.6f}" for index, value, label in best))


if __name__ == "__main__":
    main()
