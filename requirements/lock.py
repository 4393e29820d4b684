"""Writes the lock files beside it: `make lock` keeps the pins that still hold, `make lock UPGRADE=1` renews them all.

A lock names versions and hashes but no index, so that it installs from any mirror. Each holds for every platform and
for every Python that the project supports. `test` comes first and binds `build` and
`run`: one environment may be filled from all of them, in any order, and stays as it is.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OPTIONS = (
    "--universal", "--python-version=3.11", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
    "--no-emit-find-links", "--quiet",
)  # fmt: skip


class Lock(NamedTuple):
    """`source` is pyproject.toml with `extras`, or the .in file of the same name."""

    name: str
    extras: tuple[str, ...] = ()
    constraint: str = ""
    dependencies: bool = True

    @property
    def source(self) -> str:
        return "pyproject.toml" if self.extras else f"requirements/{self.name}.in"

    @property
    def target(self) -> str:
        return f"requirements/{self.name}.txt"


TABLES = ("sklearn", "xgboost", "lightgbm", "mlflow")
LOCKS = (
    Lock("uv"),
    Lock("test", extras=("onnx", "torch", "text", *TABLES, "catboost", "kserve", "cloud", "otel", "dev")),
    Lock("build", constraint="test"),
    Lock("run", extras=("onnx",), constraint="test"),
    Lock("image-cpu", extras=("onnx", "cloud", "grpc", "auth"), constraint="test"),
    Lock("image-cuda", extras=("cuda", "cloud", "grpc", "auth"), constraint="test"),
    Lock("image-torch", extras=("onnx", "torch", "cloud", "grpc", "auth"), constraint="test"),
    Lock("image-text", extras=("onnx", "text", "cloud", "grpc", "auth"), constraint="test"),
    Lock("image-sklearn", extras=("onnx", *TABLES, "cloud", "grpc", "auth"), constraint="test"),
    Lock("image-platform", extras=("cloud", "auth", "controller", "media", "prometheus"), constraint="test"),
    Lock("models", dependencies=False),
    Lock("checkov"),
    Lock("cluster"),
    Lock("bench-kserve"),
    Lock("bench-mlserver"),
    Lock("bench-triton"),
)


def command(uv: Path, lock: Lock, upgrade: bool) -> list[str]:
    words = [str(uv), "pip", "compile", lock.source, f"--output-file={lock.target}", *OPTIONS]
    words += [f"--extra={extra}" for extra in lock.extras]
    words += [f"--constraint=requirements/{lock.constraint}.txt"] if lock.constraint else []
    words += [] if lock.dependencies else ["--no-deps"]
    return words + (["--upgrade"] if upgrade else [])


def main(arguments: list[str]) -> int:
    upgrade = "--upgrade" in arguments
    wanted = [word for word in arguments if not word.startswith("-")]
    unknown = set(wanted) - {lock.name for lock in LOCKS}
    if unknown:
        sys.stderr.write(f"no lock named {', '.join(sorted(unknown))}; there are {', '.join(x.name for x in LOCKS)}\n")
        return 2
    for lock in LOCKS:
        if not wanted or lock.name in wanted:
            sys.stderr.write(f"locking {lock.target}\n")
            words = command(Path(sys.executable).parent / "uv", lock, upgrade)
            subprocess.run(words, cwd=ROOT, check=True)  # noqa: S603 - made of the table above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
