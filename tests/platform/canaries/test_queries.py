"""What is asked about a revision, answered by our own evaluator and by Prometheus' own, and read as counts."""

import json
import math
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.judges import prometheus
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent

from pilotlight.canaries import analysis, queries
from pilotlight.canaries.queries import MetricScope, Missing, ObservedCounts, QueryAnswer, QueryName
from pilotlight.spec.canary_policy import CanaryPolicy, Check
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator, supported

POLICY = CanaryPolicy(compare="baseline", checks=(Check("mean_ms", maximum=5.0), Check("rps", minimum=1.0)))
NEW = MetricScope("ml", "iris", "iris-2", 120.0, 90.0, 120.0)
METRIC = "pilotlight_request_duration_seconds"
STEP_S = 15


class Element(NamedTuple):
    labels: dict[str, str]
    value: float


class Counter(NamedTuple):
    """One series of one replica: its values at each scrape; None: it was not there."""

    name: str
    labels: dict[str, str]
    values: list[float | None]


def replica(pod: str, revision: str, code: str, requests: list[float | None]) -> list[Counter]:
    """Nine of ten requests took less than 100 ms, all of them less than 500 ms; 50 ms in the mean."""
    labels = {"namespace": "ml", "inference_service": "iris", "revision": revision, "pod": pod, "code": code}

    def times(factor: float) -> list[float | None]:
        return [None if value is None else value * factor for value in requests]

    return [
        Counter(f"{METRIC}_bucket", {**labels, "le": "0.1"}, times(0.9)),
        Counter(f"{METRIC}_bucket", {**labels, "le": "0.5"}, times(1.0)),
        Counter(f"{METRIC}_bucket", {**labels, "le": "+Inf"}, times(1.0)),
        Counter(f"{METRIC}_count", labels, times(1.0)),
        Counter(f"{METRIC}_sum", labels, times(0.05)),
        Counter(
            "pilotlight_requests_in_flight", {**labels, "code": ""}, [None if v is None else 1.0 for v in requests]
        ),
    ]


# Scrapes at 0, 15, … 180 s; the window of 120 s begins at 60 s, when the old replica has counted 400.
OLD = [float(100 * scrape) for scrape in range(13)]
WORLD = [
    *replica("old-a", "iris-1", "200", OLD),
    *replica("old-b", "iris-1", "500", [None] * 8 + [20.0] * 5),  # its first error was scraped with 19 more
    *replica("old-c", "iris-1", "200", [300.0] * 4 + [None] * 9),  # ended before the window, and nobody marked its end
    *replica("new-a", "iris-2", "200", [None] * 5 + [50.0] * 8),  # 50 probes before the first scrape
    *replica("new-b", "iris-2", "503", [None] * 6 + [10.0, 20.0, 30.0] + [None] * 4),  # ended since
    *replica("other", "iris-22", "200", [1000.0] * 13),
]
# Beside them, requests that the gateway had to answer, and some that a server counts without having timed them.
OF_NEW = {"namespace": "ml", "inference_service": "iris", "revision": "iris-2"}
LOST = Counter("pilotlight_gateway_requests_lost_total", {**OF_NEW, "pod": "gateway"}, [None] * 6 + [20.0] * 7)
UNTIMED = Counter(f"{METRIC}_count", {**OF_NEW, "pod": "new-c", "code": "499"}, [None] * 6 + [4.0] * 7)
LOSING = [*WORLD, LOST, UNTIMED]
COUNTS = {"iris-1": (820.0, 20.0), "iris-2": (80.0, 30.0)}


def evaluator(world: list[Counter], asked: list[str]) -> Evaluator:
    found = Evaluator()
    for query in asked:
        found.watch(query)
    for scrape in range(13):
        pods = {each.labels["pod"] for each in world}
        for pod in sorted(pods):
            lines = [
                f"{each.name}{{{written(each.labels)}}} {each.values[scrape]}\n"
                for each in world
                if each.labels["pod"] == pod and each.values[scrape] is not None
            ]
            if lines:
                found.ingest("".join(lines), {"pod": pod}, float(scrape * STEP_S))
    return found


def written(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items() if value)


def answered(world: list[Counter], side: MetricScope, now: float = 180.0) -> dict[QueryName, QueryAnswer]:
    asked = queries.metric_queries(side)
    found = evaluator(world, list(asked.values()))
    return {name: [Element(dict(k), v) for k, v in found.vector(text, now).items()] for name, text in asked.items()}


@pytest.mark.parametrize("revision", COUNTS)
def test_every_request_of_the_window_is_counted_once(revision: str) -> None:
    """Also those before a counter's first scrape, and of a replica that has ended; none of before or of others."""
    side = NEW._replace(revision=revision)
    seen = queries.read_answers(answered(WORLD, side), side)
    assert isinstance(seen, ObservedCounts)
    requests, errors = COUNTS[revision]
    assert (seen.requests, seen.errors) == (requests, errors)
    assert seen.seconds == pytest.approx(requests * 0.05)
    assert seen.buckets == ((0.1, pytest.approx(requests * 0.9)), (0.5, requests), (math.inf, requests))


def test_requests_whose_replica_ended_without_an_answer_are_errors_of_its_revision() -> None:
    answers = answered(WORLD, NEW)
    before, after = (
        queries.read_answers(answers, NEW),
        queries.read_answers({**answers, "lost": [Element({}, 7.0)], "lost before": [Element({}, 3.0)]}, NEW),
    )
    assert isinstance(before, ObservedCounts)
    assert isinstance(after, ObservedCounts)
    assert (after.requests, after.errors) == (before.requests + 4, before.errors + 4)
    assert after.buckets == before.buckets, "nobody knows how long they would have taken"
    assert analysis.metric_value("mean_ms", after) == analysis.metric_value("mean_ms", before)


def test_a_revision_that_answers_nothing_but_loses_requests_is_not_without_any() -> None:
    found = queries.read_answers({"lost": [Element({}, 7.0)]}, NEW, running=False)
    assert isinstance(found, ObservedCounts)
    assert (found.requests, found.errors) == (7, 7)


def test_a_counter_that_starts_anew_makes_nothing_negative() -> None:
    world = replica("old-a", "iris-1", "200", [900.0] * 7 + [5.0] * 6)
    side = NEW._replace(revision="iris-1")
    seen = queries.read_answers(answered(world, side), side)
    assert isinstance(seen, Missing) or seen.requests >= 0


def test_no_request_is_empty() -> None:
    side = NEW._replace(revision="iris-3")
    assert queries.read_answers(answered(WORLD, side), side, running=False).kind == "empty"  # type: ignore[union-attr]


def test_a_replica_that_nobody_asks_is_empty_and_not_stale() -> None:
    world = [each for each in replica("new-a", "iris-2", "200", [1.0] * 13) if "in_flight" in each.name]
    found = queries.read_answers(answered(world, NEW), NEW)
    assert found == Missing("empty", "iris-2 had no requests within 120s")


def test_metrics_that_are_not_scraped_any_more_are_stale() -> None:
    answers = answered(replica("new-a", "iris-2", "200", [50.0] * 5 + [None] * 8), NEW)
    found = queries.read_answers(answers, NEW)
    assert isinstance(found, Missing)
    assert found.kind == "stale"
    assert found.reason.startswith("iris-2 was not scraped for 90 s; is Prometheus up")


def test_what_was_not_scraped_yet_is_not_stale() -> None:
    found = queries.read_answers({}, NEW._replace(observed_s=20.0))
    assert isinstance(found, Missing)
    assert found.kind == "empty"


def test_not_a_number_is_told_apart() -> None:
    answers: dict[QueryName, QueryAnswer] = {"codes": [Element({"code": "200"}, math.nan)], "fresh": [Element({}, 1.0)]}
    found = queries.read_answers(answers, NEW)
    assert isinstance(found, Missing)
    assert found.kind == "nan"


def test_nobody_to_ask_is_told_as_it_was_said() -> None:
    said = Missing("unreachable", "Prometheus cannot be asked")
    assert queries.read_answers({"codes": said, "fresh": []}, NEW) == said


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ([Element({}, 0.5)], 0.5),
        ([Element({}, math.inf)], math.inf),
        ([Element({}, math.nan)], "nan"),
        ([], "empty"),
        ([Element({"a": "1"}, 1.0), Element({"a": "2"}, 1.0)], "unusable"),
        (Missing("unreachable", "no"), "unreachable"),
    ],
)
def test_a_query_of_the_users_own_must_give_one_number(answer: QueryAnswer, value: float | str) -> None:
    found = queries.single_value(answer, "gpu")
    assert (found.kind if isinstance(found, Missing) else found) == value


def test_both_sides_are_asked_about_the_same_time() -> None:
    ours, theirs = queries.metric_scopes("ml", "iris", "new", "old", POLICY, 240.0)
    assert (ours.window_s, theirs.window_s) == (240.0, 240.0)
    assert queries.metric_scopes("ml", "iris", "new", "old", POLICY, 1.0)[0].window_s == 1.0, "nothing of before counts"
    assert queries.metric_scopes("ml", "iris", "new", "old", POLICY, 1e9)[0].window_s == queries.MAX_WINDOW_S


def test_every_check_has_a_query_that_a_person_can_paste() -> None:
    asked = queries.display_queries(POLICY, NEW, "iris-1")
    assert set(asked) == {"error_rate", "p50_ms", "p99_ms", "mean_ms", "rps"}
    found = evaluator(WORLD, list(asked.values()))
    values = {name: found.evaluate(text, 180.0) for name, text in asked.items()}
    assert values == {
        "error_rate": pytest.approx(30 / 80),
        "p50_ms": pytest.approx(100 * 40 / 72),
        "p99_ms": pytest.approx(100 + 400 * (79.2 - 72) / 8),
        "mean_ms": pytest.approx(50.0),
        "rps": pytest.approx(80 / 120),
    }


@pytest.mark.parametrize(
    ("world", "names"),
    [
        (LOSING, ["error_rate", "p50_ms", "p99_ms", "mean_ms", "rps"]),
        (replica("new-a", "iris-2", "200", [50.0] * 13)[:-1], ["error_rate"]),
        ([LOST], ["error_rate", "rps"]),
    ],
    ids=["losing", "no error", "nothing but lost"],
)
def test_what_a_person_pastes_gives_the_figure_that_is_judged(world: list[Counter], names: list[str]) -> None:
    side = NEW._replace(window_s=190.0, observed_s=190.0)  # nothing was counted before
    seen = queries.read_answers(answered(world, side), side, running=False)
    assert isinstance(seen, ObservedCounts)
    asked = queries.display_queries(POLICY, side, "iris-1")
    found = evaluator(world, list(asked.values()))
    values = {name: found.evaluate(asked[name], 180.0) for name in names}
    assert values == {name: pytest.approx(analysis.metric_value(name, seen)) for name in names}


def test_names_with_quotes_stay_within_their_matcher() -> None:
    side = NEW._replace(service='iris"} or vector(1) #', revision="a\\")
    assert not [text for text in queries.metric_queries(side).values() if supported(text)]


def test_prometheus_itself_answers_every_question_as_our_evaluator_does(tmp_path: Path) -> None:
    tests = []
    for revision in COUNTS:
        side = NEW._replace(revision=revision)
        asked = {**queries.metric_queries(side), **queries.display_queries(POLICY, side, "iris-1")}
        found = evaluator(LOSING, list(asked.values()))
        tests += [
            {
                "expr": text,
                "eval_time": "180s",
                "exp_samples": [
                    {"labels": f"{{{written(dict(labels))}}}", "value": value}
                    for labels, value in found.vector(text, 180.0).items()
                ],
            }
            for text in asked.values()
        ]
    series = [
        {"series": f"{each.name}{{{written(each.labels)}}}", "values": " ".join(promtool_value(v) for v in each.values)}
        for each in LOSING
    ]
    case = {"interval": f"{STEP_S}s", "input_series": series, "promql_expr_test": tests}
    (tmp_path / "tests.yaml").write_text(json.dumps({"rule_files": [], "tests": [case]}))
    done = subprocess.run(
        [promtool(), "test", "rules", str(tmp_path / "tests.yaml")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_value(value: float | None) -> str:
    return "_" if value is None else f"{value:g}"


def promtool() -> str:
    try:
        return prometheus.program("promtool")
    except Unavailable as reason:
        absent(reason)
