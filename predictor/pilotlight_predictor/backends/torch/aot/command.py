"""`python -m pilotlight_predictor compile PATH`: compile a model into a package next to its weights; print its folder.

Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from pilotlight import contract
from pilotlight_predictor.config.command_parser import CommandParser
from pilotlight_predictor.errors import LoadFailed

PROGRAM = "python -m pilotlight_predictor compile"


def main(argv: list[str]) -> int:
    try:
        arguments = _parser(os.environ.get(contract.ENV_PROGRAM, PROGRAM)).parse_args(argv)
    except SystemExit as exit_:
        return int(exit_.code or 0)
    try:
        folder = _compile(arguments)
    except LoadFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"path": str(folder), "trust": ["--trust-compiled", str(folder)]}) + "\n")
    else:
        sys.stderr.write(f"serve it with --trust-compiled {folder}\n")
        sys.stdout.write(f"{folder}\n")
    return 0


def _compile(arguments: argparse.Namespace) -> Path:
    from pilotlight_predictor.backends.device_placement import default_device, gpu_count
    from pilotlight_predictor.backends.torch.aot.compile import CompileRequest, compile_model, parse_shapes

    path = Path(arguments.path).resolve()
    if not path.exists():
        raise LoadFailed(f"{arguments.path}: there is no such file or folder")
    if path.is_dir() and (path / "model.safetensors").is_file():
        path = path / "model.safetensors"
    device = default_device(arguments.device, gpu_count())
    sys.stderr.write(f"compiling {path.name} for {device}; this takes a minute or more\n")
    return compile_model(CompileRequest(path, device, arguments.largest_batch, parse_shapes(arguments.shape)))


def _parser(program: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=program, description="Compile a safetensors model with its model.py, to start it without torch."
    )
    parser.add_argument("path", metavar="PATH", help="model.safetensors, or the folder that it and model.py lie in")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; the target of the code")
    parser.add_argument("--largest-batch", type=int, default=64, metavar="N", help="rows in one request (default 64)")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1,77", help="an example's shape; may be repeated"
    )
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    return parser
