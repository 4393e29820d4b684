"""Checks as people write them, and queries of their own into which names are put."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.spec.canary_policy import METRICS, Check, fill_placeholders, format_value, parse_check, promql_checks
from pilotlight.targets.local.scaling.promql import evaluator


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("p99_ms<300", Check("p99_ms", maximum=300.0)),
        ("p99_ms < 0.3s", Check("p99_ms", maximum=300.0)),
        ("mean_ms<=20ms", Check("mean_ms", maximum=20.0)),
        ("error_rate<1%", Check("error_rate", maximum=0.01)),
        (" error_rate <= 0.005 ", Check("error_rate", maximum=0.005)),
        ("rps>5", Check("rps", minimum=5.0)),
        ("rps>=5/s", Check("rps", minimum=5.0)),
        ("p50_ms", Check("p50_ms")),
        ("p90_ms<1e2", Check("p90_ms", maximum=100.0)),
    ],
)
def test_a_check_is_read_with_its_unit(text: str, check: Check) -> None:
    assert parse_check(text) == check


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p98_ms<300", 'the check "p98_ms<300" uses p98_ms, which is not a metric; did you mean p99_ms?'),
        ("p99<300", "uses p99, which is not a metric; did you mean p99_ms?"),
        ("colour<3", "known: p50_ms, p90_ms, p95_ms, p99_ms, mean_ms, error_rate, rps"),
        ("p99_ms<fast", "has the bound fast, must be a number, with ms or s behind it or nothing"),
        ("p99_ms<3%", "has the bound 3%, must be a number, with ms or s behind it"),
        ("p99_ms<-3", "has the bound -3, must be a number"),
        ("error_rate<5", "has a rate above 1; write 5% for percent"),
        ("p99_ms=300", "cannot be read; write it as p99_ms<300 or error_rate<1%"),
        ("p99_ms<", "cannot be read"),
        ("", "cannot be read"),
        ("p99_ms<2e3s", "is beyond 60000 ms, the highest measurable latency"),
        ("p99_ms<nan", "has the bound nan, must be a number"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_check(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_can_be_written_shown_and_told(name: str) -> None:
    assert parse_check(f"{name}<0.5") == Check(name, maximum=0.5)
    assert format_value(name, 0.5)
    assert format_value(name, None) == "nothing"


def test_queries_of_the_users_own_have_bounds_by_name() -> None:
    found = promql_checks(["gpu=max(gpu_busy)", "queue=sum(q{a='='})"], ["gpu=0.9", "queue=5"], ["gpu=0.1"])
    assert found == (
        Check("gpu", "max(gpu_busy)", maximum=0.9, minimum=0.1),
        Check("queue", "sum(q{a='='})", maximum=5.0),
    )


def test_the_bound_of_the_only_query_needs_no_name() -> None:
    assert promql_checks(["gpu=a"], ["0.9"], ["0.1"]) == (Check("gpu", "a", maximum=0.9, minimum=0.1),)


@pytest.mark.parametrize(
    ("queries", "maxima", "told"),
    [
        (["gpu=a", "queue=b"], ["gpu=1", "5"], 'max "5" cannot be read; write it as NAME=NUMBER'),
        ([], ["5"], 'max "5" cannot be read; write it as NAME=NUMBER'),
        (["gpu=a"], ["much"], "max much must end in a number, such as gpu=0.5"),
        (["gpu=a"], [], "promql gpu has no bound; add max gpu=… or min gpu=…"),
        (["gpu"], ["gpu=1"], 'promql "gpu" cannot be read; write it as NAME=QUERY'),
        (["busy=a"], ["busi=1"], "max busi=1 has no query; did you mean busy?"),
        (["gpu=a"], ["gpu=much"], "max gpu=much must end in a number, such as gpu=0.5"),
        (["gpu=a"], ["gpu=inf"], "must end in a number"),
        (["gpu=a"], ["p99_ms=1"], "max p99_ms=1 is a built-in metric; write the check p99_ms<1"),
        (["p99_ms=a"], ["p99_ms=1"], "promql p99_ms is a built-in metric"),
        (["gpu=a", "gpu=b"], ["gpu=1"], "promql gpu is set twice"),
        (["g p=a"], ["g p=1"], "promql g p is not a name"),
        (["gpu=sum(a"], ["gpu=1"], "promql gpu has a ( that is never closed"),
        (['gpu=a{r="{{revison}}"}'], ["gpu=1"], "has {{revison}}, which is unknown; known: {{revision}}"),
        ([f"gpu={'a' * 2001}"], ["gpu=1"], "promql gpu has 2001 characters, and 2000 characters is the limit"),
        (["gpu=a{r={{revision}}}"], ["gpu=1"], "{{revision}} outside of quotes"),
    ],
)  # fmt: skip
def test_a_query_that_cannot_be_asked_is_told_in_one_sentence(queries: list[str], maxima: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        promql_checks(queries, maxima, [])
    assert told in str(caught.value)


VALUES = {"revision": "iris-2", "stable": "iris-1", "namespace": "ml", "service": "iris", "window": "90s"}


def test_placeholders_are_filled_in_and_comments_are_left_alone() -> None:
    query = (
        'sum(rate(a{r="{{revision}}",s=\'{{ stable }}\',n=`{{namespace}}`}[{{window}}])) # {{service}} isn\'t "asked"'
    )
    filled = 'sum(rate(a{r="iris-2",s=\'iris-1\',n=`ml`}[90s])) # {{service}} isn\'t "asked"'
    assert fill_placeholders(query, VALUES) == filled


@pytest.mark.parametrize("name", ['a"} or vector(1) #', "a'", "a`b", "a\\", "a\nb", '\\"', "{{stable}}"])
@pytest.mark.parametrize("quote", ['"', "'", "`"])
def test_no_name_can_be_more_than_a_name(name: str, quote: str) -> None:
    query = fill_placeholders(f"sum(a{{r={quote}{{{{revision}}}}{quote}}})", {**VALUES, "revision": name})
    (selector,) = evaluator.selectors(evaluator.parse(query))
    assert [matcher[:2] for matcher in selector.matchers] == [("r", "=")]
