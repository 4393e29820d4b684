"""Clients of model servers: V2 inference with numpy arrays and OpenAI's protocol, blocking and on asyncio.

They speak to services of every target through their URL, and to Triton, KServe and any other server of these protocols.
numpy and aiohttp are imported on use.
"""

from pilotlight.client.clients import AsyncClient, Client
from pilotlight.client.errors import ColdStartTimeout, ConnectionFailed, DeadlineExceeded, InvalidInput, ResponseError
from pilotlight.client.inference import InferResult
from pilotlight.client.openai import Completion

__all__ = [
    "AsyncClient", "Client", "ColdStartTimeout", "Completion", "ConnectionFailed", "DeadlineExceeded", "InferResult",
    "InvalidInput", "ResponseError",
]  # fmt: skip
