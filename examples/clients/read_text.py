"""Prints the text in pictures: python examples/clients/read_text.py [--url URL] PICTURE…"""

import argparse
import os
from pathlib import Path

from pilotlight.client import Client

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080"))
parser.add_argument("pictures", metavar="PICTURE", nargs="+", type=Path)
arguments = parser.parse_args()

client = Client(arguments.url)
for picture in arguments.pictures:
    result = client.infer("read_text", [picture.read_bytes()])
    for line, score in zip(result.strings("text"), result["score"], strict=True):
        print(f"{score:.2f}  {line}")
