"""Command and environment of an isolated replica: a predictor whose model others can change or have written.

It is started from a private copy of its model, as a new process. With `data` it loads no code of its model and caches
models for its namespace; with `sandbox` it may, and runs in a sandbox, whose cache is the folder of its sockets.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from pilotlight import contract
from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import is_local, local_path
from pilotlight.targets.local import model_environments
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.isolation import sandbox
from pilotlight.targets.local.supervisor.isolation.cgroups import Limits
from pilotlight.targets.local.supervisor.isolation.model_copy import copy_model
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.wire.environments.environment import python_of
from pilotlight.wire.unix_socket import SCHEME

ENV_MODEL: Final = contract.ENV_MODEL_PATH
MODEL_FLAGS: Final = ("--model-path", "--model-dir")


def model_of(container: ContainerSpec) -> str:
    """Return path or URI of the model. Raise PlatformError unless exactly one is named."""
    named = container_command.split_flags(container.args, MODEL_FLAGS)[1] or [container.env.get(ENV_MODEL, "")]
    if len(named) != 1 or not named[0] or (is_local(named[0]) and not os.path.isabs(local_path(named[0]))):
        message = f"isolation = {container.isolation}, which needs one model, by an absolute path or a URI"
        raise PlatformError(message, f"set {ENV_MODEL}")
    return named[0]


def prepare(
    launch: Launch, env: Mapping[str, str], home: Home, limits: Limits, python: str
) -> tuple[list[str], dict[str, str]]:
    """Copy the model; return command and environment. Blocking. Raise PlatformError or OSError.

    The folder of its sockets belongs to the user of the sandbox. `limits` removes the sandbox's group at its end.
    """
    container, folder = launch.revision.container, home.copies / launch.replica
    model = source = model_of(container)
    sandboxed = container.isolation == "sandbox"
    if is_local(source):
        source = local_path(source)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        # Resolved: a sandbox follows no link to its model.
        model = str(copy_model(Path(source), folder.resolve(), sandboxed=sandboxed))
    if not sandboxed:
        args = (*container_command.split_flags(container.args, MODEL_FLAGS)[0], "--model-code=false")
        command = container_command.command(replace(container, args=args), python)
        # A store says itself what an object is, so a cache of all would give models of one org to another.
        cached = str(home.cache / "namespaces" / launch.revision.namespace)
        # Object stores read credentials of their own programs from the user's home.
        return [*command.argv], {**env, ENV_MODEL: model, contract.ENV_CACHE_DIR: cached, "HOME": str(home.cache)}
    cache = home.sockets / launch.replica
    environment = _environment(model, home)
    command = container_command.command(container, python_of(environment) if environment is not None else python)
    plan = sandbox.plan(launch.replica, cache.stat().st_uid, (model, source), command.argv, home, cache, os.environ)
    limits.detect()  # the sandbox makes a group of its own below them
    memory, cpus = container.memory_limit or plan.memory, container.cpu_limit or plan.cpus
    mounted = ((str(environment),) * 2,) if environment is not None else ()
    plan = structs.replace(
        plan, memory=min(plan.memory, memory), cpus=min(plan.cpus, cpus), read_only=(*plan.read_only, *mounted)
    )
    inside = dict.fromkeys(container_command.HOST_SETTINGS, f"{SCHEME}{sandbox.CACHE}")
    return sandbox.command(plan), {**env, **inside, contract.ENV_CACHE_DIR: sandbox.CACHE, "HOME": sandbox.CACHE}


def _environment(model: str, home: Home) -> Path | None:
    """Return the environment of a copied model, built from wheels alone: no code of the model runs outside its sandbox.

    No link is followed: it would show a file of this machine in a refusal.
    """
    requirements = model_environments.find(model, links=False) if model.startswith("/") else None
    return model_environments.ensure(requirements, home, lambda line: None).resolve() if requirements else None
