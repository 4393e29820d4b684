"""Says what kind of file each one is: python examples/clients/classify_file.py [--url URL] FILE…"""

import argparse
import os
from pathlib import Path

from pilotlight.client import Client

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080"))
parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
arguments = parser.parse_args()

client = Client(arguments.url)
for file in arguments.files:
    result = client.infer("file_type", [file.read_bytes()])
    print(f"{file}: {result.strings('label')[0]} ({result['score'].item():.1%})")
