"""What holds for every dialect holds here: who may call, who left, what is overloaded; and no input makes a 500."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.predictor.protocols.openai.conftest import client_of
from tests.serving import RunningServer

LONG = {"model": "tiny", "prompt": "One two", "max_tokens": 100, "temperature": 0, "logit_bias": {"1": -100}}


def running(server: RunningServer) -> str:
    lines = server.get("/metrics").body.decode().splitlines()
    return next(line for line in lines if "in_flight" in line and not line.startswith("#"))


def test_a_client_that_leaves_a_stream_ends_it(speaking: RunningServer) -> None:
    body = json.dumps({**LONG, "stream": True, "n": 8}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    before = running(speaking)
    for _ in range(6):  # 48 choices, more than there are slots: they must be given back
        connection = socket.create_connection(("127.0.0.1", speaking.port), timeout=60)
        connection.sendall(head + body)
        assert connection.recv(16).startswith(b"HTTP/1.1 200")
        connection.close()
    with client_of(speaking) as client:
        assert client.completions.create(**LONG).choices[0].finish_reason == "length"
    speaking.wait_until(lambda: running(speaking) == before, "idle")


def test_a_stream_ends_with_done_and_says_so_in_its_head(speaking: RunningServer) -> None:
    answer = speaking.post("/v1/completions", {**LONG, "max_tokens": 4, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "text_completion" for event in events[:-2])


def test_the_same_model_answers_as_tritons_vllm_backend_does(speaking: RunningServer) -> None:
    asked = {"text_input": "The quick", "parameters": {"temperature": 0, "max_tokens": 12}}
    told = speaking.post("/v2/models/tiny/generate", asked).json()
    assert told["text_output"].startswith("The quick brown fox")
    asked["parameters"] |= {"stream": True}
    events = speaking.post("/v2/models/tiny/generate_stream", asked).body.decode().split("\n\n")
    said = [json.loads(event.removeprefix("data: "))["text_output"] for event in events if event]
    assert len(said) > 4
    assert "The quick" + "".join(said) == told["text_output"]


def test_who_may_not_call_is_told_in_openais_shape(
    speakers: Path, serve: Callable[..., RunningServer], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "lengths").symlink_to(speakers / "lengths")
    server = serve(tmp_path / "models", "--api-token-file", str(tmp_path / "token"), "--rate-limit-per-minute", "3")
    with client_of(server) as client, pytest.raises(openai.AuthenticationError) as refused:
        client.embeddings.create(model="lengths", input="x")
    assert refused.value.code == "invalid_api_key"
    allowed = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
    with allowed:
        allowed.embeddings.create(model="lengths", input="x")
        with pytest.raises(openai.RateLimitError) as limited:
            [allowed.embeddings.create(model="lengths", input="x") for _ in range(5)]
    assert limited.value.code == "rate_limit_exceeded"
    assert int(limited.value.response.headers["retry-after"]) >= 1


values = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(-3, 3)
    | st.text(max_size=8)
    | st.just([])
    | st.just({})
)
fields = st.dictionaries(
    st.sampled_from(
        ["stream", "temperature", "top_p", "n", "seed", "stop", "logprobs", "max_tokens", "logit_bias", "top_k", "user"]
    ),
    values,
    max_size=4,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    fields,
    st.sampled_from(["tiny", "plain", "looks", "nobody", ""]),
    values | st.text() | st.lists(st.integers(-1, 500)),
)
def test_no_input_makes_a_500_or_hangs(
    speaking: RunningServer, how: dict[str, object], model: str, told: object
) -> None:
    for path, key, value in (
        ("completions", "prompt", told), ("embeddings", "input", told),
        ("chat/completions", "messages", [{"role": "user", "content": told}]),
    ):  # fmt: skip
        answer = speaking.post(f"/v1/{path}", {"max_tokens": 3, **how, "model": model, key: value})
        assert answer.status in (200, 400, 404), answer.body
        if answer.status != 200:
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
