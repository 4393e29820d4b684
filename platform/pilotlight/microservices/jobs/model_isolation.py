"""What a model of an org may do where it runs as a process of this machine: code in a sandbox, or no code at all.

A model that the operator registered is his own, unless the org can write to it. Containers of other platforms isolate
their models themselves; processes of Slurm do not, so no model of an org runs as one.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.registry.container_command import HUB
from pilotlight.microservices.registry.records import Isolation, JobRecord, StoredWorkspace
from pilotlight.targets.local.supervisor.isolation.model_copy import MAX_FILES, check_links

ENV_CODE: Final = "PILOTLIGHT_API_ALLOW_CODE"  # orgs whose models may run code, with commas between them
# Of Slurm's containers those that see no home of the user; apptainer and singularity mount it.
ISOLATING: Final = ("pyxis", "enroot")
CODE_FILES: Final = ("model.py", "saved_model.pb")
# Without these the predictor finds no code to run (--model-code=false); here they are found before it is started.
CODE_SUFFIXES: Final = (
    ".pt", ".pt2", ".pth", ".pkl", ".pickle", ".joblib", ".so", ".plan", ".engine", ".graphdef", ".netdef",
)  # fmt: skip


def org_isolation(org: str, platform: str, options: Mapping[str, str], environ: Mapping[str, str]) -> Isolation:
    """Return how models of the org run on a platform with such options."""
    if platform == "slurm" and options.get("container") not in ISOLATING:
        return "refused"
    if platform != "local":
        return "container"
    allowed = {name.strip() for name in environ.get(ENV_CODE, "").split(",")}
    return "sandbox" if org in allowed else "data"


def is_operators(record: JobRecord, workspace: StoredWorkspace | None, model: str, limits: Limits) -> bool:
    """Return whether the operator named the model of a job, and the org cannot change it."""
    base = workspace.storage.base if workspace else ""
    in_org_storage = workspace is not None and not workspace.by_operator and model.startswith(f"{base}/")
    if not record.by_operator or in_org_storage:
        return False
    real = Path(model).resolve() if model.startswith("/") else None
    return real is None or not any(real.is_relative_to(Path(root).resolve()) for root in limits.workspaces)


def check_name(org: str, model: str, isolation: Isolation) -> None:
    """Raise where no model of an org runs, and for one, or a file of it, that can have code where it may run none."""
    if isolation == "refused":
        raise UsageError(
            f"container is not {' or '.join(ISOLATING)}: the job of a model of org {org} would run as the operator",
            "the operator sets PILOTLIGHT_API_OPTION_CONTAINER, or registers the model",
        )
    name = model.rpartition("/")[2]
    if isolation == "data" and (model.startswith(HUB) or name in CODE_FILES or name.endswith(CODE_SUFFIXES)):
        raise UsageError(
            f"artifact: {model} can run code, which is not allowed for org {org} on this machine",
            f"use ONNX or safetensors in a workspace, or the operator allows it with {ENV_CODE}={org}",
        )


def check_model(org: str, model: str, isolation: Isolation) -> None:
    """Raise for a model with code where it may run none, and for links out of a model's folder. Blocking."""
    check_name(org, model, isolation)
    if isolation == "data" and model.startswith("/"):
        for file in islice(Path(model).rglob("*"), MAX_FILES):
            if not file.is_dir():
                check_name(org, str(file), isolation)
        check_links(Path(model))
