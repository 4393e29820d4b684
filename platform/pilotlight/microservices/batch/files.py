"""The heart of a job: every file of a folder asked about once, each result kept at once, then all of them together.

A file's own result, put in place whole and with the id of its job, is the note that it is done. A job that is taken up
again leaves out what has one of its own, so a crash costs at most the requests that were under way; what another job
wrote into the same folder, of another model or of inputs that have changed since, counts for nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.batch import requests, scoring
from pilotlight.microservices.batch.folders import Folder
from pilotlight.microservices.batch.model import Batch, Outcome
from pilotlight.microservices.batch.requests import Request
from pilotlight.microservices.calling import AskingFailed
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media

FILES: Final = "files/"
RESULTS: Final = "results.jsonl"
METRICS: Final = "metrics.json"
Link = Callable[[str], Media]
LOOK_S: Final = 0.2  # how soon a cancellation is seen


class Interrupted(Exception):
    """The job was cancelled, or what runs its model is gone: the rest is for another run."""


class Files:
    """The inputs of one job with what came of them. `spool` is a file of this machine that gathers the results."""

    def __init__(
        self, batch: Batch, of: Schema, inputs: Folder, outputs: Folder, spool: Path, link: Link | None = None
    ) -> None:
        """`link`: of a model that fetches media by itself, how a file is named to it."""
        self._batch, self._of, self._link = batch, of, link
        self._inputs, self._outputs, self._spool = inputs, outputs, spool
        self._kept: dict[str, Outcome] = {}
        self.names: list[str] = []
        self.skipped = 0

    def survey(self) -> None:
        """Lists what there is to do and what an earlier run has done."""
        own = _own_prefix(self._inputs.shown, self._outputs.shown)
        found = [name for name in self._inputs.names() if not (own and name.startswith(own))]
        labels = _below(self._batch.labels, self._batch.inputs)
        self.names = [name for name in found if name != labels and requests.takes(self._of, name)]
        self.skipped = len(found) - len(self.names) - (labels in found)
        if not found:
            raise UsageError(f"inputs = {self._batch.inputs}: there is no file in {self._inputs.shown}; check its name")
        if not self.names:
            raise UsageError(f"inputs = {self._batch.inputs}: there is no file in it that this model takes")
        known = self._spool.exists()  # a job that is new has done nothing, whatever lies in its folder of outputs
        done = {name.removeprefix(FILES).removesuffix(".json") for name in self._done()} if known else set[str]()
        self._take_up(done & set(self.names))

    def _done(self) -> list[str]:
        return [name for name in self._outputs.names() if name.startswith(FILES) and name.endswith(".json")]

    def _take_up(self, done: set[str]) -> None:
        """What the spool of an earlier run does not have is read back from the storage."""
        spooled = {outcome.file: outcome for outcome in _lines(self._spool) if outcome.file in done}
        for name in sorted(done - spooled.keys()):
            if (outcome := self._own(name)) is not None:
                spooled[name] = outcome
        self._spool.write_bytes(b"".join(_line(each) for each in spooled.values()))
        self._kept = {name: _light(each) for name, each in spooled.items()}

    def _own(self, name: str) -> Outcome | None:
        """None: the result is of another job, or was written by somebody else."""
        try:
            outcome = msgspec.json.decode(self._outputs.read(f"{FILES}{name}.json"), type=Outcome)
        except msgspec.DecodeError:
            return None
        return outcome if outcome.job == self._batch.id else None

    @property
    def done(self) -> int:
        return len(self._kept)

    @property
    def failed(self) -> int:
        return sum(each.status == "error" for each in self._kept.values())

    @property
    def lacking(self) -> str:
        """For people, of a job that is done."""
        where = f"{self._batch.outputs.rstrip('/')}/{RESULTS}"
        told = f"{self.failed} of {len(self.names)} files failed; `error` in {where} says why"
        return told if self.failed else ""

    def left(self) -> list[str]:
        return [name for name in self.names if name not in self._kept]

    def ask_all(
        self,
        ask: Callable[[Request], dict[str, Any]],
        fetch: requests.Fetch,
        limits: Limits,
        at_once: int,
        going_on: Callable[[], None],
    ) -> None:
        """`going_on` is called often: it notes progress, and raises Interrupted to end the work."""

        def one(name: str) -> Outcome:
            return self._outcome(name, ask, fetch, limits)

        pool = ThreadPoolExecutor(at_once, thread_name_prefix="batch")
        try:
            for outcome in _as_they_come(pool, one, self.left(), at_once, going_on):
                self._keep(outcome)
                going_on()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _outcome(
        self, name: str, ask: Callable[[Request], dict[str, Any]], fetch: requests.Fetch, limits: Limits
    ) -> Outcome:
        """What is wrong with one file is its result; what is wrong with the model ends the run."""
        try:
            return Outcome(name, "completed", ask(self._request(name, fetch, limits)))
        except AskingFailed as error:
            if error.status == 0 or error.status in {401, 403, 429, 502, 503, 504}:
                raise Interrupted(str(error)) from error
            return Outcome(name, "error", error=str(error))
        except NotFound:
            return Outcome(name, "error", error=f"{name} was removed while the job ran")
        except PlatformError as error:
            return Outcome(name, "error", error=str(error))

    def _request(self, name: str, fetch: requests.Fetch, limits: Limits) -> Request:
        if self._link is not None and not name.lower().endswith(".json"):
            medium = self._link(f"{self._inputs.shown.rstrip('/')}/{name}")
            return requests.by_link(self._of, self._batch.parameters, medium)
        content = self._inputs.read(name)
        return requests.request(self._of, self._batch.parameters, name, content, limits, fetch)

    def _keep(self, found: Outcome) -> None:
        outcome = replace(found, job=self._batch.id)
        self._outputs.write(f"{FILES}{outcome.file}.json", msgspec.json.encode(outcome))
        with self._spool.open("ab") as file:
            file.write(_line(outcome))
        self._kept[outcome.file] = _light(outcome)

    def finish(self, labels: scoring.Labels | None) -> dict[str, Any] | None:
        """All results in one file, in the order of their names, and the score where there are labels."""
        ordered = self._spool.with_suffix(".sorted")
        _sort(self._spool, ordered)
        self._outputs.write(RESULTS, ordered)
        ordered.unlink()
        if labels is None:
            return None
        found = scoring.metrics(_lines(self._spool), labels)
        self._outputs.write(METRICS, msgspec.json.format(msgspec.json.encode(found)))
        return found


def _sort(spool: Path, ordered: Path) -> None:
    """Only places are held in memory: results may be large."""
    places = dict[str, tuple[int, int]]()
    with spool.open("rb") as source, ordered.open("wb") as target:
        at = 0
        for line in source:
            places[msgspec.json.decode(line, type=Outcome).file] = at, len(line)
            at += len(line)
        for name in sorted(places):
            source.seek(places[name][0])
            target.write(source.read(places[name][1]))


def _as_they_come(
    pool: ThreadPoolExecutor,
    one: Callable[[str], Outcome],
    names: Sequence[str],
    at_once: int,
    going_on: Callable[[], None],
) -> Iterator[Outcome]:
    """No more are taken on than can be worked on, so that an end is an end."""
    ahead = iter(names)
    under_way: set[Future[Outcome]] = set()
    while True:
        under_way |= {pool.submit(one, name) for name in islice(ahead, at_once - len(under_way))}
        if not under_way:
            return
        done, under_way = wait(under_way, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()
        going_on()


def _lines(spool: Path) -> Iterator[Outcome]:
    """A crash may have cut the last line short."""
    if not spool.exists():
        return
    with spool.open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=Outcome)
            except msgspec.DecodeError:
                return


def _line(outcome: Outcome) -> bytes:
    return msgspec.json.encode(outcome) + b"\n"


def _light(outcome: Outcome) -> Outcome:
    """Without the results, which may be large: the spool has them."""
    return Outcome(outcome.file, outcome.status)


def _own_prefix(inputs: str, outputs: str) -> str:
    """Where results lie below the inputs they are no inputs."""
    base = inputs.rstrip("/") + "/"
    return outputs[len(base) :].rstrip("/") + "/" if outputs.startswith(base) else ""


def _below(path: str, folder: str) -> str:
    base = folder.strip("/")
    return path.strip("/").removeprefix(f"{base}/") if base else path.strip("/")
