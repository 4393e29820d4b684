"""Probes prove something only where the example is one that the stable side can answer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from msgspec.structs import replace
from tests.platform.canaries.runner.conftest import KEY, iris
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current, runner, shares, wanted
from tests.platform.canaries.runner.test_no_data import TICKS, until_it_stops, with_policy

from pilotlight.canaries.probes import MAX_ROUND_S
from pilotlight.canaries.runner import apply_release
from pilotlight.canaries.start_request import CanaryRequest, start
from pilotlight.spec.canary_policy import Check, parse_policy
from pilotlight.targets.target import RevisionStatus

ABOUT = json.dumps({"name": KEY[1], "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}).encode()


@contextmanager
def answering(
    target: PaperTarget, codes: dict[str, int], sent: set[tuple[str, str]] | None = None, takes_s: float = 0.0
) -> Iterator[list[str]]:
    """Its revisions answer over HTTP, with these codes, and count it; gives the revisions as they were asked. An answer
    takes so much of the target's time."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, ABOUT)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            _, revision, path = self.path.split("/", 2)
            (sent if sent is not None else set()).add((path, body))
            asked.append(revision)
            target.seconds += takes_s
            target.wrong[revision] = float(codes[revision] >= 500)
            target.serve(revision, 1)
            self._answer(codes[revision], b"{}")

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        rows = target.rows
        base = f"http://127.0.0.1:{server.server_port}"

        def reachable() -> tuple[RevisionStatus, ...]:
            return tuple(replace(row, url=f"{base}/{row.name}") for row in rows())

        target.rows = reachable  # type: ignore[method-assign]
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def quiet() -> PaperTarget:
    return with_policy(checks=(Check("error_rate", maximum=0.01),))


def test_a_model_that_fails_at_zeros_in_both_revisions_is_not_rolled_back_for_it() -> None:
    target = quiet()
    canary = current(target)
    with answering(target, {canary.revision: 500, canary.stable: 500}) as asked:
        assert until_it_stops(target) == "Paused"
    assert f"{canary.stable}, which is serving, responds with 500" in current(target).reason
    assert asked == [canary.stable]


def test_a_request_that_is_refused_proves_nothing_good_either() -> None:
    target = quiet()
    canary = current(target)
    with answering(target, {canary.revision: 400, canary.stable: 400}):
        assert until_it_stops(target) == "Paused"


def test_a_canary_that_alone_fails_at_the_example_is_rolled_back() -> None:
    target = quiet()
    canary = current(target)
    with answering(target, {canary.revision: 500, canary.stable: 200}):
        assert until_it_stops(target) == "RolledBack"
    assert shares(target) == {canary.stable: 100}


@pytest.mark.parametrize(
    ("settings", "names"),
    [({}, "error_rate, p50_ms, p99_ms"), ({"check": "p90_ms<9"}, "p90_ms"), ({"promql": "up=up", "max": "up=1"}, "")],
)
def test_a_canary_of_an_engine_on_a_cluster_is_warned_that_its_own_checks_have_no_data(
    settings: dict[str, str], names: str
) -> None:
    documents = (iris("s3://m/a.gguf", most=most, form="gguf") for most in (2, 3))
    old, new = (each.replace("      protocolVersion: v2\n", "") for each in documents)
    target, said = PaperTarget(), list[str]()
    apply_release(target, wanted(old))
    start(CanaryRequest(wanted(new), parse_policy(settings)), target, lambda _: None, said.append)
    fix = "; measure it with --promql, --max and --min-requests 0: docs/how-to/canary.md#engines"
    revision = current(target).revision
    told = f"warning: {names} of {revision} will have no data: it is not Pilotlight's predictor{fix}"
    assert [each for each in said if "cannot be queried" not in each] == ([told] if names else [])


@pytest.mark.parametrize(
    ("example", "path"),
    [
        ('{"inputs": []}', f"v2/models/{KEY[1]}/infer"),
        ('{"instances": [[5.1, 3.5, 1.4, 0.2]]}', f"v1/models/{KEY[1]}:predict"),
        ('{"model": "m", "messages": []}', "v1/chat/completions"),
        ('{"prompt": "Once"}', "v1/completions"),
        ('{"input": "a sentence"}', "v1/embeddings"),
    ],
)
def test_probes_send_the_example_that_was_given_in_its_own_dialect(example: str, path: str) -> None:
    target = with_policy(checks=(Check("error_rate", maximum=0.01),), example=example)
    canary = current(target)
    sent = set[tuple[str, str]]()
    with answering(target, {canary.revision: 200, canary.stable: 200}, sent):
        assert until_it_stops(target) == "Promoted"
    assert sent == {(path, example)}


def test_an_example_that_the_stable_side_refuses_is_named() -> None:
    target = with_policy(checks=(Check("error_rate", maximum=0.01),), example='{"inputs": []}')
    canary = current(target)
    with answering(target, {canary.revision: 400, canary.stable: 400}):
        assert until_it_stops(target) == "Paused"
    assert "responds with 400 to the example" in current(target).reason


def test_a_canary_that_nobody_asks_is_promoted_by_its_probes() -> None:
    target = quiet()
    canary = current(target)
    with answering(target, {canary.revision: 200, canary.stable: 200}) as asked:
        assert until_it_stops(target) == "Promoted"
    assert asked.count(canary.revision) >= canary.policy.min_requests


def test_a_round_of_slow_probes_ends_in_time_and_reaches_both_sides() -> None:
    """Who holds the canary says nothing meanwhile, and is thought dead after a while."""
    target = with_policy(compare="baseline", checks=())
    canary, ticking = current(target), runner(target)
    with answering(target, {canary.revision: 200, canary.stable: 200}, takes_s=4.0) as asked:
        for _ in range(TICKS):
            target.pass_time(10.0, 0)
            begun = target.seconds
            ticking.tick(KEY)
            if asked:
                break
    assert target.seconds - begun <= MAX_ROUND_S + 4.0
    first, *probes = asked
    assert first == canary.stable, "whether the example is one"
    assert min(probes.count(canary.revision), probes.count(canary.stable)) >= 2
