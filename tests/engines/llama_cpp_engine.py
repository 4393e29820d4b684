"""A stand-in of `python -m llama_cpp.server`: its flags, no /health, and ids of requests that must be UUIDs."""

import argparse
import asyncio
from pathlib import Path
from uuid import UUID, uuid4

from aiohttp import web
from tests.engines.engine import Body, Engine, end_at_sigterm, prompt_words, serve_forever


class LlamaCppEngine(Engine):
    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            UUID(request.headers.get("X-Request-ID", str(uuid4())))
        except ValueError:
            raise web.HTTPBadRequest(text="Invalid UUID in request header x-request-id") from None
        return await super()._complete(request)

    async def generate(self, body: Body) -> tuple[list[str], Body]:
        return prompt_words(body), {}

    async def _health(self, request: web.Request) -> web.Response:
        raise web.HTTPNotFound

    _metrics = _health


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--model_alias", default="")
    parser.add_argument("--n_ctx", type=int, default=2048)
    parser.add_argument("--interrupt_requests", choices=("true", "false"), default="true")
    parser.add_argument("--logits_all", choices=("true", "false"), default="true")
    options = parser.parse_args()
    if not options.model.is_file():
        parser.error(f"Model path does not exist: {options.model}")
    end_at_sigterm()
    asyncio.run(serve_forever(LlamaCppEngine("llama.cpp", options.host, options.model_alias), options.port))


if __name__ == "__main__":
    main()
