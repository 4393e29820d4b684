"""Every file is asked about once: over crashes, cancellations and files that are no good."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.batch import workspace_storage
from pilotlight.microservices.batch.file_inference import Files, Interrupted, Request, check_parameters
from pilotlight.microservices.batch.job_folder import Batch
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.model_kinds import schema
from pilotlight.microservices.registry.records import Workspace

TEXT = schema("text")


class Bench:
    """Files of a folder, and a model that notes what it is asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[str]()
        (root / "in").mkdir()
        self.fails_at: Exception | None = None

    def put(self, **texts: str) -> None:
        for name, text in texts.items():
            (self.root / "in" / f"{name}.txt").write_text(text)

    def files(self, job_id: str = "j") -> Files:
        batch = Batch(job_id, "text", "m", Workspace(str(self.root)), "in", "out", labels="in/labels.csv")
        opened = [workspace_storage.open_folder(path, batch.workspace, Limits(), {}) for path in ("in", "out")]
        made = Files(batch, TEXT, opened[0], opened[1], self.spool(job_id))
        made.scan()
        return made

    def spool(self, job_id: str = "j") -> Path:
        return self.root / f"spool-{job_id}.jsonl"

    def run(self, files: Files, at_once: int = 1) -> None:
        files.run(self.answer, lambda _: [], Limits(), at_once, lambda: None)

    def answer(self, request: Request) -> dict[str, Any]:
        self.asked.append(request.model_request.text)
        if self.fails_at is not None and request.model_request.text == "crash":
            raise self.fails_at
        return {"response": request.model_request.text.upper()}

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "out" / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_all_are_asked_and_kept_one_by_one_and_together(bench: Bench) -> None:
    bench.put(b="two", a="one", c="three")
    files = bench.files()
    bench.run(files, at_once=3)
    files.finish(None)
    assert sorted(bench.asked) == ["one", "three", "two"]
    assert [(each["file"], each["results"]["response"]) for each in bench.results()] == [
        ("a.txt", "ONE"),
        ("b.txt", "TWO"),
        ("c.txt", "THREE"),
    ]
    assert json.loads((bench.root / "out/files/a.txt.json").read_text())["results"] == {"response": "ONE"}


def test_after_a_crash_only_what_has_no_result_is_asked_again(bench: Bench) -> None:
    bench.put(a="one", b="crash", c="three")
    bench.fails_at = InferenceFailed("gone", 0)
    with pytest.raises(Interrupted, match="gone"):
        bench.run(bench.files())
    bench.fails_at, before = None, list(bench.asked)
    again = bench.files()
    assert again.done == 1
    bench.run(again)
    again.finish(None)
    assert before == ["one", "crash"]
    assert bench.asked == ["one", "crash", "crash", "three"]
    assert [each["file"] for each in bench.results()] == ["a.txt", "b.txt", "c.txt"]


def test_a_spool_that_was_cut_off_or_lost_is_made_good_from_the_results(bench: Bench) -> None:
    bench.put(a="one", b="two", c="three")
    bench.run(bench.files())
    spool = bench.spool()
    for cut in (spool.read_bytes()[:-20], b""):
        spool.write_bytes(cut)
        again = bench.files()
        assert again.left() == []
        again.finish(None)
        assert len(bench.results()) == 3
    assert len(bench.asked) == 3


def test_results_of_another_job_are_not_taken_for_ones_own(bench: Bench) -> None:
    bench.put(a="one", b="two")
    bench.run(bench.files("first"))
    (bench.root / "in" / "a.txt").write_text("changed")
    second = bench.files("second")
    assert second.left() == ["a.txt", "b.txt"]
    bench.run(second)
    second.finish(None)
    assert bench.asked == ["one", "two", "changed", "two"]
    assert [(each["results"]["response"], each["job"]) for each in bench.results()] == [
        ("CHANGED", "second"),
        ("TWO", "second"),
    ]
    assert bench.files("first").left() == []  # it was done before, by its own notes
    bench.spool("first").write_bytes(b"")
    assert bench.files("first").left() == ["a.txt", "b.txt"]


def test_a_strange_file_among_the_results_is_no_result(bench: Bench) -> None:
    bench.put(a="one")
    bench.spool().touch()
    (bench.root / "out" / "files").mkdir(parents=True)
    (bench.root / "out" / "files" / "a.txt.json").write_text("not ours")
    assert bench.files().left() == ["a.txt"]


def test_a_file_that_is_no_good_has_its_error_and_the_rest_goes_on(bench: Bench) -> None:
    bench.put(a="one")
    (bench.root / "in" / "bad.txt").write_bytes(b"\xff\xfe")
    (bench.root / "in" / "odd.json").write_text('{"prompt": "x", "temperature": 9}')
    (bench.root / "in" / "good.json").write_text('{"prompt": "whole request", "temperature": 0.5}')
    files = bench.files()
    bench.run(files)
    assert (files.done, files.failed) == (4, 2)
    files.finish(None)
    told = {each["file"]: each.get("error", "") for each in bench.results()}
    assert told["bad.txt"] == "bad.txt is not UTF-8 text"
    assert "temperature = 9, must be a number from 0 to 2" in told["odd.json"]
    assert told["good.json"] == ""


def test_a_model_that_refuses_one_file_is_asked_the_next(bench: Bench) -> None:
    bench.put(a="crash", b="two")
    bench.fails_at = InferenceFailed("does not fit", 400)
    files = bench.files()
    bench.run(files)
    assert (files.done, files.failed) == (2, 1)


def test_a_cancellation_ends_it_between_two_files(bench: Bench) -> None:
    bench.put(a="one", b="two", c="three")

    def going_on() -> None:
        if bench.asked:
            raise Interrupted("cancelled")

    files = bench.files()
    with pytest.raises(Interrupted, match="cancelled"):
        files.run(bench.answer, lambda _: [], Limits(), 1, going_on)
    assert bench.asked == ["one"]


def test_what_is_no_input_is_counted_as_skipped(bench: Bench) -> None:
    bench.put(a="one")
    (bench.root / "in" / "notes.md").write_text("")
    (bench.root / "in" / "labels.csv").write_text("file,label\na.txt,ONE\n")
    files = bench.files()
    assert (files.names, files.skipped) == (["a.txt"], 1)


def test_results_below_the_inputs_are_no_inputs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    workspace = Workspace(str(tmp_path))
    batch = Batch("j", "text", "m", workspace, ".", "results")
    opened = [workspace_storage.open_folder(path, workspace, Limits(), {}) for path in (".", "results")]
    result = {"file": "a.txt", "status": "completed", "results": {}, "job": "j"}
    opened[1].write("files/a.txt.json", msgspec.json.encode(result))
    (tmp_path / "results" / "spool").touch()
    files = Files(batch, TEXT, opened[0], opened[1], tmp_path / "results" / "spool")
    files.scan()
    assert (files.names, files.left()) == (["a.txt"], [])


def test_a_folder_without_inputs_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"inputs = in: there is no file in .*/in; check its name"):
        bench.files()
    (bench.root / "in" / "notes.md").write_text("")
    with pytest.raises(UsageError, match="it has no file that this model accepts"):
        bench.files()


def test_parameters_are_judged_before_anything_is_started() -> None:
    check_parameters(schema("classification"), {"top_k": 3})
    check_parameters(schema("vision-language"), {"text": "What is it?"})
    check_parameters(schema("tensors"), {})
    with pytest.raises(UsageError, match="topk is unknown"):
        check_parameters(schema("classification"), {"topk": 3})
    with pytest.raises(UsageError, match="must not name media"):
        check_parameters(schema("classification"), {"images": ["a.png"]})
