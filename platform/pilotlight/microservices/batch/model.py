"""Data types of a batch job, as they are stored and reported."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.microservices.model import Workspace

State = Literal["pending", "loading", "running", "done", "failed", "canceled"]
FINAL: Final = frozenset({"done", "failed", "canceled"})


class Batch(Struct, frozen=True):
    """One job. `inputs` and `outputs` are folders of the workspace, `labels` a file of it. It has no secrets."""

    id: str
    network_arch: str
    model_path: str
    workspace: Workspace
    inputs: str
    outputs: str
    parameters: Mapping[str, Any] = {}  # of every request, in addition to the file
    labels: str = ""  # score the results with it
    platform: str = "local"
    options: Mapping[str, str] = {}
    num_gpus: int = 1
    declared: str = ""  # text of the model's parameters.yaml


class Progress(Struct, frozen=True):
    """Progress of a job. `done`: files with a result; `failed`: with an error among them; `skipped`: no inputs."""

    job_id: str
    state: State
    total: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    message: str = ""
    started_at: str = ""
    updated_at: str = ""
    metrics: Mapping[str, Any] | None = None

    @property
    def percent(self) -> float:
        return 100.0 * self.done / self.total if self.total else (100.0 if self.state == "done" else 0.0)


class Outcome(Struct, frozen=True, omit_defaults=True):
    """Result of one file, in its own file and in results.jsonl. `job` is the id of the job that wrote it."""

    file: str
    status: Literal["completed", "error"]
    results: Mapping[str, Any] | None = None
    error: str = ""
    job: str = ""
