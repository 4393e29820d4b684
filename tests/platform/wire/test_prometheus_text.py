"""Numbers and labels, as Prometheus' own parser reads them."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pilotlight.wire import prometheus_text


def read(line: str) -> tuple[dict[str, str], float]:
    (family,) = text_string_to_metric_families(f"{line}\n")
    (sample,) = family.samples
    return sample.labels, sample.value


@pytest.mark.parametrize("value", [0, 1.5, -2.0, 1e300, 5e-324, math.inf, -math.inf, math.nan, 2**53])
def test_a_number_is_read_as_it_was(value: float) -> None:
    _, found = read(f"some {prometheus_text.number(value)}")
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_large_counter_loses_no_digit() -> None:
    assert prometheus_text.number(2**53 + 1) == "9007199254740993"


@pytest.mark.parametrize("text", ["plain", 'a "quoted" one', "two\nlines", "back\\slash", "\\n", "ü", ""])
def test_a_label_is_read_as_it_was(text: str) -> None:
    labels, _ = read(f"some{{{prometheus_text.format_labels({'first': text, 'second': 'b'})}}} 1")
    assert labels == {"first": text, "second": "b"}
