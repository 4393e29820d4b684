"""The inference route over a real model, without HTTP in front: every call is answered, and once."""

from pathlib import Path

import orjson
import pytest
from tests.eventually import eventually_async
from tests.onnx_models import write_python
from tests.predictor.in_process_server import House, play

from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.protocols.v2.infer import infer

# JSON has no way to write the name of its second output.
UNSPEAKABLE = """
INPUTS = {"x": ("FP32", [1])}


def predict(x):
    return {"y": x, "\\ud800": x}
"""


async def answers(house: House, model: str, text: bytes) -> list[HttpResponse]:
    replies: list[HttpResponse] = []
    call = HttpRequest("POST", f"/v2/models/{model}/infer", "", {}, text, "", replies.append, 0.0)
    call.params = {"model": model}
    infer(house.server, call)
    await eventually_async(lambda: replies)
    return replies


@pytest.mark.parametrize("timeout_s", [0.0, 60.0])
def test_an_answer_that_cannot_be_encoded_is_a_500_and_not_a_silence(tmp_path: Path, timeout_s: float) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", UNSPEAKABLE)
        house = await House(tmp_path, performance={"inference_timeout_s": timeout_s}).start()
        text = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
        (reply,) = await answers(house, "m", text)
        assert reply.status == 500
        assert isinstance(reply.body, list)
        assert orjson.loads(b"".join(reply.body)) == {"error": "internal error; see the server's log"}
        assert house.metrics.in_flight == 0

    play(scene())
