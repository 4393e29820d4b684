"""Writes the lock files beside it: `make lock` keeps the pins that still hold, `make lock UPGRADE=1` renews them all.

A lock names versions and hashes but no index, so that it installs from any mirror. Each holds for every platform and
for every Python that the project supports. `test` comes first and binds `build`,
`run` and `docs`: one environment may be filled from all of them, in any order, and stays as it is.
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
TEST = (
    "onnx", "torch", "text", "sklearn", "xgboost", "lightgbm", "catboost", "mlflow", "kserve", "cloud", "otel", "dev",
)  # fmt: skip
PREDICTOR = ("cloud", "grpc", "auth", "requirements")  # what manifests and models may ask for in every image


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


LOCKS = (
    Lock("uv"),
    Lock("test", extras=TEST),
    Lock("build", constraint="test"),
    Lock("run", extras=("onnx",), constraint="test"),
    Lock("image-cpu", extras=("onnx", *PREDICTOR), constraint="test"),
    Lock("image-cuda", extras=("cuda", *PREDICTOR), constraint="test"),
    Lock("image-torch", extras=("onnx", "torch", "mlflow", *PREDICTOR), constraint="test"),
    Lock("image-text", extras=("onnx", "torch", "text", "mlflow", *PREDICTOR), constraint="test"),
    Lock("image-sklearn", extras=("onnx", "sklearn", "xgboost", "lightgbm", "mlflow", *PREDICTOR), constraint="test"),
    Lock("image-platform", extras=("cloud", "auth", "controller", "media", "prometheus"), constraint="test"),
    Lock("docs", constraint="test"),
    Lock("models", dependencies=False),
    Lock("checkov"),
    Lock("cluster"),
    Lock("bench-kserve"),
    Lock("bench-mlserver"),
    Lock("bench-mlserver-huggingface"),
    Lock("bench-smollm2", dependencies=False),
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
