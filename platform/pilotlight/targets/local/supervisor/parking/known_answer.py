"""The answer of a replica to a known request, stored before it parks and compared after it has woken.

The request is the model's example for our predictor, and a greedy completion for servers of OpenAI's API. A replica
that answers it differently each time is not verified.
"""

import json
from hashlib import sha256
from typing import Any, Final

from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.wire.http_client import request

Json = Any
TIMEOUT_S: Final = 60.0
MODELS_S: Final = 5.0
PROMPT: Final = "One, two, three, four,"
GREEDY: Final = {"max_tokens": 8, "temperature": 0, "seed": 0}
RESULTS: Final = ("outputs", "predictions", "choices")  # fields that hold what the model has computed


async def learn(replica: Replica) -> str:
    """Return the digest of its answer; empty: there is no known request, or its answers differ."""
    answer = await answer_of(replica)
    if answer in ("", replica.known_answer):
        return answer
    return answer if await answer_of(replica) == answer else ""


async def answer_of(replica: Replica) -> str:
    """Return the digest of its answer; empty: it has none."""
    if replica.parking.path:
        return await _post(replica, replica.parking.path, replica.parking.body.encode())
    if replica.parking.method not in ("engine", "driver"):
        return ""
    models = await request(replica.port, "/v1/models", MODELS_S, host=replica.host)
    names = [row.get("id") for row in models.json().get("data") or () if isinstance(row, dict)] if models.ok else []
    if not names:
        return ""
    completion = {"model": names[0], "prompt": PROMPT, **GREEDY}
    chat = {"model": names[0], "messages": [{"role": "user", "content": PROMPT}], **GREEDY}
    return await _post(replica, "/v1/completions", json.dumps(completion).encode()) or await _post(
        replica, "/v1/chat/completions", json.dumps(chat).encode()
    )


async def _post(replica: Replica, path: str, body: bytes) -> str:
    response = await request(replica.port, path, TIMEOUT_S, host=replica.host, post=True, body=body)
    result = computed(response.json()) if response.ok else None
    return "" if result is None else sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def computed(document: dict[str, Json]) -> Json:
    """Return the part of a response that does not change from one call to the next: no ids and times; None: none."""
    return next((document[name] for name in RESULTS if document.get(name)), None)
