"""The embedded platform's benchmark: its arithmetic, its documents and its report, without a platform."""

import asyncio
from pathlib import Path

import pytest
import yaml
from bench.embedded import crowd
from bench.embedded.__main__ import write
from bench.embedded.report import SUBJECT, headlines, markdown, missed, table
from bench.embedded.services import gateway_path, names
from bench.embedded.services import write as write_services
from bench.models import Model, Payload
from bench.readme import newest_result
from bench.rounds import BENCHMARK, Result

MACHINE = {
    "cpu": "A CPU", "cores": "2", "memory": "8 GiB", "kernel": "Linux 6", "arch": "x86_64", "python": "3.11.7",
    "load_before": "0.10",
}  # fmt: skip


def result(**figures: list[float]) -> Result:
    made = Result("2030-01-02T03:04:05+00:00", MACHINE, True, 3.0, 3, benchmark=SUBJECT)
    for figure, values in figures.items():
        for value in values:
            made.add(SUBJECT, {figure.replace("__", "."): value})
    return made


@pytest.mark.parametrize(
    ("counts", "index", "least"),
    [([5, 5, 5, 5], 1.0, 1.0), ([4, 0, 0, 0], 0.25, 0.0), ([3, 1], 0.8, 0.5), ([0, 0], 0.0, 0.0)],
)
def test_shares_are_told_by_jains_index_and_by_the_worst_off(counts: list[int], index: float, least: float) -> None:
    assert crowd.fairness_index(counts) == pytest.approx(index)
    assert crowd.least_share(counts) == pytest.approx(least)


def test_medians_stand_beside_what_was_promised_and_what_is_missed_is_named() -> None:
    made = result(cold__pilot_s=[0.1, 0.2, 0.9], cold__plain_s=[0.6, 0.7], gateway__kept_percent=[55.0])
    lines = table(made).splitlines()
    assert "| the same with the pilot light: s | **0.200** | 0.100 … 0.900 | ≤ 0.25 |" in lines
    assert "| cold start, 0 → first byte: s | **0.650** | 0.600 … 0.700 | ≤ 0.5 (missed) |" in lines
    assert missed(made) == ["throughput kept by the gateway: %", "cold start, 0 → first byte: s"]
    assert "load average before: 0.10" in markdown(made)


def test_failed_requests_are_counted_in_every_case() -> None:
    made = result(direct__errors=[0, 1], gateway__errors=[2], crowd__errors=[3])
    assert table(made).splitlines()[-1].startswith("| failed requests | 6 |")


def test_the_documents_are_services_of_their_own(tmp_path: Path) -> None:
    model = Model("iris", tmp_path / "iris.onnx", (4,))
    documents = list(yaml.safe_load_all(write_services(tmp_path / "all.yaml", names("s", 3), model).read_text()))
    assert [document["metadata"]["name"] for document in documents] == ["s-000", "s-001", "s-002"]
    assert {document["spec"]["predictor"]["model"]["storageUri"] for document in documents} == {str(model.path)}


def test_the_readme_goes_on_showing_the_peers(tmp_path: Path) -> None:
    stem = write(result(cold__pilot_s=[0.1]), tmp_path)
    assert stem.name == "2030-01-02-x86_64-2core-embedded"
    (tmp_path / "2029-peers.json").write_text('{"benchmark": "peers", "date": "2029"}')
    assert newest_result(tmp_path, BENCHMARK).name == "2029-peers.json"


def test_headlines_are_medians_of_the_result_and_link_to_the_rest() -> None:
    figures: dict[str, list[float]] = {"cold__pilot_s": [0.06], "cold__plain_s": [0.3, 0.5], "deploy__ready_s": [0.5]}
    figures |= {
        "zero__services": [200],
        "gateway__added_p50_ms": [0.071],
        "gateway__kept_percent": [71],
        "direct__c32__rps": [20302],
    }
    text = headlines(result(**figures, zero__memory_mb=[60], zero__cpu_percent=[0]), "all.md")
    assert "[all figures](all.md)" in text
    assert "| the same without the pilot light (a new process) | 0.400 s |" in text
    assert "| throughput through the gateway, of the 20,302 requests/s of a one-core predictor | 71 % |" in text
    assert "| 200 services at zero: platform without the pilot light | 60 MB, 0.00 % of a core |" in text


def test_each_connection_of_the_crowd_counts_its_own_answers() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                status = b"503 No" if gateway_path("bad").encode() in head else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 3\r\n\r\nyes")
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()  # also where the loop ends before it has heard of the client's end

    async def both() -> list[crowd.Share]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await crowd._load(port, ["good", "bad"], Payload(b"{}", ()), 0.1)
        finally:
            server.close()

    good, bad = asyncio.run(both())
    assert good.answers > 0
    assert good.errors == bad.answers == 0
    assert bad.errors > 0
