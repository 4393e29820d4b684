"""The fault suite itself: its client sees what is wrong, its page has every row, its model is checked."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.reliability.__main__ import TABLE
from tests.reliability.load import Counts, Load
from tests.reliability.page import PAGE, markdown
from tests.reliability.scenario import Scenario
from tests.reliability.table import Outcome, Row, Unavailable, execute

Answer = Callable[[int], bytes]


def reply(value: float, status: str = "200 OK") -> bytes:
    body = json.dumps({"outputs": [{"data": [value, 1, 0]}]}).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def load_on(answer: Answer, timeout_s: float) -> Counts:
    """What the client counts on a server that answers number n with `answer(n)`, and closes where that is empty."""

    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                number = int(json.loads(await reader.readexactly(length))["id"])
                if not (answered := answer(number)):
                    break
                writer.write(answered)
        except (EOFError, ConnectionError):
            pass
        writer.close()

    async def main() -> Counts:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with Load(server.sockets[0].getsockname()[1], rate=100, timeout_s=timeout_s) as load:
            while load.counts.sent < 10:
                await asyncio.sleep(0.01)
        server.close()
        await asyncio.gather(*handlers)
        return load.counts

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda number: reply(2 * number + 1), "right"),
        (lambda number: reply(2 * number + 3), "wrong"),
        (lambda number: reply(2 * number + 1, "503 Service Unavailable"), "refused"),
        (lambda _: b"", "reset"),
        (lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "lost"),
    ],
)
def test_the_client_tells_right_from_wrong_refused_reset_and_lost(answer: Answer, kind: str) -> None:
    counts = load_on(answer, 0.5 if kind == "lost" else 60.0)
    assert counts.sent >= 10
    assert getattr(counts, kind) == counts.sent


def test_a_closed_port_counts_as_lost() -> None:
    async def main() -> Counts:
        async with Load(free_port(), rate=100) as load:
            await asyncio.sleep(0.1)
        return load.counts

    counts = asyncio.run(main())
    assert counts.lost == counts.sent > 0


def test_a_request_that_was_executed_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "executed").write_text("1\n2\n3\n2\n")
    assert Scenario(tmp_path).executed_twice() == [2]


def test_what_a_row_misses_raises_or_needs_becomes_its_verdict(tmp_path: Path) -> None:
    async def misses(run: Scenario) -> None:
        run.expect(False, "two replicas")

    async def raises(run: Scenario) -> None:
        raise OSError("no such process")

    async def needs(run: Scenario) -> None:
        raise Unavailable("root")

    outcomes = [execute(Row("r", "g", "f", "e", run), tmp_path, True, 10.0) for run in (misses, raises, needs)]
    assert [outcome.verdict for outcome in outcomes] == ["missed", "missed", "not run: needs root"]
    assert [outcome.missed for outcome in outcomes] == [["two replicas"], ["OSError: no such process"], []]


def test_the_page_shows_counts_verdicts_and_what_was_missed() -> None:
    row = TABLE[0]
    record = vars(Outcome(row, missed=["3 wrong"])) | {"date": "2026-01-01", "commit": "abc", "verdict": "missed"}
    record["counts"] = vars(Counts(10, 7, 3, 0, 0, 0))
    text = markdown(TABLE, {row.name: record}, "2 cores")
    assert "| 10 | 7 | 3 | 0 | 0 | 0 | 0.0 | missed |" in text
    assert f"- `{row.name}`: 3 wrong" in text
    assert text.count("| not run |") == len(TABLE) - 1


def test_the_published_page_has_every_row() -> None:
    published = PAGE.read_text()
    assert not [row.name for row in TABLE if f"| `{row.name}` |" not in published]
