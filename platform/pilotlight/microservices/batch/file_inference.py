"""Input files of a batch job: one request and one result each, and all results collected at the end.

The result of a file, written atomically with the job's id, marks it as done. A resumed job skips files with a result
of its own; results of other jobs in the same folder are ignored, since their model or inputs may differ.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.batch import label_accuracy
from pilotlight.microservices.batch.job_folder import Batch, Outcome
from pilotlight.microservices.batch.workspace_storage import Folder
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.fetch import checked_media
from pilotlight.microservices.media.limits import MediaError
from pilotlight.microservices.registry.model_kinds import ModelRequest, Schema, validate

PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".mp4", ".mov", ".m4v", ".webm", ".mkv", ".avi")
FILES: Final = "files/"
RESULTS: Final = "results.jsonl"
METRICS: Final = "metrics.json"
POLL_S: Final = 0.2  # delay until a cancellation is noticed
MODEL_UNAVAILABLE: Final = frozenset({0, 401, 403, 429, 502, 503, 504})  # the model is at fault, not the file
Fetch = Callable[[Sequence[str]], list[Media]]
Link = Callable[[str], Media]


class Interrupted(Exception):
    """The job was cancelled, or its model is gone: the remaining files are left for `resume`."""


class Request(Struct, frozen=True):
    model_request: ModelRequest
    media: tuple[Media, ...] = ()


Predict = Callable[[Request], dict[str, Any]]


def accepts(schema: Schema, name: str) -> bool:
    """Return whether a file of this name is an input of the model."""
    media, text = schema.parameter_with_role("media"), schema.parameter_with_role("text")
    suffixes = PICTURES if media else (".txt",) if text else ()
    return name.lower().endswith((".json", *suffixes))


def check_parameters(schema: Schema, parameters: Mapping[str, Any]) -> None:
    """Raise for parameters that are invalid for every file, before the model is started."""
    roles = {schema.parameters[name].role for name in parameters if name in schema.parameters}
    if "media" in roles:
        raise UsageError("parameters must not name media: the files of the folder are the media")
    inputs = {schema.parameter_with_role(role): "x" for role in ("media", "text") if role not in roles}
    inputs.pop("", None)
    raw: dict[str, Any] = {"inputs": ["x"]} if "inputs" in schema.parameters else {}
    validate(schema, {**raw, **inputs, **parameters})


def request(
    schema: Schema, parameters: Mapping[str, Any], name: str, content: bytes, limits: Limits, fetch: Fetch
) -> Request:
    """Return the request of one file. Raise PlatformError, which becomes the file's result."""
    if name.lower().endswith(".json"):
        try:
            body = msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise UsageError(f"{name} must hold a JSON object, a request with its parameters: {error}") from None
        model_request = validate(schema, {**parameters, **body})
        return Request(model_request, tuple(fetch(model_request.media)))
    if not schema.parameter_with_role("media"):
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise UsageError(f"{name} is not UTF-8 text") from None
        return Request(validate(schema, {**parameters, schema.parameter_with_role("text"): text}))
    try:
        media = checked_media(name.rpartition("/")[2], content, limits)
    except MediaError as error:
        raise PlatformError(f"{name} {error.message}") from error
    return Request(validate(schema, {**parameters, schema.parameter_with_role("media"): name}), (media,))


class Files:
    """Inputs of one job with their outcomes. `spool` is a local file that collects the results."""

    def __init__(
        self, batch: Batch, schema: Schema, inputs: Folder, outputs: Folder, spool: Path, link: Link | None = None
    ) -> None:
        """`link`: returns the link of a file, for a model that fetches media itself."""
        self._batch, self._schema, self._link = batch, schema, link
        self._inputs, self._outputs, self._spool = inputs, outputs, spool
        self._statuses: dict[str, str] = {}  # by file; the results may be large and are in the spool
        self.names: list[str] = []
        self.skipped = 0

    def scan(self) -> None:
        """List the inputs, and restore results of an earlier run."""
        base, outputs = self._inputs.uri.rstrip("/") + "/", self._outputs.uri.rstrip("/") + "/"
        own = outputs.removeprefix(base) if outputs.startswith(base) and outputs != base else None
        listed = [name for name in self._inputs.names() if own is None or not name.startswith(own)]
        folder, labels = self._batch.inputs.strip("/"), self._batch.labels.strip("/")
        labels = labels.removeprefix(f"{folder}/") if folder else labels
        self.names = [name for name in listed if name != labels and accepts(self._schema, name)]
        self.skipped = len(listed) - len(self.names) - (labels in listed)
        if not listed:
            raise UsageError(f"inputs = {self._batch.inputs}: there is no file in {self._inputs.uri}; check its name")
        if not self.names:
            raise UsageError(f"inputs = {self._batch.inputs}: it has no file that this model accepts")
        done = set[str]()
        if self._spool.exists():  # results in the outputs of a new job are not its own
            results = (name for name in self._outputs.names() if name.startswith(FILES) and name.endswith(".json"))
            done = {name.removeprefix(FILES).removesuffix(".json") for name in results}
        self._restore(done & set(self.names))

    def _restore(self, done: set[str]) -> None:
        """Restore outcomes from the spool, and from the storage where the spool lacks them."""
        spooled = {outcome.file: outcome for outcome in _lines(self._spool) if outcome.file in done}
        for name in sorted(done - spooled.keys()):
            with suppress(msgspec.DecodeError):
                outcome = msgspec.json.decode(self._outputs.read(f"{FILES}{name}.json"), type=Outcome)
                if outcome.job == self._batch.id:
                    spooled[name] = outcome
        self._spool.write_bytes(b"".join(_line(each) for each in spooled.values()))
        self._statuses = {name: each.status for name, each in spooled.items()}

    @property
    def done(self) -> int:
        return len(self._statuses)

    @property
    def failed(self) -> int:
        return sum(status == "error" for status in self._statuses.values())

    @property
    def failure_summary(self) -> str:
        """Message of a finished job, empty without failures."""
        where, failed = f"{self._batch.outputs.rstrip('/')}/{RESULTS}", self.failed
        return f"{failed} of {len(self.names)} files failed; `error` in {where} has the reason" if failed else ""

    def left(self) -> list[str]:
        return [name for name in self.names if name not in self._statuses]

    def run(self, predict: Predict, fetch: Fetch, limits: Limits, at_once: int, checkpoint: Callable[[], None]) -> None:
        """Process all remaining files. `checkpoint` is called often: it saves progress, and raises Interrupted.

        At most `at_once` files are submitted, so that an interrupt leaves no queue.
        """
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="batch")
        remaining, pending = iter(self.left()), set[Future[Outcome]]()
        try:
            while pending := pending | {
                pool.submit(self._outcome, name, predict, fetch, limits)
                for name in islice(remaining, at_once - len(pending))
            }:
                done, pending = wait(pending, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for outcome in (future.result() for future in done):
                    self._outputs.write(f"{FILES}{outcome.file}.json", msgspec.json.encode(outcome))
                    with self._spool.open("ab") as file:
                        file.write(_line(outcome))
                    self._statuses[outcome.file] = outcome.status
                checkpoint()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _outcome(self, name: str, predict: Predict, fetch: Fetch, limits: Limits) -> Outcome:
        """Return the outcome of one file, also of an invalid one. Raise Interrupted where the model is at fault."""
        job = self._batch.id
        try:
            if self._link is not None and not name.lower().endswith(".json"):
                media = self._link(f"{self._inputs.uri.rstrip('/')}/{name}")
                values = {**self._batch.parameters, self._schema.parameter_with_role("media"): media.name}
                model_request = Request(validate(self._schema, values), (media,))
            else:
                content = self._inputs.read(name)
                model_request = request(self._schema, self._batch.parameters, name, content, limits, fetch)
            return Outcome(name, "completed", predict(model_request), job=job)
        except NotFound:
            return Outcome(name, "error", error=f"{name} was removed while the job ran", job=job)
        except PlatformError as error:
            if isinstance(error, InferenceFailed) and error.status in MODEL_UNAVAILABLE:
                raise Interrupted(str(error)) from error
            return Outcome(name, "error", error=str(error), job=job)

    def finish(self, labels: label_accuracy.Labels | None) -> dict[str, Any] | None:
        """Write all results to one file, sorted by name, and the scores where there are labels."""
        ordered = self._spool.with_suffix(".sorted")
        _sort(self._spool, ordered)
        self._outputs.write(RESULTS, ordered)
        ordered.unlink()
        if labels is None:
            return None
        metrics = label_accuracy.metrics(_lines(self._spool), labels)
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
