"""Programs of engines on this machine, found without running them.

They are looked for in the folders of PILOTLIGHT_ENGINE_PATH, then in that of this interpreter and on PATH.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pilotlight.catalogue.engine_programs import ENV_ENGINE_PATH, PYTHON, Engine, Program, engines


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
