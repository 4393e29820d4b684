"""YAML and JSON texts into nodes: what scalars mean, where things are written, and texts meant to break it."""

import time
from typing import Any

import pytest

from pilotlight.spec.field_types import parse_path, source_locations
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.yaml_nodes import MAX_DEPTH, Node, parse


def read(text: str, **options: Any) -> tuple[list[Any], list[str]]:
    problems = Problems()
    found = [node.plain() for node in parse(text, "f.yaml", problems, **options)]
    return found, [str(problem) for problem in problems.items]


def one(text: str) -> Node:
    problems = Problems()
    (node,) = parse(text, "f.yaml", problems)
    assert not problems.items
    return node


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", True), ("Off", False), ("y", True), ("NO", False), ("TRUE", True), ("tRUE", "tRUE"),
        ("~", None), ("null", None), ("nULL", "nULL"),
        ("12", 12), ("-7", -7), ("+7", 7), ("1_000", 1000), ("010", 8), ("0o17", 15), ("0x1F", 31), ("0b101", 5),
        ("08", 8.0), ("1e3", 1000.0), (".5", 0.5), ("6.", 6.0), ("1.5e-1", 0.15),
        ("1:30", "1:30"), ("2024-01-15", "2024-01-15"), ("2024-01-15T10:30:00Z", "2024-01-15T10:30:00Z"),
        ("1.2.3", "1.2.3"), ("-x", "-x"), ("1e999", "1e999"), ("16Gi", "16Gi"), ("'12'", "12"), ('"yes"', "yes"),
        ("!!str 12", "12"), ("!!float 1", 1.0), ("9" * 400, "9" * 400),
    ],
)  # fmt: skip
def test_scalars_mean_what_kubectl_takes_them_for(written: str, value: object) -> None:
    found, problems = read(f"a: {written}")
    assert not problems
    assert found == [{"a": value}]
    assert type(found[0]["a"]) is type(value)


def test_keys_are_text_even_where_they_look_otherwise() -> None:
    assert read("{1: a, on: b, 1.5: c, '2': d}") == ([{"1": "a", "true": "b", "1.5": "c", "2": "d"}], [])


def test_every_key_and_value_keeps_its_place() -> None:
    node = one("a:\n  b: 1\nlist:\n- x\n- {v: 2}\n")
    assert source_locations(node) == {
        "": SourceLocation("f.yaml", 1, 1),
        "a": SourceLocation("f.yaml", 1, 1),
        "a.b": SourceLocation("f.yaml", 2, 6),
        "list": SourceLocation("f.yaml", 3, 1),
        "list[0]": SourceLocation("f.yaml", 4, 3),
        "list[1]": SourceLocation("f.yaml", 5, 3),
        "list[1].v": SourceLocation("f.yaml", 5, 7),
    }


def test_a_key_with_dots_is_found_quoted_and_as_it_stands() -> None:
    found = source_locations(one("annotations:\n  ome.io/mode: x\n"))
    assert found['annotations["ome.io/mode"]'] == found["annotations.ome.io/mode"] == SourceLocation("f.yaml", 2, 16)


def test_a_column_counts_characters_not_bytes() -> None:
    assert source_locations(one("{ä: é, b: 1}"))["b"] == SourceLocation("f.yaml", 1, 11)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read("\ufeffa: 1") == ([{"a": 1}], [])


def test_several_documents_in_one_text_and_empty_ones_between() -> None:
    assert read("---\na: 1\n---\n---\nb: 2\n...\n") == ([{"a": 1}, {"b": 2}], [])


def test_anchors_merge_keys_and_what_wins() -> None:
    text = "base: &b {x: 1, v: 2}\nmore: &m {v: 3, z: 4}\nall: {<<: [*b, *m], x: 0}\nsame: *b\n"
    (found,), problems = read(text)
    assert not problems
    assert found["all"] == {"x": 0, "v": 2, "z": 4}
    assert found["same"] == {"x": 1, "v": 2}


def test_what_an_alias_stands_for_is_a_copy() -> None:
    node = one("a: &a {x: 1}\nb: *a\n")
    first, second = node.get("a"), node.get("b")
    assert first is not None
    assert second is not None
    assert isinstance(first.value, dict)
    first.value.clear()
    assert second.plain() == {"x": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: error PL105: a: a is given twice, first on line 1; keep one of them"),
        ("{1: a, '1': b}", "f.yaml:1:8: error PL105: 1: 1 is given twice, first on line 1; keep one of them"),
        ("? [a]\n: 1", "f.yaml:1:3: error PL106: a map's key must be text"),
        ("~: 1", "f.yaml:1:1: error PL106: a map's key must be text"),
        ("a: .inf", "f.yaml:1:4: error PL106: .inf cannot be written in JSON; use a finite number"),
        ("a: !!int x", "f.yaml:1:4: error PL106: tag !!int does not fit 'x'; write the value without a tag"),
        ("a: !own {}", "f.yaml:1:4: error PL106: tag !own is not supported; remove it"),
        ("a: {<<: 3}", "f.yaml:1:9: error PL106: <<: a merge key takes a map or a list of maps"),
        ("a: b: c", "f.yaml:1:5: error PL100: not valid YAML: mapping values are not allowed in this context"),
        ("a: *b", "f.yaml:1:4: error PL100: *b refers to an anchor that is not defined before it, or to itself"),
        ("a: &a [*a]", "f.yaml:1:8: error PL100: *a refers to an anchor that is not defined before it, or to itself"),
        ("a: 1\nb: \x01", "f.yaml:2:4: error PL100: this character is not allowed in YAML; escape it"),
        ("a: \ud800", "f.yaml:1:4: error PL100: this character is not allowed in YAML; escape it"),
    ],
)
def test_each_defect_is_told_at_its_place(text: str, problem: str) -> None:
    assert read(text)[1] == [problem]


def test_a_template_left_unfilled_is_answered_with_quotes() -> None:
    (problem,) = read("image: {username}/server:1\n")[1]
    assert problem.startswith("f.yaml:1:18: error PL100")
    assert "in quotes" in problem


def test_tabs_for_indentation_are_answered_with_spaces() -> None:
    assert read("a:\n\tb: 1")[1][0].endswith("indent with spaces")


def test_documents_before_a_syntax_error_are_kept() -> None:
    found, problems = read("a: 1\n---\nb: [\n")
    assert found == [{"a": 1}]
    assert problems[0].startswith("f.yaml:4:1: error PL100")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_refused_where_it_begins_to_be_too_deep(opening: str) -> None:
    (problem,) = read(opening * 100_000)[1]
    assert "PL100" in problem
    assert f"nested deeper than {MAX_DEPTH} levels" in problem


def test_an_alias_bomb_is_refused_at_once() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    started = time.process_time()
    (problem,) = read("\n".join(rows))[1]
    assert "error PL100: aliases stand for more than 100000 values" in problem
    assert time.process_time() - started < 5


def test_json_reads_as_yaml_with_tabs_escapes_and_places() -> None:
    text = '{\n\t"a": "\\ud83d\\ude00\\/",\n\t"b": [1, true, null, 1E2]\n}'
    assert read(text) == ([{"a": "😀/", "b": [1, True, None, 100.0]}], [])
    assert source_locations(one(text))["b[1]"] == SourceLocation("f.yaml", 3, 11)


def test_variables_are_filled_in_only_when_asked_for() -> None:
    text = "a: ${N}\nb: 'x${N}'\nc: ${M:-d}\nd: $${N}\ne: $N $(N)\n"
    assert read(text)[0][0]["a"] == "${N}"
    found, problems = read(text, environ={"N": "7"})
    assert not problems
    assert found == [{"a": 7, "b": "x7", "c": "d", "d": "${N}", "e": "$N $(N)"}]


def test_no_variable_can_change_the_structure() -> None:
    found, problems = read("a: ${N}\nb: '${N}'", environ={"N": "1\nc: {x: [}"})
    assert not problems
    assert found == [{"a": "1\nc: {x: [}", "b": "1\nc: {x: [}"}]


def test_a_variable_that_is_not_set_is_named_at_its_place() -> None:
    problems = read("a: 1\nb: x-${NOPE}", environ={})[1]
    assert problems == ["f.yaml:2:4: error PL107: ${NOPE}: NOPE is not set; set it, or write ${NOPE:-default}"]


@pytest.mark.parametrize(
    ("path", "walk"),
    [
        ("spec.engine.minReplicas", ["spec", "engine", "minReplicas"]),
        ("a[0].b[12]", ["a", 0, "b", 12]),
        ('annotations["ome.io/mode"]', ["annotations", "ome.io/mode"]),
        (r"annotations.ome\.io/mode", ["annotations", "ome.io/mode"]),
        ("", None), (".a", None), ("a..b", None), ("a[x]", None), ("a[", None),
    ],
)  # fmt: skip
def test_paths_are_taken_apart(path: str, walk: list[str | int] | None) -> None:
    assert parse_path(path) == walk
