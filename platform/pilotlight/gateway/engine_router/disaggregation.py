"""Bodies by which prefill and decode engines find each other: the published protocols of SGLang and vLLM.

docs/reference/openai.md describes them and cites the sources.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pilotlight.gateway.proxy.responses import ErrorResponse, RequestRejected

Object = dict[str, Any]
COMPLETIONS: Final = frozenset({"/v1/completions", "/v1/chat/completions"})
BOOTSTRAP_FIELDS: Final = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
# SGLang counts up from a room, one for each prompt of a batch, and has 63 bits.
BOOTSTRAP_ROOMS: Final = 1 << 62
# By these an engine reads a KV cache from an address, or that of another request: no client may send them.
RESERVED_FIELDS: Final = frozenset(
    {*BOOTSTRAP_FIELDS, "bootstrap_pair_key", "disagg_prefill_dp_rank", "kv_transfer_params", "ec_transfer_params"}
)
NOT_FOR_PREFILL: Final = ("stream_options", "min_tokens", "min_completion_tokens")
# SGLang before September 2026 gives all samples the same room.
PARALLEL_SAMPLES: Final = ErrorResponse(
    400, "n must be 1 when prefill and decode are separate; send one request per sample"
)


class PrefillProtocol(Protocol):
    """`concurrent`: both engines get the request at once; else the decoder after the prefill engine has answered."""

    paths: frozenset[str]
    concurrent: bool

    def prefill_body(self, body: Object, host: str, bootstrap_port: int) -> Object | None:
        """Return the body for the prefill engine at `host`; None: a decoder serves such a request alone.

        Raise RequestRejected for a request that the engines cannot serve.
        """

    def decode_body(self, body: Object, prefill: Object, answer: Object) -> Object:
        """Return the body for the decoder; `prefill` is the prefill engine's, `answer` what it answered."""


class SGLang:
    """Both engines meet at the prefill engine's bootstrap server, in a room whose random number must never repeat."""

    paths = COMPLETIONS | {"/generate"}
    concurrent = True

    def prefill_body(self, body: Object, host: str, bootstrap_port: int) -> Object:
        sampling = body.get("sampling_params")
        if (body.get("n") or (isinstance(sampling, dict) and sampling.get("n")) or 1) != 1:
            raise RequestRejected(PARALLEL_SAMPLES)
        values = (f"[{host}]" if ":" in host else host, bootstrap_port, secrets.randbelow(BOOTSTRAP_ROOMS))
        return {**body, **dict(zip(BOOTSTRAP_FIELDS, values, strict=True))}

    def decode_body(self, body: Object, prefill: Object, answer: Object) -> Object:
        return prefill


class VllmNixl:
    """The prefill engine computes one token and answers where its blocks are; the decoder reads them from there."""

    paths = COMPLETIONS
    concurrent = False

    def prefill_body(self, body: Object, host: str, bootstrap_port: int) -> Object | None:
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
        if several or (body.get("n") or 1) != 1:
            return None  # an answer names the blocks of one prompt, which are free once they are read
        nowhere = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        params = {"do_remote_decode": True, "do_remote_prefill": False, **nowhere}
        sent = {name: value for name, value in body.items() if name not in NOT_FOR_PREFILL}
        limits = dict.fromkeys(("max_tokens", *({"max_completion_tokens"} & body.keys())), 1)
        return {**sent, **limits, "stream": False, "kv_transfer_params": params}

    def decode_body(self, body: Object, prefill: Object, answer: Object) -> Object:
        """Without parameters in the answer the decoder computes the prompt itself."""
        params = answer.get("kv_transfer_params")
        return {**body, "kv_transfer_params": params} if params else body


# By the name in the router's settings. With llm-d a header names the prefill engine; the decoder's sidecar calls it.
PROTOCOLS: Final[Mapping[str, PrefillProtocol | None]] = {"sglang": SGLang(), "vllm": VllmNixl(), "llm-d": None}
