"""What platforms know of our own predictor: that a job runs it, and how its port is moved.

Where containers share the network of their machine, two of them cannot both listen on 8080. Our predictor reads its
port from the environment, so that the command stays the same everywhere; other images listen where they listen.
"""

from collections.abc import Mapping
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.microservices.model import Job
from pilotlight.microservices.ports import can_bind

MODULE: Final = "pilotlight_predictor"
ENV_PORT: Final = "INFERENCE_PORT"
ENV_HOST: Final = "INFERENCE_HOST"
LOOPBACK: Final = "127.0.0.1"


def is_own(job: Job) -> bool:
    """In whatever image."""
    return MODULE in job.command


def listening(job: Job) -> Mapping[str, str]:
    """On the network of its machine. Its command has gRPC and metrics off, so HTTP is its only port."""
    return {ENV_PORT: str(job.host_port), **({ENV_HOST: LOOPBACK} if job.closed else {})}


def check_free(job: Job) -> None:
    if not can_bind(job.host_port):
        raise PlatformError(f"host_port = {job.host_port} is taken", "choose another one, or end who listens there")
