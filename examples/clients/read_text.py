"""Prints the text in pictures: python examples/clients/read_text.py [--url URL] PICTURE…"""

import argparse
from pathlib import Path

import v2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=v2.URL)
parser.add_argument("pictures", metavar="PICTURE", nargs="+", type=Path)
arguments = parser.parse_args()

for picture in arguments.pictures:
    outputs = v2.infer_bytes(arguments.url, "read_text", "image", [picture.read_bytes()], [1])
    for line, score in zip(outputs["text"]["data"], outputs["score"]["data"], strict=True):
        print(f"{score:.2f}  {line}")
