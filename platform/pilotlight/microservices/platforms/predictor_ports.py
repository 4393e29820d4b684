"""Port selection of the predictor on platforms with host networking.

Containers that share the host's network cannot all listen on 8080. The predictor reads its port from the environment,
so that its command is the same everywhere; other images have a fixed port.
"""

from collections.abc import Mapping
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.microservices.platforms.ports import can_bind
from pilotlight.microservices.registry.types import Job

MODULE: Final = "pilotlight_predictor"
ENV_PORT: Final = "INFERENCE_PORT"
ENV_HOST: Final = "INFERENCE_HOST"
LOOPBACK: Final = "127.0.0.1"


def is_own(job: Job) -> bool:
    """Return whether the job runs the predictor, in any image."""
    return MODULE in job.command


def listening(job: Job) -> Mapping[str, str]:
    """Return the variables of its port on the host's network. HTTP is its only port."""
    return {ENV_PORT: str(job.host_port), **({ENV_HOST: LOOPBACK} if job.closed else {})}


def check_free(job: Job) -> None:
    if not can_bind(job.host_port):
        raise PlatformError(f"host_port = {job.host_port} is taken", "choose another one, or end who listens there")
