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

from pilotlight.contract import ENV_DYNAMIC_ADAPTERS, is_predictor_image
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


class AdapterSupport(Struct, frozen=True, forbid_unknown_fields=True):
    """How an engine loads LoRA adapters, and how requests select one. Placeholders are in braces."""

    flag: str  # before the adapters
    value: str = "{name}={path}"  # of one adapter
    repeated: bool = False  # the flag stands before each adapter
    args: tuple[str, ...] = ()  # {count}: adapters in one batch; {rank}: the highest rank
    suffix: str = ""  # of an adapter that is a file; empty: it is a folder
    model: str = "{name}"  # of requests; {base}: name of the base model
    fields: str = ""  # added to the JSON of requests; {index}: of the adapter
    base_fields: str = ""  # likewise to those for the base model, without placeholders
    load: str = ""  # path of the API that loads one into a running engine; empty: only a new replica loads it
    unload: str = ""
    dynamic_args: tuple[str, ...] = ()  # to load adapters later
    env: dict[str, str] = {}  # likewise


class SleepCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A POST request to an engine."""

    path: str
    body: str = ""  # JSON


class SleepSupport(Struct, frozen=True, forbid_unknown_fields=True):
    """How an engine frees its GPU memory while it is idle. `args` and `env` turn that on."""

    sleep: SleepCall
    wake: tuple[SleepCall, ...]
    public: tuple[str, ...]  # prefixes of paths that clients may call; the others are for the platform alone
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    discard: SleepCall | None = None  # sleep without weights in host memory, and
    reload: tuple[SleepCall, ...] = ()  # wake with those from the files
    asleep: str = ""  # path of the state
    socket: str = ""  # flag of a unix socket to listen on instead of a port: only this user may call those endpoints


class Engine(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of engine_programs.yaml."""

    name: str
    image: str
    install: str
    programs: tuple[Program, ...]
    entrypoint: tuple[str, ...] = ()
    adapters: AdapterSupport | None = None
    sleep: SleepSupport | None = None


PREDICTOR_ADAPTERS: Final = AdapterSupport(
    "--adapter", repeated=True, load="/v1/load_lora_adapter", unload="/v1/unload_lora_adapter",
    env={ENV_DYNAMIC_ADAPTERS: "on"},
)  # fmt: skip


class EngineCommand(NamedTuple):
    """Engine of a container, the command that names it, and the arguments that follow."""

    engine: Engine
    command: tuple[str, ...]
    args: tuple[str, ...]

    @property
    def sleeps(self) -> SleepSupport | None:
        """How it sleeps, if its arguments turn that on; None: it does not."""
        support = self.engine.sleep
        return support if support is not None and {*support.args} <= {*self.args} else None


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


def adapter_support(container: Mapping[str, Any]) -> AdapterSupport | None:
    """Return how the engine of a container loads adapters; None: it does not, or is not known."""
    image = str(container.get("image") or "")
    if not image or is_predictor_image(image):
        return PREDICTOR_ADAPTERS
    name = container_engine(container)
    found = (each for each in engines() if each.name == name or (not name and each.name.lower() in image))
    return next((each.adapters for each in found), None)


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
