"""Environment of the served model: this process is executed again in it if the model has requirements.

`python -m pilotlight_predictor environment PATH` builds the environment of the model, or of the requirements, at a path
into this installation; for images that bring it along.
"""

import os
import sys
from pathlib import Path

from pilotlight.wire.environments.requirements import RequirementsRefused, find
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log


def enter(model: str, cache_dir: str, processes: int = 1) -> None:
    """Execute this process in the environment of the model at a path; return if it has none, or is in it.

    Blocking while that is built. Raise LoadFailed if it cannot be, and in one of several workers, whose sockets would
    be lost.
    """
    try:
        requirements = find(model)
        if requirements is None:
            return
        from pilotlight.wire.environments import environment

        if environment.is_active(requirements):
            return
        if processes > 1:
            raise RequirementsRefused(
                f"{requirements.path} needs --workers 1 without --fronts", "or download the model and serve its path"
            )
        base = Path(cache_dir or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "environments" if cache_dir else base / "pilotlight" / "environments"
        # Of a volume for caches, whose file system a link of uv's cache into the environment stays in.
        cached = {"UV_CACHE_DIR": str(base / "uv")} if cache_dir else {}
        environ = {**cached, **os.environ}
        built = environment.ensure(requirements, folder, environ, lambda line: log("requirements", line))
    except RequirementsRefused as error:
        raise LoadFailed(f"{error}; {error.hint}" if error.hint else str(error)) from None
    except OSError as error:
        raise LoadFailed(f"the requirements of {model} cannot be installed: {error}") from error
    python = environment.python_of(built)
    log("requirements", f"executing {python}: the environment of {requirements.path}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, "-P", "-m", "pilotlight_predictor", *sys.argv[1:]])  # noqa: S606


def main(argv: list[str]) -> int:
    """Build the environment of one model into this installation; return the exit code."""
    from pilotlight.wire.environments import environment

    if len(argv) != 1 or argv[0].startswith("-"):
        sys.stderr.write("usage: python -m pilotlight_predictor environment PATH\n")
        return 2
    try:
        requirements = find(argv[0])
        if requirements is None:
            sys.stderr.write(f"{argv[0]}: no model.py with a requirements.txt or uv.lock beside it\n")
            return 1
        environment.BUILT_IN.mkdir(parents=True, exist_ok=True)  # open to the user of the image
        built = environment.ensure(
            requirements, environment.BUILT_IN, os.environ, lambda line: sys.stderr.write(f"{line}\n")
        )
    except (RequirementsRefused, OSError) as error:
        sys.stderr.write(f"{error}; {getattr(error, 'hint', '')}".removesuffix("; ") + "\n")
        return 1
    sys.stdout.write(f"{built}\n")
    return 0
