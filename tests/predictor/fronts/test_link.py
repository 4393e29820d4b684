"""Messages and tensors between two ends of a link: in order, complete, also when the memory is full."""

import asyncio
import socket
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventually import eventually_async

from pilotlight_predictor.backends.torch.tensors import OutOfDeviceMemory
from pilotlight_predictor.core.generation_params import BadField, TaskNotSupported
from pilotlight_predictor.core.requests import Layout, OutputsWithParameters
from pilotlight_predictor.core.tensors import JsonText, Tensor, tensor
from pilotlight_predictor.errors import BackendFailed, NotFound, QueueFull, RateLimited
from pilotlight_predictor.fronts import messages
from pilotlight_predictor.fronts.link import SMALL, Link, accept, say_hello
from pilotlight_predictor.fronts.messages import Answer, Message, Place, Release

SIZES = st.lists(st.integers(0, 4 * SMALL), min_size=1, max_size=60)


class Receiver:
    """Keeps what it reads, and frees the sender's memory `late` messages later."""

    def __init__(self, late: int) -> None:
        self.late = late
        self.values: list[tuple[int, set[int]]] = []
        self.blocks: list[int] = []

    def __call__(self, link: Link, message: Message) -> None:
        if isinstance(message, Release):
            link.release(message.offset)
            return
        assert isinstance(message, Answer)
        array = messages.outputs_of(message, link.other)["x"].array
        self.values.append((array.size, set(array.tolist())))
        if message.block >= 0:
            self.blocks.append(message.block)
        if len(self.blocks) > self.late:
            link.send(Release(self.blocks.pop(0)))


def freed(link: Link, message: Message) -> None:
    assert isinstance(message, Release)
    link.release(message.offset)


def ignored(*_: Any) -> None:
    """Take no notice."""


async def linked(size: int, receiver: Receiver) -> tuple[Link, Link]:
    front, models = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with closing(front), closing(models):
        sender = await say_hello(front, size, freed, ignored)
        other = await accept(models, receiver, ignored)
    assert other is not None
    return sender, other


def send(link: Link, number: int, size: int) -> bool:
    x = {"x": Tensor("UINT8", np.full(size, number, np.uint8))}
    return link.send_tensors(number, lambda places, block: Answer(number, True, places, None, block), x)


@settings(deadline=None, max_examples=40)
@given(sizes=SIZES, late=st.integers(0, 2))
def test_messages_arrive_in_order_and_whole_though_the_memory_is_full(sizes: list[int], late: int) -> None:
    async def run() -> None:
        receiver = Receiver(late)
        sender, other = await linked(16 * SMALL, receiver)  # `late` blocks and one more fit
        for number, size in enumerate(sizes):
            send(sender, number, size)
        await eventually_async(lambda: len(receiver.values) == len(sizes), "complete")
        assert receiver.values == [(size, {number} if size else set()) for number, size in enumerate(sizes)]
        sender.close()
        other.close()

    asyncio.run(run())


def test_a_full_memory_holds_messages_back_and_loses_none() -> None:
    async def run() -> None:
        receiver = Receiver(late=100)
        sender, other = await linked(4 * SMALL, receiver)
        assert [send(sender, number, 2 * SMALL) for number in range(4)] == [True, True, False, False]
        await eventually_async(lambda: len(receiver.values) == 2, "two there")
        assert len(sender.unsent) == 2
        other.send(Release(receiver.blocks[0]))
        await eventually_async(lambda: len(receiver.values) == 3, "three there")
        assert len(sender.unsent) == 1
        sender.close()
        other.close()

    asyncio.run(run())


def test_a_tensor_larger_than_the_memory_goes_through_the_socket() -> None:
    async def run() -> None:
        receiver = Receiver(0)
        sender, other = await linked(2 * SMALL, receiver)
        send(sender, 7, 1 << 22)
        await eventually_async(lambda: receiver.values == [(1 << 22, {7})], "there")
        sender.close()
        other.close()

    asyncio.run(run())


def test_a_link_reports_the_end_of_its_peer_and_a_hello_is_accepted_once() -> None:
    async def run() -> None:
        lost: list[Link] = []
        front, models = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with closing(front), closing(models):
            sender = await say_hello(front, SMALL, ignored, ignored)
            other = await accept(models, ignored, lost.append)
            assert await accept(models, ignored, lost.append) is None
        sender.close()
        await eventually_async(lambda: lost == [other], "told")

    asyncio.run(run())


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<f4").reshape(2, 3).T,
        np.array([[True, False]]),
        np.array([b"", b"\xff", "ä".encode()], dtype=object),
        np.zeros((0, 3), "<i8"),
        np.array(5, "<u2"),
    ],
    ids=["not contiguous", "bool", "strings", "empty", "scalar"],
)
def test_tensors_and_parameters_arrive_as_they_were_sent(array: Any) -> None:
    ((name, datatype, shape, raw),) = messages.raw_of({"x": tensor(array)})
    layout = Layout("columns", ("a",), frozenset({"b"}))
    text = messages.encode(Answer(1, True, [Place(name, datatype, shape, bytes(raw))], {"a": [1, "b"]}, layout=layout))
    answer = messages.decode(text)
    assert isinstance(answer, Answer)
    outputs = messages.outputs_of(answer, memoryview(b""))
    assert outputs["x"].datatype == tensor(array).datatype
    np.testing.assert_array_equal(outputs["x"].array, array)
    assert isinstance(outputs, OutputsWithParameters)
    assert (outputs.parameters, outputs.layout) == ({"a": [1, "b"]}, layout)


def test_json_text_stays_json_text() -> None:
    items = np.empty(1, object)
    items[0] = JsonText(b"[1]")
    ((name, datatype, shape, raw),) = messages.raw_of({"x": Tensor("BYTES", items)})
    (got,) = messages.tensors_of([Place(name, datatype, shape, bytes(raw))], memoryview(b"")).values()
    assert got.datatype == "BYTES"
    assert isinstance(got.array[0], JsonText)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QueueFull("full"), QueueFull),
        (NotFound("gone"), NotFound),
        (RateLimited("slower", 7), RateLimited),
        (BackendFailed("it raised", request_id="r"), BackendFailed),
        (OutOfDeviceMemory("batch too large"), BackendFailed),
        (TaskNotSupported("model 'm' does not embed text"), BadField),
    ],
    ids=str,
)
def test_an_error_has_its_status_sentence_and_field_in_the_front(error: Any, kind: type[Exception]) -> None:
    got: Any = messages.error_of(messages.failure_of(3, True, error))
    assert (type(got), str(got), got.status) == (kind, str(error), error.status)
    assert (got.retry_after, got.request_id) == (error.retry_after, error.request_id)
    assert getattr(got, "field", None) == getattr(error, "field", None)


def test_an_unexpected_error_is_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    got = messages.error_of(messages.failure_of(3, True, ValueError("secret")))
    assert (got.status, str(got)) == (500, "internal error; see the server's log")
    assert "secret" in caplog.text
