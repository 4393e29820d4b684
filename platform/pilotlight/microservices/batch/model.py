"""What a one-time job over a folder is, and how far it is. Values only, as they are kept and told."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.microservices.model import Workspace

State = Literal["pending", "loading", "running", "done", "failed", "canceled"]
FINAL: Final = frozenset({"done", "failed", "canceled"})


class Batch(Struct, frozen=True):
    """One job. `inputs` and `outputs` are folders of the workspace, `labels` a file of it; nothing here is secret."""

    id: str
    network_arch: str
    model_path: str
    workspace: Workspace
    inputs: str
    outputs: str
    parameters: Mapping[str, Any] = {}  # of every request, beside the medium
    labels: str = ""  # scores the results by it
    platform: str = "local"
    options: Mapping[str, str] = {}
    num_gpus: int = 1
    declared: str = ""  # the text of parameters.yaml beside the model


class Progress(Struct, frozen=True):
    """`done` counts files with a result, of which `failed` have an error instead; `skipped` are no inputs."""

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
    """What came of one file, as it is kept beside the others and in results.jsonl. `job` is the id of who asked."""

    file: str
    status: Literal["completed", "error"]
    results: Mapping[str, Any] | None = None
    error: str = ""
    job: str = ""
