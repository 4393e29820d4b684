"""Engines that run as processes where their program is installed: vLLM, SGLang, llama.cpp; engine_programs.yaml.

The command of a container names the engine, or its image if it has no command. Which of them this machine has:
targets/local/installed_engines.py.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct, yaml

from pilotlight.spec.service import Runtime

ENV_ENGINE_PATH: Final = "PILOTLIGHT_ENGINE_PATH"
PYTHON: Final = "python"
_PYTHON: Final = re.compile(r"python[\d.]*")


class Program(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of `programs`."""

    command: tuple[str, ...]
    distribution: str = ""
    stands_for: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    flags: dict[str, str] = {}
    switches: tuple[str, ...] = ()
    paths: dict[str, str] = {}


class Engine(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of engine_programs.yaml."""

    name: str
    image: str
    install: str
    programs: tuple[Program, ...]
    entrypoint: tuple[str, ...] = ()


class EngineCommand(NamedTuple):
    """Engine of a container, the command that names it, and the arguments that follow."""

    engine: Engine
    command: tuple[str, ...]
    args: tuple[str, ...]


@cache
def engines() -> tuple[Engine, ...]:
    return yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=tuple[Engine, ...])


def engine_command(image: str, command: Sequence[str], args: Sequence[str] = ()) -> EngineCommand | None:
    """Return the engine of a container; None: it is another program, such as a shell."""
    for engine in engines():
        is_image = re.fullmatch(rf"(?:.+/)?{re.escape(engine.image)}(?:[:@].*)?", image)
        words = tuple(command) or (engine.entrypoint if is_image else ())
        first = words[0].rpartition("/")[2] if words else ""
        words = (PYTHON if _PYTHON.fullmatch(first) else first, *words[1:], *args)
        for program in engine.programs:
            length = len(program.command)
            if words[:length] == program.command:
                return EngineCommand(engine, program.command, words[length:])
    return None


def container_engine(container: Mapping[str, Any]) -> str:
    """Return the name of the engine that a container of a manifest runs; empty: none of them."""
    image, command, args = (container.get(field) or () for field in ("image", "command", "args"))
    named = engine_command(image or "", command, args)
    return named.engine.name if named is not None else ""


def engine_of(runtime: Runtime) -> str:
    """Return the name of the engine that a runtime runs; empty: none of them."""
    return container_engine(runtime.engine.get("runner") or next(iter(runtime.pod.get("containers", ())), {}))


def missing_program(name: str) -> str:
    """Return the error for an engine that is not installed on this machine, with the fix."""
    (install,) = [engine.install for engine in engines() if engine.name == name]
    return (
        f"{name} is not installed on this machine; {install} (in its own environment: set {ENV_ENGINE_PATH} to "
        "its bin folder before platformctl up)"
    )
