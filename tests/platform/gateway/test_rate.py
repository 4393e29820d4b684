"""How often a client may ask: buckets that fill with time, one for each client, in bounded memory."""

import hashlib
from pathlib import Path

from tests.platform.gateway.linked import ask, in_loop, linked, replica, route

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.routing_table import Route
from pilotlight.wire.service_access import Access, Rate, team_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_client_is_its_token_wherever_it_comes_from_and_else_its_address() -> None:
    clock = Clock()
    gate = AccessAdmission(clock=clock)
    tokens = Access(tuple(hashlib.sha256(word).hexdigest() for word in (b"ada", b"bob")))
    named = Route("default", "iris", access=tokens, rate=Rate(1, 60.0))
    nameless = Route("default", "open", rate=Rate(1, 60.0))

    def status(route: Route, token: str, peer: str) -> int:
        refusal = gate.admit(route, {"authorization": f"Bearer {token}"} if token else {}, peer)
        return refusal.status if refusal else 200

    assert [status(named, "ada", "192.0.2.1"), status(named, "ada", "192.0.2.2")] == [200, 429]
    assert status(named, "bob", "192.0.2.1") == 200
    assert gate.authenticate(named, {"authorization": "Bearer bob"}) == f"token:{tokens.tokens[1][:16]}"
    search = Route("default", "iris", access=Access((f"search/bob={tokens.tokens[1]}",)))
    caller = gate.authenticate(search, {"authorization": "Bearer bob"})
    assert isinstance(caller, str)
    assert (caller, team_of(caller)) == ("search/bob", "search")
    assert [status(nameless, "", "192.0.2.1"), status(nameless, "", "192.0.2.1")] == [200, 429]
    assert status(nameless, "", "192.0.2.2") == 200
    clock.now += 60
    assert status(named, "ada", "192.0.2.1") == 200


def test_a_refused_token_costs_its_owner_nothing_and_every_refusal_is_counted() -> None:
    refused: list[tuple[str, str]] = []
    gate = AccessAdmission(lambda route, reason: refused.append((route.name, reason)), clock=Clock())
    limited = Route("default", "iris", access=Access((hashlib.sha256(b"ada").hexdigest(),)), rate=Rate(1, 60.0))
    assert gate.admit(limited, {"authorization": "Bearer wrong"}, "192.0.2.1") is not None
    assert gate.admit(limited, {"authorization": "Bearer ada"}, "192.0.2.1") is None
    assert gate.admit(limited, {"authorization": "Bearer ada"}, "192.0.2.1") is not None
    assert refused == [("iris", "unauthorized"), ("iris", "rate")]


@in_loop
async def test_too_many_requests_are_told_when_to_come_back_on_any_way(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config, rate=Rate(2, 3600.0)), route(one.config, name="free"))
        assert [(await ask(made.port, path)).status for path in ("/iris/", "/default/iris@canary/")] == [200, 200]
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        for path, headers in (("/iris/", {}), ("/iris@canary/", {}), ("/iris/ws", upgrade)):
            reply = await ask(made.port, path, headers)
            assert reply.status == 429
            assert 0 < int(reply.headers["retry-after"]) <= 1800
            assert "allows each client 2 requests in 3600 s" in reply.json()["error"]
        assert (await ask(made.port, "/free/")).status == 200
        assert len(one.asked) == 3
        page = (await ask(made.port, "/metrics")).body.decode()
        refused = (
            'pilotlight_gateway_requests_refused_total{namespace="default",inference_service="iris",reason="rate"} 3'
        )
        assert refused in page.splitlines()
