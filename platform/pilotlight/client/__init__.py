"""Clients of model servers: V2 inference with numpy arrays and OpenAI's protocol, blocking and on asyncio.

They call services of every target by their URL, and Triton, KServe and any other server of these protocols.
numpy is imported on use.
"""

from pilotlight.client.clients import AsyncClient, Client
from pilotlight.client.errors import ColdStartTimeout, ConnectionFailed, DeadlineExceeded, InvalidInput, ResponseError
from pilotlight.client.inference import InferResult
from pilotlight.client.openai import Completion, RankedDocument

__all__ = [
    "AsyncClient", "Client", "ColdStartTimeout", "Completion", "ConnectionFailed", "DeadlineExceeded", "InferResult",
    "InvalidInput", "RankedDocument", "ResponseError",
]  # fmt: skip
