"""Says what kind of file each one is: python examples/clients/classify_file.py [--url URL] FILE…"""

import argparse
from pathlib import Path

import v2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=v2.URL)
parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
arguments = parser.parse_args()

for file in arguments.files:
    outputs = v2.infer_bytes(arguments.url, "file_type", "content", [file.read_bytes()], [1, 1])
    print(f"{file}: {outputs['label']['data'][0]} ({outputs['score']['data'][0]:.1%})")
