"""Engines that run as processes where their program is installed: vLLM, SGLang, llama.cpp; engine_programs.yaml.

The command of a container names the engine, or its image if it has no command. Installed programs are found without
running them: in the folders of PILOTLIGHT_ENGINE_PATH, then in that of this interpreter and on PATH.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
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


class Installed(NamedTuple):
    """Program of this machine for the command of a container. `argv` begins its command line."""

    argv: tuple[str, ...]
    program: Program
    translates: bool  # the program stands for another one, whose flags it does not have

    def arguments(self, args: Sequence[str]) -> list[str]:
        """Return the arguments as the program takes them."""
        if not self.translates:
            return list(args)
        renamed = [self.program.flags.get(word, word) for word in args if word not in self.program.switches]
        return [*self.program.args, *renamed]

    @property
    def paths(self) -> Mapping[str, str]:
        """Paths that answer as those of the program it stands for."""
        return self.program.paths if self.translates else {}


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


def installed_program(engine: Engine, command: Sequence[str], environ: Mapping[str, str]) -> Installed | None:
    """Return the program of this machine for a command of an engine; None: it is not installed."""
    for program in engine.programs:
        if tuple(command) in (program.command, program.stands_for) and (path := _find(program, environ)):
            return Installed((path, *program.command[1:]), program, tuple(command) != program.command)
    return None


def search_path(environ: Mapping[str, str]) -> str:
    """Return the search path for programs of engines, as PILOTLIGHT_ENGINE_PATH of another process."""
    return os.pathsep.join(str(folder) for folder in _folders(environ))


def installed_engines(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the engines of which this machine has a program."""
    return frozenset(each.name for each in engines() if any(_find(program, environ) for program in each.programs))


def missing_program(name: str) -> str:
    """Return the error for an engine that is not installed on this machine, with the fix."""
    (install,) = [engine.install for engine in engines() if engine.name == name]
    return (
        f"{name} is not installed on this machine; {install} (in an environment of its own: set {ENV_ENGINE_PATH} to "
        "its bin folder before platformctl up)"
    )


def _find(program: Program, environ: Mapping[str, str]) -> str:
    for folder in _folders(environ):
        names = (PYTHON, "python3") if program.distribution else program.command[:1]
        for name in names:
            path = folder / name
            if os.access(path, os.X_OK) and path.is_file() and (not program.distribution or _has(folder, program)):
                return str(path)
    return ""


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    own = environ.get(ENV_ENGINE_PATH, "").split(os.pathsep)
    for folder in (*own, str(Path(sys.executable).parent), *environ.get("PATH", os.defpath).split(os.pathsep)):
        if os.path.isabs(folder):
            yield Path(folder)


def _has(folder: Path, program: Program) -> bool:
    """Whether the interpreter of this folder has the distribution; that of Debian also has packages in /usr/local."""
    prefixes = (folder.parent, Path("/usr/local")) if folder == Path("/usr/bin") else (folder.parent,)
    pattern = f"lib/python3*/*-packages/{program.distribution}-*.dist-info"
    return any(next(prefix.glob(pattern), None) is not None for prefix in prefixes)
