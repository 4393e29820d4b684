"""Adapters by the gateway's one `/v1`: each is a model of its own on the replicas of its base model."""

import json
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.bed import (
    Bed,
    Clock,
    backend,
    looked,
    play,
    read_answer,
    route,
)  # fmt: skip
from tests.platform.gateway.openai_engine import CHAT, LORA, NO_LORA, SECRET, body_of, engine

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.routing_table import RouteAdapter


async def adapters(bed: Bed, *more: RouteAdapter) -> None:
    """A service `llama` of a team with the adapter `law`, whose requests two versions share, and others."""
    replicas = [await bed.origin(engine) for _ in range(3)]
    split = (RouteAdapter("law", "law-1", percent=75), RouteAdapter("law", "law-2", percent=25), *more)
    fields = {"namespace": "team", "models": ("llama",), "adapters": split, "access": SECRET}
    bed.publish(route("llama", backend("llama-1", *replicas), **fields))


def sent(bed: Bed) -> list[dict[str, Any]]:
    return [json.loads(seen.body) for origin in bed._origins for seen in origin.seen]


@pytest.mark.parametrize(("path", "prefix"), [(CHAT, "team/"), ("/team/llama/v1/chat/completions", "")])
def test_an_adapter_is_a_model_of_its_own_whose_versions_share_its_requests(path: str, prefix: str) -> None:
    async def case(bed: Bed) -> None:
        await adapters(bed, RouteAdapter("gguf", "llama", LORA))
        headers = {"Authorization": "Bearer secret"}
        replies = [await bed.ask("POST", path, body_of(f"{prefix}law"), headers) for _ in range(8)]
        assert {json.loads(reply.body)["model"] for reply in replies} == {f"{prefix}law"}
        versions = sorted(each["model"] for each in sent(bed))
        assert versions == sorted(reply.headers["x-pilotlight-revision"] for reply in replies)
        assert versions == ["law-1"] * 6 + ["law-2"] * 2
        one = await bed.ask("POST", path, body_of(f"{prefix}law@law-2"), headers)
        assert (json.loads(one.body)["model"], one.headers["x-pilotlight-revision"]) == (f"{prefix}law@law-2", "law-2")
        assert (await bed.ask("POST", path, body_of(f"{prefix}gguf"), headers)).status == 200
        assert (await bed.ask("POST", path, body_of("team/llama" if prefix else "llama"), headers)).status == 200
        assert (await bed.ask("POST", path, body_of(f"{prefix}law"))).status == 401
        others = [each for each in sent(bed) if each["model"] == "llama"]
        assert sorted(others, key=len) == [
            {"messages": [], "model": "llama"}, {"messages": [], "model": "llama", "lora": [{"id": 0, "scale": 1.0}]},
        ]  # fmt: skip
        counts = {each.revision: each.requests for each in bed.plane.report(bed.plane.clock()).adapters}
        assert counts == {"law-1": 6, "law-2": 3, "llama": 1}

    play(case, AccessAdmission())


@pytest.mark.parametrize("path", [CHAT, f"/llama{CHAT}"])
def test_versions_of_an_adapter_share_requests_that_come_in_pieces(path: str) -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin(engine)
        split = tuple(RouteAdapter("law", f"law-{each}", percent=50) for each in (1, 2))
        bed.publish(route("llama", backend("llama-1", origin), models=("llama",), adapters=split))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n".encode()
        for _ in range(4):
            reader, writer = await bed.connect()
            writer.write(head + b'{"model": "law", \r\n')
            await eventually_async(lambda: bed.plane.buffer_budget.used, "the first piece is there")
            writer.write(b'7\r\n"n": 1}\r\n0\r\n\r\n')
            assert (await read_answer(reader)).status == 200
        assert sorted(each["model"] for each in sent(bed)) == ["law-1"] * 2 + ["law-2"] * 2

    play(case)


@pytest.mark.parametrize("path", [CHAT, f"/llama{CHAT}"])
def test_the_base_model_of_an_engine_that_applies_adapters_to_all_is_asked_for_none(path: str) -> None:
    async def case(bed: Bed) -> None:
        adapters = (RouteAdapter("law", "llama", LORA, base_fields=NO_LORA),)
        bed.publish(route("llama", backend("llama-1", await bed.origin(engine)), models=("llama",), adapters=adapters))
        for body in (b'{"model": "law"}', b'{"model": "llama"}', b'{"n": 1}', b"[1]", b""):
            assert (await bed.ask("POST", path, body)).status in (200, 502)  # the engine here reads objects alone
        bodies = [seen.body for origin in bed._origins for seen in origin.seen]
        none = [{"id": 0, "scale": 0.0}]
        assert [json.loads(body) for body in bodies[:3]] == [
            {"model": "llama", "lora": [{"id": 0, "scale": 1.0}]}, {"model": "llama", "lora": none},
            {"n": 1, "lora": none},
        ]  # fmt: skip
        assert bodies[3] == b"[1]"

    play(case)


def test_adapters_are_listed_with_their_base_model_and_a_body_without_a_model_gets_that() -> None:
    async def case(bed: Bed) -> None:
        await adapters(bed)
        headers = {"Authorization": "Bearer secret"}
        listed = json.loads((await bed.ask("GET", "/v1/models", b"", headers)).body)["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [
            ("team/law", "team/llama"),
            ("team/llama", None),
        ]
        assert (await bed.ask("POST", CHAT, b'{"messages": [], "n": 1}', headers)).status == 200
        assert sent(bed) == [{"messages": [], "n": 1}]
        assert json.loads((await bed.ask("GET", "/v1/models", b"")).body)["data"] == []

    play(case, AccessAdmission())


def test_an_adapter_of_a_hidden_base_model_is_listed_without_a_parent() -> None:
    async def case(bed: Bed) -> None:
        replica = await bed.origin(engine)
        bed.publish(route("llama", backend("llama-1", replica), adapters=(RouteAdapter("law", "law-1"),)))
        listed = json.loads((await bed.ask("GET", "/v1/models", b"")).body)["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [("law", None)]
        assert (await bed.ask("POST", CHAT, body_of("law"))).status == 200
        assert (await bed.ask("POST", "/llama/v1/chat/completions", body_of("llama"))).status == 200

    play(case)


def test_clients_neither_load_nor_unload_adapters_of_an_engine() -> None:
    async def case(bed: Bed) -> None:
        await adapters(bed)
        calls = "v1/unload_lora_adapter", "v1/load%5Flora_adapter/", "load_lora_adapter_from_tensors"
        for path in ("/v1/load_lora_adapter", *(f"/team/llama/{call}" for call in calls)):
            assert (await bed.ask("POST", path, body_of("team/law"), {"Authorization": "Bearer secret"})).status == 403
        assert sent(bed) == []

    play(case, AccessAdmission())


def test_each_adapter_has_prefixes_of_its_own() -> None:
    async def case(bed: Bed) -> None:
        replicas = [await bed.origin(engine) for _ in range(3)]
        split = tuple(RouteAdapter(name, name) for name in ("law", "tax"))
        bed.publish(route("llama", backend("llama-1", *replicas), models=("llama",), adapters=split))
        for model in ("llama", "law", "tax") * 3:
            assert (await bed.ask("POST", CHAT, body_of(model, prompt="the same words " * 60))).status == 200
        seen = [{json.loads(each.body)["model"] for each in replica.seen} for replica in replicas]
        assert sorted(map(sorted, seen)) == [["law"], ["llama"], ["tax"]]

    play(case)


@pytest.mark.parametrize(("path", "seconds"), [(CHAT, 60.0), (f"/llama{CHAT}", 120.0)])
def test_a_body_that_does_not_show_its_adapter_in_time_ends(path: str, seconds: float) -> None:
    clock = Clock()

    async def case(bed: Bed) -> None:
        adapters = (RouteAdapter("law", "law-1"),)
        bed.publish(route("llama", backend("llama-1", await bed.origin(engine)), models=("llama",), adapters=adapters))
        reader, writer = await bed.connect()
        writer.write(f'POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{{"messages":'.encode())
        await eventually_async(lambda: bed.plane.buffer_budget.used, "the beginning of the body")
        clock.now += seconds - 1
        await looked(bed)
        assert bed.plane.buffer_budget.used
        clock.now += 2
        assert (await read_answer(reader)).status == 408
        assert bed.plane.buffer_budget.used == 0

    play(case, clock=clock)
