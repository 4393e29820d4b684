"""Sequences in batches: what an instance sees, in which place, and what becomes of those who leave."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.scheduling.sequence_scheduler.sequence_models import PATIENT

from pilotlight_predictor.backends.base import Answer, TensorInstance
from pilotlight_predictor.core.requests import InferRequest, SequencePoint
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BadRequest, Cancelled, LoadFailed, NotReady
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.repository.config_reader import config_from_pbtxt
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.scheduling.queue import QueuedRequest
from pilotlight_predictor.scheduling.sequence_scheduler import SequenceScheduler
from pilotlight_predictor.scheduling.sequence_state import check_sequences_can_be_served, sequence_instance

CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
"""
PATIENCE_S = 60.0


class Notes(TensorInstance):
    """Notes the ids and READY of each batch; waits in `gate`; a negative number ends its thread."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        self.batches.append([(_of(request, "ID"), _of(request, "READY")) for request in batch])
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if any(request.inputs["x"].array.min() < 0 for request in batch):
            raise SystemExit
        return [{"y": request.inputs["x"]} for request in batch]


def _of(request: InferRequest, name: str) -> int:
    return int(request.inputs[name].array.item())


def config(strategy: str, size: int = 4) -> ModelConfig:
    text = f"name: 'm' max_batch_size: {size} sequence_batching {{ {strategy} {PATIENT} {CONTROLS} }}"
    return config_from_pbtxt(text, "config.pbtxt")


class Scene:
    def __init__(self, strategy: str, size: int = 4, instances: int = 1, bound: int = 0) -> None:
        told = config(strategy, size)
        self.notes = [Notes() for _ in range(instances)]
        made = [sequence_instance(notes, told, Path()) for notes in self.notes]
        self.scheduler = SequenceScheduler(made, told, ModelStats("m", 1), bound)
        self.answers: dict[str, Any] = {}

    def ask(self, name: str, identity: int, marks: str = "", number: float = 1) -> QueuedRequest:
        point = SequencePoint(identity, "s" in marks, "e" in marks)
        inputs = {"x": Tensor("FP32", np.array([[number]], "f4"))}

        def done(answer: Any) -> None:
            self.answers[name] = answer

        item = QueuedRequest(InferRequest("m", inputs, id=name, sequence=point), done)
        self.scheduler.submit(item)
        return item

    async def answered(self, *names: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.answers.keys() >= set(names):
                await asyncio.sleep(0.001)

    async def entered(self, number: int = 0) -> None:
        entered = self.notes[number].entered
        assert await asyncio.get_running_loop().run_in_executor(None, entered.wait, PATIENCE_S)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def test_a_sequence_keeps_its_place_in_the_batch() -> None:
    async def scene() -> None:
        at = Scene("direct { }")
        for identity in (11, 12, 13):
            at.ask(f"first {identity}", identity, "s")
        await at.answered("first 11", "first 12", "first 13")
        at.ask("end", 11, "e")
        await at.answered("end")
        at.ask("third", 13)
        await at.answered("third")
        assert at.notes[0].batches == [[(11, 1), (12, 1), (13, 1)], [(11, 1)], [(0, 0), (0, 0), (13, 1)]]
        await at.scheduler.close()

    play(scene)


def test_a_batch_of_the_oldest_has_no_empty_places() -> None:
    async def scene() -> None:
        at = Scene("oldest { max_candidate_sequences: 4 }")
        for identity in (11, 12):
            at.ask(f"first {identity}", identity, "s")
        await at.answered("first 11", "first 12")
        at.ask("second", 12)
        await at.answered("second")
        assert at.notes[0].batches == [[(11, 1), (12, 1)], [(12, 1)]]
        await at.scheduler.close()

    play(scene)


def test_more_candidates_than_configured_wait_for_an_end() -> None:
    async def scene() -> None:
        at = Scene("oldest { max_candidate_sequences: 1 }")
        at.ask("a", 1, "s")
        at.ask("b", 2, "se")
        await at.answered("a")
        assert (at.answers.keys(), at.scheduler.pending) == ({"a"}, 1)
        at.ask("a again", 1, "e")
        await at.answered("b")
        assert list(at.answers) == ["a", "a again", "b"]
        await at.scheduler.close()

    play(scene)


def test_slots_wait_to_be_filled_as_far_as_configured() -> None:
    async def scene() -> None:
        at = Scene("direct { max_queue_delay_microseconds: 600000000 minimum_slot_utilization: 0.75 }")
        for identity in (1, 2):
            at.ask(str(identity), identity, "s")
        await asyncio.sleep(0)
        assert at.notes[0].batches == []
        at.ask("3", 3, "s")
        await at.answered("1", "2", "3")
        assert len(at.notes[0].batches) == 1
        await at.scheduler.close()

    play(scene)


def test_instances_share_the_sequences_and_each_stays_with_its_own() -> None:
    async def scene() -> None:
        at = Scene("direct { }", instances=2)
        for step in range(3):
            for identity in (1, 2):
                at.ask(f"{identity} {step}", identity, "s" if step == 0 else "")
            await at.answered(f"1 {step}", f"2 {step}")
        assert [{row[0] for batch in notes.batches for row in batch} for notes in at.notes] == [{1}, {2}]
        await at.scheduler.close()

    play(scene)


def test_who_leaves_while_waiting_ends_the_sequence_and_its_neighbours_are_told() -> None:
    async def scene() -> None:
        at = Scene("direct { }")
        at.notes[0].gate.clear()
        at.ask("runs", 1, "s")
        await at.entered()
        leaving = at.ask("leaves", 1)
        at.ask("behind", 1)
        at.scheduler.cancel(leaving)
        assert isinstance(at.answers["leaves"], Cancelled)
        assert isinstance(at.answers["behind"], BadRequest)
        at.notes[0].gate.set()
        await at.answered("runs")
        with pytest.raises(BadRequest, match="START flag"):
            at.ask("later", 1)
        at.ask("anew", 1, "se")
        await at.answered("anew")
        assert isinstance(at.answers["anew"], dict)
        await at.scheduler.close()

    play(scene)


def test_with_its_last_instance_dead_a_model_refuses_sequences() -> None:
    async def scene() -> None:
        at = Scene("direct { }", size=1)
        at.ask("kills", 1, "s", number=-1)
        at.ask("behind", 1)
        at.ask("backlog", 2, "s")
        await at.answered("kills", "behind", "backlog")
        assert isinstance(at.answers["behind"], NotReady)
        assert isinstance(at.answers["backlog"], NotReady)
        with pytest.raises(NotReady, match="the model raised"):
            at.ask("later", 3, "s")
        assert not at.scheduler.alive
        await at.scheduler.close()

    play(scene)


def test_closing_finishes_what_waits() -> None:
    async def scene() -> None:
        at = Scene("direct { }", size=1)
        at.ask("a", 1, "s")
        at.ask("b", 1, "e")
        await at.scheduler.close()
        assert at.answers.keys() == {"a", "b"}
        with pytest.raises(NotReady):
            at.ask("later", 3, "s")

    play(scene)


def test_several_workers_serve_no_sequences() -> None:
    with pytest.raises(LoadFailed, match="start it with --workers 1"):
        check_sequences_can_be_served(config("direct { }"), 2)
