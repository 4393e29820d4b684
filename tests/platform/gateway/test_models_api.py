"""The one `/v1`: requests go to the service that their `model` names, and `/v1/models` lists what may be called."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import openai
import pytest
from msgspec.structs import replace
from tests.eventually import eventually_async
from tests.platform.gateway.bed import (
    Bed,
    backend,
    play,
    read_answer,
    route,
)  # fmt: skip
from tests.platform.gateway.openai_engine import CHAT, NO_LORA, SECRET, body_of, engine

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.proxy.model_routes import ModelRoutes
from pilotlight.gateway.routing_table import RouteAdapter


async def models(bed: Bed) -> None:
    """Services `llama` with two revisions, `phi`, and `qwen` of a team, which needs a token; `iris` is no model."""
    one, two = await bed.origin(engine), await bed.origin(engine)
    bed.publish(
        route("llama", backend("llama-1", one), backend("llama-2", two, weight=0, tags=("canary",)),
              models=("llama", "gpt-4o")),
        route("qwen", backend("qwen-1", await bed.origin(engine)), namespace="team", models=("qwen",), access=SECRET),
        route("phi", backend("phi-1", await bed.origin(engine)), models=("phi",)),
        route("iris", backend("iris-1", await bed.origin())),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "revision", "engine_name"),
    [("llama", "llama-1", "llama"), ("gpt-4o", "llama-1", "llama"), ("llama@canary", "llama-2", "llama"),
     ("gpt-4o@llama-2", "llama-2", "llama"), ("team/qwen", "qwen-1", "qwen"),
     ("default/gpt-4o@canary", "llama-2", "llama")],
)  # fmt: skip
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_request_goes_to_its_model_under_the_engine_s_name(
    model: str, revision: str, engine_name: str, chunked: bool, own: bool
) -> None:
    """At the one address, and at the service's own one."""

    async def case(bed: Bed) -> None:
        await models(bed)
        path = (f"/team/qwen{CHAT}" if "qwen" in model else f"/llama{CHAT}") if own else CHAT
        body, headers = body_of(model, note="é" * 10), {"Authorization": "Bearer secret"}
        if chunked:
            cuts = [body[:5], body[5:20], body[20:]]
            body = b"".join(b"%x\r\n%b\r\n" % (len(cut), cut) for cut in cuts) + b"0\r\n\r\n"
            lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{lines}\r\n".encode()
            got = await bed.ask_raw(head + body, "POST")
        else:
            got = await bed.ask("POST", path, body, headers)
        assert (got.status, json.loads(got.body)["model"]) == (200, model)
        (seen,) = [each for origin in bed._origins for each in origin.seen]
        assert json.loads(seen.body) == {"messages": [], "note": "é" * 10, "model": engine_name}
        assert seen.path == CHAT
        ports = {each.revision: each.replicas[0].port for key in bed.plane.routing.routes for each in
                 bed.plane.routing.routes[key].route.backends}  # fmt: skip
        assert [origin.port for origin in bed._origins if origin.seen] == [ports[revision]]

    play(case, AccessAdmission())


def test_the_own_address_of_a_service_leaves_other_names_to_its_engine() -> None:
    """And the bodies of other protocols, of which nothing is read; a name that two services claim is the service's."""
    own = "the engine's own name"

    async def case(bed: Bed) -> None:
        replica = await bed.origin(engine)
        law = (RouteAdapter("law", "llama", base_fields=NO_LORA),)
        bed.publish(
            route("alpha", models=("alpha", "gpt-4o")),
            route("llama", backend("llama-1", replica, tags=("prev",)), models=("llama", "gpt-4o")),
            route("tuned", backend("tuned-1", replica), models=("llama",), adapters=law),
        )
        for path in (f"/llama{CHAT}", "/llama/v1/embeddings", "/llama/openai/v1/embeddings"):
            for name, sent_name in (("gpt-4o", "llama"), (own, own), ("alpha", "alpha"), ("gpt-4o@prev", "llama")):
                got = await bed.ask("POST", path, body_of(name))
                assert (got.status, json.loads(got.body)["model"]) == (200, name)
                assert json.loads(replica.seen.pop().body)["model"] == sent_name
        for path in ("v2/models/m/infer", "v1/models/gpt-4o:predict", "v1/models", "generate"):
            for service in ("llama", "tuned"):
                await bed.ask("POST", f"/{service}/{path}", body_of("gpt-4o"))
                assert replica.seen.pop().body == body_of("gpt-4o")

    play(case)


@pytest.mark.parametrize(
    ("models", "begins", "spent"),
    [(("llama", "gpt-4o"), b"[1]," * (1 << 18), False), (("llama", "gpt-4o"), b"[1]," * (1 << 11), True),
     (("llama",), b'"%b",' % (b"x" * (2 << 20)), False)],  # its name need not be replaced by another
    ids=["brackets", "memory", "one-model"],
)  # fmt: skip
def test_a_body_that_is_too_long_for_its_model_to_be_read_goes_to_its_own_address_as_it_is(
    models: tuple[str, ...], begins: bytes, spent: bool
) -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin(whole=False)
        bed.publish(route("llama", backend("llama-1", origin), models=models))
        bed.plane.buffer_budget.limit = 0 if spent else 1 << 30
        start, end = b'{"input": [%b' % begins, b'1], "model": "gpt-4o"}'
        reader, writer = await bed.connect()
        length = len(start + end)
        writer.write(f"POST /llama/v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        writer.write(start)
        await eventually_async(lambda: origin.seen, "the replica gets the request before its model is known")
        writer.write(end)
        assert (await read_answer(reader)).status == 200
        assert int(origin.seen[0].headers["content-length"]) == length

    play(case)


def test_a_long_chat_with_the_one_model_of_a_service_keeps_its_tag() -> None:
    async def case(bed: Bed) -> None:
        stable, canary = await bed.origin(), await bed.origin()
        backends = backend("llama-1", stable), backend("llama-2", canary, weight=0, tags=("canary",))
        bed.publish(route("llama", *backends, models=("llama",)))
        body = b'{"messages": ["%b"], "model": "llama@canary"}' % (b"x" * (2 << 20))  # as OpenAI's clients order it
        assert (await bed.ask("POST", f"/llama{CHAT}", body)).status == 200
        assert json.loads(canary.seen[0].body)["model"] == "llama"

    play(case)


def test_the_list_has_what_the_caller_may_call() -> None:
    async def case(bed: Bed) -> None:
        await models(bed)

        async def names(**headers: str) -> list[str]:
            return [each["id"] for each in json.loads((await bed.ask("GET", "/v1/models", b"", headers)).body)["data"]]

        assert await names() == ["gpt-4o", "llama", "phi"]
        assert await names(Authorization="Bearer secret") == ["gpt-4o", "llama", "phi", "team/qwen"]
        one = json.loads((await bed.ask("GET", "/v1/models/gpt-4o")).body)
        assert (one["id"], one["object"]) == ("gpt-4o", "model")
        assert (await bed.ask("GET", "/v1/models/team%2Fqwen")).status == 404
        assert (await bed.ask("DELETE", "/v1/models/llama")).status == 405
        below = await bed.ask("POST", "/v1/models/iris:predict", b"{}")
        message = "this page supports GET and HEAD; did you mean /iris/v1/models/iris:predict?"
        assert (below.status, json.loads(below.body)["error"]["message"]) == (405, message)
        # llama.cpp's client waits for this before it lists the models.
        assert (await bed.ask("GET", "/health")).status == 200

    play(case, AccessAdmission())


def test_a_service_that_never_started_is_not_listed_and_still_reached() -> None:
    async def case(bed: Bed) -> None:
        broken = replace(backend("broken-1"), unavailable="broken-1 cannot start: exit code 1")
        bed.publish(route("broken", broken, models=("broken",), failed=True), route("phi", models=("phi",)))
        listed = json.loads((await bed.ask("GET", "/v1/models")).body)["data"]
        assert [each["id"] for each in listed] == ["phi"]
        got = await bed.ask("POST", CHAT, body_of("broken"))
        assert (got.status, b"cannot start: exit code 1" in got.body) == (503, True)

    play(case)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models/qwen"), ("POST", CHAT)])
def test_an_unknown_model_is_authenticated_once(method: str, path: str) -> None:
    """As it takes 0.4 ms for a JWT. The time is read for each set of rules: `iris` has none, `qwen` a token."""
    checks: list[None] = []

    def wall() -> float:
        checks.append(None)
        return 0.0

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", models=("iris",)), route("qwen", models=("big",), access=SECRET))
        checks.clear()
        assert (await bed.ask(method, path, body_of("qwen") if method == "POST" else b"")).status == 404
        assert len(checks) == 2

    play(case, AccessAdmission(wall=wall))


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [(body_of("lama"), 404, "model_not_found", "model 'lama' does not exist; did you mean llama?"),
     (body_of("iris"), 404, "model_not_found", "model 'iris' is not listed at /v1: use /iris/…, or list it by the"),
     (body_of("other"), 404, "model_not_found", "model 'other' does not exist; there are gpt-4o, llama, phi"),
     (body_of("qwen"), 404, "model_not_found", "does not exist"),
     (body_of("llama@old"), 404, "model_not_found", "no revision has the tag or name 'old'"),
     (body_of(None), 400, None, "model is missing, must be one of gpt-4o, llama, phi"),
     (b"[]", 400, None, "model is missing"), (b"", 400, None, "model is missing"),
     (b'{"model": llama}', 400, None, "the body is not JSON: Expecting value: line 1 column 11 (char 10); send a JSON"),
     (b"model=llama&n=1", 400, None, "the body is not JSON: Expecting value: line 1 column 1 (char 0); send a JSON"),
     (b'{"messages": [', 400, None, "the body is not JSON: "), (b'{"messages": NaN}', 400, None, "model is missing"),
     (b'{"a":' + b"[" * (1 << 18), 413, None, "brackets come before the model; send the model first"),
     (b'{"model":"' + b"x" * (1 << 17) + b'"}', 404, "model_not_found", "xxx' does not exist"),
     (body_of("team/qwen"), 401, "invalid_api_key", "needs a token")],
)  # fmt: skip
def test_what_cannot_be_routed_gets_an_error_of_openai(body: bytes, status: int, code: str | None, words: str) -> None:
    async def case(bed: Bed) -> None:
        await models(bed)
        got = await bed.ask("POST", CHAT, body)
        error = json.loads(got.body)["error"]
        assert (got.status, error["code"]) == (status, code)
        assert words in error["message"]

    play(case, AccessAdmission())


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [("iris@prev", "", "is not listed at /v1: use /iris/…, or list it by the annotation pilotlight.dev/model-names"),
     ("default/iris", "", "is not listed at /v1: use /iris/…"),
     ("team/iris", "secret", "is not listed at /v1: use /team/iris/…"),
     ("team/chat", "secret", "does not exist; the service of this name has team/qwen, team/q"),
     *[(name, "", "does not exist; GET /v1/models lists the models") for name in ("team/iris", "team/chat")],
     *[(name, "secret", "does not exist; there are team/q, team/qwen") for name in ("iris-predictor", "")]],
)  # fmt: skip
def test_a_service_that_is_not_listed_is_named_to_those_who_may_call_it(name: str, token: str, message: str) -> None:
    async def case(bed: Bed) -> None:
        bed.publish(
            route("iris"), route("iris-predictor", internal=True), route("iris", namespace="team", access=SECRET),
            route("chat", namespace="team", models=("qwen", "q"), access=SECRET),
        )  # fmt: skip
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        replies = [await bed.ask("POST", CHAT, body_of(name), headers)]
        if name:
            replies.append(await bed.ask("GET", f"/v1/models/{quote(name, safe='')}", b"", headers))
        for got in replies:
            error = json.loads(got.body)["error"]
            assert (got.status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert error["message"].startswith(f"model '{name}' {message}")

    play(case, AccessAdmission())


@pytest.mark.parametrize(
    ("method", "path", "shown"),
    [("GET", "/v1/nothing?x=1", "/v1/nothing"), ("GET", "/v1", "/v1"), ("GET", "/v1/", "/v1"), ("GET", CHAT, CHAT),
     ("POST", "/v1/nothing", "/v1/nothing"), ("HEAD", "/v1/nothing", "")],
)  # fmt: skip
def test_an_unknown_route_without_a_model_names_the_routes(method: str, path: str, shown: str) -> None:
    async def case(bed: Bed) -> None:
        await models(bed)
        got = await bed.ask(method, path, b"{}" if method == "POST" else b"")
        assert got.status == 404
        if method == "HEAD":
            return
        error = json.loads(got.body)["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
        assert error["message"].startswith(
            f"{method} {shown}: no such route; there are GET /v1/models and POST /v1/chat"
        )

    play(case, AccessAdmission())


def test_a_name_of_two_services_reaches_the_one_that_the_documents_name() -> None:
    law = RouteAdapter("law", "chat-law")
    beta = route("beta", models=("beta", "gpt-4o", "law"))
    alpha = route("alpha", models=("alpha", "gpt-4o", "beta"), adapters=(law,))
    for order in ([alpha, beta], [beta, alpha]):
        found = ModelRoutes(order)
        assert [match and match.key[1] for match in map(found.find, ("gpt-4o", "beta", "law"))] == [
            "alpha", "beta", "alpha"
        ]  # fmt: skip


def test_a_body_without_a_model_goes_to_the_only_one() -> None:
    async def case(bed: Bed) -> None:
        only = await bed.origin()
        bed.publish(route("llama", backend("llama-1", only), models=("llama", "alias")))
        assert (await bed.ask("POST", CHAT, b'{"messages": []}')).status == 200
        assert only.seen[0].body == b'{"messages": []}'

    play(case)


def test_a_long_body_streams_once_its_model_is_known() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin(whole=False)
        bed.publish(route("llama", backend("llama-1", origin), models=("llama", "alias")))
        reader, writer = await bed.connect()
        start = b'{"messages": ["' + b"x" * (3 << 20) + b'"], "model": "alias", "more": "'
        end = b"y" * (2 << 20) + b'"}'
        path = "/v1/responses"  # of chats, some MiB more are held, for their usage
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(start + end)}\r\n\r\n"
        writer.write(head.encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(start)
        await eventually_async(lambda: origin.seen, "the replica gets the request before its body is complete")
        assert int(origin.seen[0].headers["content-length"]) == len(start + end)  # of `llama`, as long as `alias`
        assert "expect" not in origin.seen[0].headers
        writer.write(end)
        assert (await read_answer(reader)).status == 200
        assert bed.plane.buffer_budget.used == 0

    play(case)


def test_who_may_call_no_model_fills_no_memory() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin(engine)
        bed.publish(route("llama", backend("llama-1", origin), models=("llama",), access=SECRET))
        reader, writer = await bed.connect()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {8 << 20}\r\n\r\n"
        writer.write(head.encode() + b'{"messages": "' + b"x" * (2 << 20))
        refused = await read_answer(reader)
        assert (refused.status, refused.headers["connection"]) == (400, "close")
        assert "no model is deployed that this client may call" in json.loads(refused.body)["error"]["message"]
        assert bed.plane.buffer_budget.used == 0

    play(case, AccessAdmission())


def test_a_model_at_zero_is_woken_and_its_request_is_held() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("llama", backend("llama-1"), models=("llama",)))
        asked = asyncio.create_task(bed.ask("POST", CHAT, body_of("llama")))
        await eventually_async(lambda: bed.wakes, "a wake-up")
        assert bed.wakes[0].name == "llama"
        hurried = await bed.ask("POST", CHAT, body_of("llama"), {"X-Pilotlight-Hold-Timeout": "0.01"})
        assert (hurried.status, json.loads(hurried.body)["error"]["type"]) == (503, "server_error")
        bed.publish(route("llama", backend("llama-1", await bed.origin(engine)), models=("llama",)))
        got = await asked
        assert got.status == 200
        assert int(got.headers["x-pilotlight-cold-start"]) >= 0

    play(case)


def test_openai_s_package_works_with_the_one_address() -> None:
    async def case(bed: Bed) -> None:
        await models(bed)
        url = f"http://127.0.0.1:{bed.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            assert [model.id async for model in client.models.list()] == ["gpt-4o", "llama", "phi"]
            messages: Any = [{"role": "user", "content": "hello"}]
            whole = await client.chat.completions.create(model="gpt-4o", messages=messages)
            assert whole.usage is not None
            assert (whole.choices[0].message.content, whole.usage.total_tokens) == ("hello", 4)
            assert whole.model == "gpt-4o"
            stream = await client.chat.completions.create(model="llama@canary", messages=messages, stream=True)
            chunks = [chunk async for chunk in stream]
            assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == "hello there"
            assert {chunk.model for chunk in chunks} == {"llama@canary"}
            with pytest.raises(openai.NotFoundError, match="did you mean llama") as unknown:
                await client.chat.completions.create(model="lama", messages=messages)
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")

    play(case, AccessAdmission())


def test_prompts_go_to_the_replica_that_has_their_prefix() -> None:
    async def case(bed: Bed) -> None:
        replicas = [await bed.origin(engine) for _ in range(3)]
        bed.publish(route("llama", backend("llama-1", *replicas), models=("llama",)))
        for path in (CHAT, "/llama/v1/chat/completions"):
            for session in ("a", "b", "c"):
                text = f"{path} {session} " * 60
                for turn in range(4):
                    body = body_of("llama", prompt=text + "more " * 60 * turn)
                    assert (await bed.ask("POST", path, body)).status == 200
        prompts = [{json.loads(seen.body)["prompt"][:40] for seen in replica.seen} for replica in replicas]
        assert sorted(map(len, prompts)) == [2, 2, 2]
        assert len(set.union(*prompts)) == 6

    play(case)


def test_requests_in_one_write_go_each_to_its_model_and_a_malformed_one_ends_the_connection() -> None:
    async def case(bed: Bed) -> None:
        await models(bed)
        speech = await bed.origin()
        routes = [live.route for live in bed.plane.routing.routes.values()]
        bed.publish(*routes, route("whisper", backend("whisper-1", speech), models=("whisper", "whisper-large")))
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\r\n'
        form += b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-large\r\n--b--\r\n'

        def written(path: str, body: bytes, kind: str, length: int | None = None) -> bytes:
            size = len(body) if length is None else length
            return (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n".encode()
                + body
            )

        reader, writer = await bed.connect()
        chunked = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        short = body_of("llama")
        writer.write(
            written(CHAT, body_of("gpt-4o"), "application/json")
            + written("/v1/audio/transcriptions", form, "multipart/form-data; boundary=b")
            + written(CHAT, short + b"more", "application/json", len(short))  # the rest is no request
        )
        assert json.loads((await read_answer(reader)).body)["model"] == "gpt-4o"
        assert (await read_answer(reader)).status == 200
        assert speech.seen[0].body == form.replace(b"whisper-large", b"whisper")
        assert (await read_answer(reader)).status == 200
        writer.write(b"\r\n\r\n")
        assert (await read_answer(reader)).status == 400
        assert await reader.read() == b""
        for bad in (b"zz\r\n", b"-1\r\n", b'5\r\n{"modxx\r\n'):
            got = await bed.ask_raw(chunked + bad, "POST")
            assert (bad, got.status, got.headers["connection"]) == (bad, 400, "close")

    play(case, AccessAdmission())
