"""Loads and unloads that must hold in every worker: one after the other, on all or on none. Parks and wakes too.

A load is tried in one worker first, so that a model that cannot be loaded disturbs no other. Calls and newcomers take
turns: a worker that comes late is brought to what the others serve before it takes connections.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from pilotlight_predictor.logs import log
from pilotlight_predictor.workers.decisions import lacks
from pilotlight_predictor.workers.frames import Answer, Frame
from pilotlight_predictor.workers.member import ANSWER_S, Member
from pilotlight_predictor.workers.merge import NOBODY, worst

DIED: Final = Answer(503, b'{"error":"a worker died over the call"}', headers={"Retry-After": "1"})
INDEX: Final = "/v2/repository/index"


class Control:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._calls: dict[str, bytes | None] = {}  # model → the body of its last load, None once unloaded

    async def unload(self, members: Sequence[Member], call: Frame) -> Answer:
        async with self._turn:
            answer = worst(await _ask(members, call))
            if answer.status == 200:
                self._calls[call.head["model"]] = None
            return answer

    async def move(self, members: Sequence[Member], call: Frame) -> Answer:
        """Parks or wakes in all of them, which succeeded only if it did in each. No turn: a wake waits for no load."""
        return worst(await _ask(members, call))

    async def load(self, members: Sequence[Member], call: Frame) -> Answer:
        """On all, or on none and with the reason."""
        async with self._turn:
            if not members:
                return NOBODY
            first, *rest = members
            model = call.head["model"]
            served = model in (await _serving(first) or ())
            answer = worst(await _ask([first], call))
            if answer.status != 200:
                return answer
            answers = await _ask(rest, call)
            failed = worst(answers) if rest else answer
            if failed.status == 200:
                self._calls[model] = call.body
                return answer
            loaded = [first, *(member for member, one in zip(rest, answers, strict=True) if one.status == 200)]
            await self._take_back(loaded, model, served)
            return _partly(failed, rest[[one.status == 200 for one in answers].index(False)].number)

    async def _take_back(self, members: Sequence[Member], model: str, served: bool) -> None:
        """To what it was before: the last load again, as it was called, or none."""
        call = _call(model, "load", self._calls.get(model) or b"") if served else _call(model, "unload")
        log("workers.rollback", f"'{model}' did not load in every worker", level="ERROR", model=model)
        await _ask(members, call)

    async def catch_up(self, newcomer: Member, others: Sequence[Member]) -> bool:
        """Whether the newcomer serves what the others do."""
        async with self._turn:
            own = await _serving(newcomer)
            if own is None:
                return False
            theirs = await _first_serving(others)
            difference = lacks(own, theirs, self._calls)
            calls = [_call(model, "load", self._calls.get(model) or b"") for model in difference.load]
            calls += [_call(model, "unload") for model in difference.unload]
            for call in calls:
                answer = worst(await _ask([newcomer], call))
                if answer.status != 200:
                    told = answer.body.decode(errors="replace")[:500]
                    log("workers.behind", f"worker {newcomer.number} cannot follow the others: {told}", level="ERROR")
                    return False
            return True


async def _ask(members: Sequence[Member], call: Frame) -> list[Answer]:
    answers = await asyncio.gather(*(member.ask(call) for member in members))
    return [answer or DIED for answer in answers]


async def _first_serving(members: Sequence[Member]) -> set[str] | None:
    """Of the first that answers in time."""
    for member in members:
        with suppress(TimeoutError):
            if (found := await asyncio.wait_for(_serving(member), ANSWER_S)) is not None:
                return found
    return None


async def _serving(member: Member) -> set[str] | None:
    """The models that are ready there; None when it has gone."""
    answer = await member.ask(_frame(INDEX, b'{"ready":true}'))
    if answer is None or answer.status != 200:
        return None
    return {row["name"] for row in json.loads(answer.body)}


def _call(model: str, verb: str, body: bytes = b"") -> Frame:
    return _frame(f"/v2/repository/models/{quote(model, safe='')}/{verb}", body)


def _frame(path: str, body: bytes) -> Frame:
    return Frame({"method": "POST", "path": path, "query": "", "headers": {}}, body)


def _partly(failed: Answer, number: int) -> Answer:
    """The reason of the worker that failed, with its number and what became of the others."""
    document: dict[str, Any] = json.loads(failed.body)
    document["error"] = f"{document['error']} (in worker {number}; the other workers were set back)"
    return failed._replace(body=json.dumps(document).encode())
