"""Requests to a server of OpenAI's completions, each a stream of its own, all sent at once."""

import contextlib
import http.client
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.load import BenchError

Figures = dict[str, float]
LIMIT_S = 300.0
WHOLE = b'"finish_reason":"length"'


def together(port: int, texts: Sequence[str], tokens: int, more: Mapping[str, Any]) -> Figures:
    """Send all texts at once; `tokens` are generated for each. Times count from when all of them arrive."""
    with ThreadPoolExecutor(len(texts)) as pool:
        began = time.perf_counter()
        firsts = list(pool.map(lambda text: stream(port, text, tokens, more) - began, texts))
        took = time.perf_counter() - began
    return {"tokens_s": len(texts) * tokens / took, "first_ms": statistics.median(firsts) * 1e3}


def stream(port: int, text: str, tokens: int, more: Mapping[str, Any]) -> float:
    """Return when the first token came. Raise BenchError unless as many came as were asked for."""
    body = {"model": "text", "prompt": text, "max_tokens": tokens, "temperature": 0, "stream": True, **more}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        while (line := response.readline()) and not line.startswith(b"data: {"):
            pass
        first = time.perf_counter()
        rest = line + response.read()
    if WHOLE not in rest.replace(b'": "', b'":"'):
        raise BenchError(f"status {response.status} and not {tokens} tokens: {rest[-300:]!r}")
    return first
