"""One file, its requests.

Requests from input files: an image or video, a text, or a whole request in JSON. Pure, but for `fetch`.

Input files of a batch job: each is processed once, its result written, and all results collected at the end.

The result of a file, written atomically with the job's id, marks it as done. A resumed job skips files with a result
of its own, so a crash loses at most the requests in flight; results of other jobs in the same folder are ignored, since
their model or inputs may differ.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.batch import score
from pilotlight.microservices.batch.folders import Folder
from pilotlight.microservices.batch.records import Batch, Outcome
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.images import check_image, identify
from pilotlight.microservices.media.limits import MediaError
from pilotlight.microservices.media.videos import check_video
from pilotlight.microservices.registry.model_kinds import ModelRequest, Schema, validate

PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".mp4", ".mov", ".m4v", ".webm", ".mkv", ".avi")
Fetch = Callable[[Sequence[str]], list[Media]]


class Request(Struct, frozen=True):
    model_request: ModelRequest
    media: tuple[Media, ...] = ()


def accepts(schema: Schema, name: str) -> bool:
    """Return whether a file of this name is an input of the model."""
    lowered = name.lower()
    if lowered.endswith(".json"):
        return True
    return (
        lowered.endswith(PICTURES)
        if _named(schema, "media")
        else lowered.endswith(".txt") and bool(_named(schema, "text"))
    )


def check_parameters(schema: Schema, parameters: Mapping[str, Any]) -> None:
    """Raise for parameters that are invalid for every file, before the model is started."""
    inputs = {name: "x" for name in (_named(schema, "media"), _named(schema, "text")) if name}
    texts = {name for name, each in schema.parameters.items() if each.role == "text"} & parameters.keys()
    if texts:
        inputs.pop(_named(schema, "text"), None)
    raw: dict[str, Any] = {"inputs": ["x"]} if "inputs" in schema.parameters else {}
    if "media" in {schema.parameters[name].role for name in parameters if name in schema.parameters}:
        raise UsageError("parameters must not name media: the files of the folder are the media")
    validate(schema, {**raw, **inputs, **parameters})


def request(
    schema: Schema, parameters: Mapping[str, Any], name: str, content: bytes, limits: Limits, fetch: Fetch
) -> Request:
    """Return the request of one file. Raise PlatformError, which becomes the file's result."""
    if name.lower().endswith(".json"):
        model_request = validate(schema, {**parameters, **_body(name, content)})
        return Request(model_request, tuple(fetch(model_request.media)))
    if not _named(schema, "media"):
        return Request(validate(schema, {**parameters, _named(schema, "text"): _text(name, content)}))
    medium = _medium(name, content, limits)
    return Request(validate(schema, {**parameters, _named(schema, "media"): name}), (medium,))


def by_link(schema: Schema, parameters: Mapping[str, Any], medium: Media) -> Request:
    """Return the request of a model that fetches media itself."""
    return Request(validate(schema, {**parameters, _named(schema, "media"): medium.name}), (medium,))


def _named(schema: Schema, role: str) -> str:
    return next((name for name, each in schema.parameters.items() if each.role == role), "")


def _body(name: str, content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError as error:
        raise UsageError(f"{name} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError(f"{name} must hold an object: a request with its parameters")
    return body


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no text in UTF-8") from None


def _medium(name: str, content: bytes, limits: Limits) -> Media:
    try:
        media = identify(name.rpartition("/")[2], content)
        (check_image if media.kind == "image" else check_video)(media, limits)
    except MediaError as error:
        raise PlatformError(f"{name} {error.message}") from error
    return media


FILES: Final = "files/"
RESULTS: Final = "results.jsonl"
METRICS: Final = "metrics.json"
Link = Callable[[str], Media]
POLL_S: Final = 0.2  # delay until a cancellation is noticed


class Interrupted(Exception):
    """The job was cancelled, or its model is gone: the remaining files are left for `resume`."""


class Files:
    """Inputs of one job with their outcomes. `spool` is a local file that collects the results."""

    def __init__(
        self, batch: Batch, schema: Schema, inputs: Folder, outputs: Folder, spool: Path, link: Link | None = None
    ) -> None:
        """`link`: returns the link of a file, for a model that fetches media itself."""
        self._batch, self._schema, self._link = batch, schema, link
        self._inputs, self._outputs, self._spool = inputs, outputs, spool
        self._outcomes: dict[str, Outcome] = {}
        self.names: list[str] = []
        self.skipped = 0

    def scan(self) -> None:
        """List the inputs, and restore results of an earlier run."""
        own = _own_prefix(self._inputs.uri, self._outputs.uri)
        listed = [name for name in self._inputs.names() if not (own and name.startswith(own))]
        labels = _below(self._batch.labels, self._batch.inputs)
        self.names = [name for name in listed if name != labels and accepts(self._schema, name)]
        self.skipped = len(listed) - len(self.names) - (labels in listed)
        if not listed:
            raise UsageError(f"inputs = {self._batch.inputs}: there is no file in {self._inputs.uri}; check its name")
        if not self.names:
            raise UsageError(f"inputs = {self._batch.inputs}: there is no file in it that this model takes")
        done = set[str]()
        if self._spool.exists():  # results in the outputs of a new job are not its own
            results = (name for name in self._outputs.names() if name.startswith(FILES) and name.endswith(".json"))
            done = {name.removeprefix(FILES).removesuffix(".json") for name in results}
        self._restore(done & set(self.names))

    def _restore(self, done: set[str]) -> None:
        """Restore outcomes from the spool, and from the storage where the spool lacks them."""
        spooled = {outcome.file: outcome for outcome in _lines(self._spool) if outcome.file in done}
        for name in sorted(done - spooled.keys()):
            if (outcome := self._own(name)) is not None:
                spooled[name] = outcome
        self._spool.write_bytes(b"".join(_line(each) for each in spooled.values()))
        self._outcomes = {name: _without_results(each) for name, each in spooled.items()}

    def _own(self, name: str) -> Outcome | None:
        """Return the stored outcome; None: of another job, or invalid."""
        try:
            outcome = msgspec.json.decode(self._outputs.read(f"{FILES}{name}.json"), type=Outcome)
        except msgspec.DecodeError:
            return None
        return outcome if outcome.job == self._batch.id else None

    @property
    def done(self) -> int:
        return len(self._outcomes)

    @property
    def failed(self) -> int:
        return sum(each.status == "error" for each in self._outcomes.values())

    @property
    def failure_summary(self) -> str:
        """Message of a finished job, empty without failures."""
        where = f"{self._batch.outputs.rstrip('/')}/{RESULTS}"
        message = f"{self.failed} of {len(self.names)} files failed; `error` in {where} says why"
        return message if self.failed else ""

    def left(self) -> list[str]:
        return [name for name in self.names if name not in self._outcomes]

    def run(
        self,
        predict: Callable[[Request], dict[str, Any]],
        fetch: Fetch,
        limits: Limits,
        at_once: int,
        checkpoint: Callable[[], None],
    ) -> None:
        """Process all remaining files. `checkpoint` is called often: it saves progress, and raises Interrupted."""

        def one(name: str) -> Outcome:
            return self._outcome(name, predict, fetch, limits)

        pool = ThreadPoolExecutor(at_once, thread_name_prefix="batch")
        try:
            for outcome in _completed(pool, one, self.left(), at_once, checkpoint):
                self._save(outcome)
                checkpoint()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _outcome(
        self, name: str, predict: Callable[[Request], dict[str, Any]], fetch: Fetch, limits: Limits
    ) -> Outcome:
        """Return the outcome of one file, also of an invalid one. Raise Interrupted where the model is at fault."""
        try:
            return Outcome(name, "completed", predict(self._request(name, fetch, limits)))
        except InferenceFailed as error:
            if error.status == 0 or error.status in {401, 403, 429, 502, 503, 504}:
                raise Interrupted(str(error)) from error
            return Outcome(name, "error", error=str(error))
        except NotFound:
            return Outcome(name, "error", error=f"{name} was removed while the job ran")
        except PlatformError as error:
            return Outcome(name, "error", error=str(error))

    def _request(self, name: str, fetch: Fetch, limits: Limits) -> Request:
        if self._link is not None and not name.lower().endswith(".json"):
            medium = self._link(f"{self._inputs.uri.rstrip('/')}/{name}")
            return by_link(self._schema, self._batch.parameters, medium)
        content = self._inputs.read(name)
        return request(self._schema, self._batch.parameters, name, content, limits, fetch)

    def _save(self, result: Outcome) -> None:
        outcome = replace(result, job=self._batch.id)
        self._outputs.write(f"{FILES}{outcome.file}.json", msgspec.json.encode(outcome))
        with self._spool.open("ab") as file:
            file.write(_line(outcome))
        self._outcomes[outcome.file] = _without_results(outcome)

    def finish(self, labels: score.Labels | None) -> dict[str, Any] | None:
        """Write all results to one file, sorted by name, and the scores where there are labels."""
        ordered = self._spool.with_suffix(".sorted")
        _sort(self._spool, ordered)
        self._outputs.write(RESULTS, ordered)
        ordered.unlink()
        if labels is None:
            return None
        metrics = score.metrics(_lines(self._spool), labels)
        self._outputs.write(METRICS, msgspec.json.format(msgspec.json.encode(metrics)))
        return metrics


def _sort(spool: Path, ordered: Path) -> None:
    """Sort the lines by file name; only offsets are held in memory, since results may be large."""
    offsets = dict[str, tuple[int, int]]()
    with spool.open("rb") as source, ordered.open("wb") as target:
        offset = 0
        for line in source:
            offsets[msgspec.json.decode(line, type=Outcome).file] = offset, len(line)
            offset += len(line)
        for name in sorted(offsets):
            source.seek(offsets[name][0])
            target.write(source.read(offsets[name][1]))


def _completed(
    pool: ThreadPoolExecutor,
    process: Callable[[str], Outcome],
    names: Sequence[str],
    at_once: int,
    checkpoint: Callable[[], None],
) -> Iterator[Outcome]:
    """Yield outcomes as they complete. At most `at_once` files are submitted, so that an interrupt leaves no queue."""
    remaining = iter(names)
    pending: set[Future[Outcome]] = set()
    while True:
        pending |= {pool.submit(process, name) for name in islice(remaining, at_once - len(pending))}
        if not pending:
            return
        done, pending = wait(pending, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()
        checkpoint()


def _lines(spool: Path) -> Iterator[Outcome]:
    """Yield the outcomes of the spool; a crash may have truncated its last line."""
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


def _without_results(outcome: Outcome) -> Outcome:
    """Return the outcome without its results, which may be large and are in the spool."""
    return Outcome(outcome.file, outcome.status)


def _own_prefix(inputs: str, outputs: str) -> str:
    """Return the prefix of outputs within the inputs, which are skipped; empty: outside."""
    base = inputs.rstrip("/") + "/"
    return outputs[len(base) :].rstrip("/") + "/" if outputs.startswith(base) else ""


def _below(path: str, folder: str) -> str:
    base = folder.strip("/")
    return path.strip("/").removeprefix(f"{base}/") if base else path.strip("/")
