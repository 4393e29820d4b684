"""Who is not admitted is told so before its body is read, and no replica hears of it."""

from collections.abc import Callable, Mapping

from tests.platform.gateway.bed import Bed, backend, error_of, play, read_answer, route

from pilotlight.gateway.proxy.responses import ErrorResponse
from pilotlight.gateway.routing_table import Route
from pilotlight.wire.service_access import Refusal


class OnlyFriends:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def admit(
        self, route: Route, headers: Mapping[str, str], peer: str, client: str | Refusal | None = None
    ) -> ErrorResponse | None:
        self.asked.append((route.name, peer))
        if headers.get("authorization") == "Bearer friend":
            return None
        return ErrorResponse(401, "say who you are", {"WWW-Authenticate": "Bearer"})

    def allows(self, headers: Mapping[str, str]) -> Callable[[Route], bool]:
        raise AssertionError("nothing is listed")

    def authenticate(self, route: Route, headers: Mapping[str, str]) -> str | Refusal:
        return ""


def test_a_refusal_is_the_answer_and_every_request_is_asked_about() -> None:
    gate = OnlyFriends()

    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        for _ in range(2):  # the second head is known already, and judged anew all the same
            writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
            refused = await read_answer(reader)
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert error_of(refused) == "say who you are"
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer friend\r\n\r\n")
        assert (await read_answer(reader)).status == 200
        assert gate.asked == [("iris", "127.0.0.1")] * 3
        assert len(origin.seen) == 1

    play(case, gate)


def test_a_body_that_nobody_will_read_does_not_keep_the_refusal_from_its_client() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n")
        refused = await read_answer(reader)
        assert (refused.status, refused.headers["connection"]) == (401, "close")
        writer.write(b"x" * 1_000_000)
        assert await reader.read() == b""
        assert origin.seen == []

    play(case, OnlyFriends())


def test_a_websocket_is_asked_about_too() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        refused = await bed.ask("GET", "/iris/x", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
        assert refused.status == 401
        assert origin.seen == []

    play(case, OnlyFriends())
