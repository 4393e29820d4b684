"""Runs every `check_*` of a script against a server and prints what became of each, as JSON."""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any


def run(script: Mapping[str, Any], make_client: Any) -> None:
    """`make_client(url)` is a context manager, async for scripts whose checks are; each check gets the client."""
    checks = {name: check for name, check in script.items() if name.startswith("check_")}
    url = sys.argv[1]
    if any(inspect.iscoroutinefunction(check) for check in checks.values()):
        results = asyncio.run(_run_async(checks, make_client, url))
    else:
        results = {}
        with make_client(url) as client:
            for name, check in checks.items():
                try:
                    check(client)
                    results[name] = ""
                except Exception:
                    results[name] = traceback.format_exc()
    print(json.dumps(results))


async def _run_async(checks: Mapping[str, Any], make_client: Any, url: str) -> dict[str, str]:
    results = {}
    async with make_client(url) as client:
        for name, check in checks.items():
            try:
                await check(client)
                results[name] = ""
            except Exception:
                results[name] = traceback.format_exc()
    return results


def refused(call: Any, *words: str) -> None:
    """The call raises the client library's own error with these words in it."""
    try:
        call()
    except Exception as error:
        return _has(str(error), words)
    raise AssertionError("the call was to be refused")


async def refused_later(call: Any, *words: str) -> None:
    try:
        await call
    except Exception as error:
        return _has(str(error), words)
    raise AssertionError("the call was to be refused")


def _has(text: str, words: tuple[str, ...]) -> None:
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in {text}"
