"""The life of one batch job, in a process of its own: survey, start the model, ask, gather, and end the model.

Started by jobs.py as `python -m pilotlight.microservices.batch FOLDER`. The model is ended on every way out, so that
its GPU is free again; only a process that is killed leaves it to jobs.py.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import asking, chat_body, diagnosis, kinds, predicting, starting, workspaces
from pilotlight.microservices.batch import folders, scoring
from pilotlight.microservices.batch.files import Files, Interrupted
from pilotlight.microservices.batch.keeping import Kept
from pilotlight.microservices.batch.model import Batch, Progress, State
from pilotlight.microservices.batch.requests import Request
from pilotlight.microservices.calling import AskingFailed
from pilotlight.microservices.media import Media, fetch, limits_from
from pilotlight.microservices.media.links import linked, links
from pilotlight.microservices.model import Entry, Job, Seen
from pilotlight.microservices.model_paths import HUB
from pilotlight.microservices.platforms import Platform, platform
from pilotlight.microservices.registry import registry
from pilotlight.targets.local.chronicle import utc

LOAD_S: Final = 3600.0  # very large models take their time, and nobody waits for an answer
BUSY_S: Final = 60.0
LAST_LOOK_S: Final = 5.0
UNSCORED: Final = frozenset({"segmentation", "tensors"})
NOTE_S: Final = 0.5
log = logging.getLogger("pilotlight.batch")


class Runner:
    def __init__(self, kept: Kept, environ: Mapping[str, str]) -> None:
        self._kept, self._environ = kept, environ
        self._batch = kept.batch()
        self._limits = limits_from(environ)
        self._schema = kinds.schema(self._batch.network_arch, self._batch.declared)
        self._progress = Progress(self._batch.id, "pending", started_at=utc())
        self._noted = 0.0
        self._seen: Seen | None = None
        self._files: Files | None = None

    def run(self) -> Progress:
        """Ends in a state that says how it went; raises nothing."""
        try:
            self._worked()
        except Interrupted as error:
            cancelled = self._kept.cancelled
            self._stopped("canceled" if cancelled else "failed", "" if cancelled else self._diagnosed(error))
        except PlatformError as error:
            self._stopped("failed", self._diagnosed(error))
        except Exception:
            log.exception("batch job %s failed", self._batch.id)
            self._stopped("failed", f"an error of ours; {self._kept.log} has the details")
        return self._progress

    def _stopped(self, state: State, message: str) -> None:
        """With what was done until then."""
        counts = {"done": self._files.done, "failed": self._files.failed} if self._files else {}
        self._note(state=state, message=message, **counts)

    def _worked(self) -> None:
        batch = self._batch
        labels = self._labels()
        files = self._files = self._opened()
        files.survey()
        self._note(state="loading", total=len(files.names), done=files.done, failed=files.failed, skipped=files.skipped)
        if files.left():
            with self._model() as url:
                self._note(state="running", message="")
                files.ask_all(
                    lambda made: self._asked(url, made),
                    self._fetch,
                    self._limits,
                    int(batch.parameters.get("batch_size", 1)),
                    lambda: self._going_on(files),
                )
        metrics = files.finish(labels)
        self._note(state="done", done=files.done, failed=files.failed, metrics=metrics, message=files.lacking)
        self._kept.spool.unlink(missing_ok=True)  # the storage has it all

    def _asked(self, url: str, made: Request) -> dict[str, Any]:
        """A server that is too busy is asked again for a while."""
        end, pause = time.monotonic() + BUSY_S, 0.1
        while True:
            try:
                return predicting.ask(url, self._schema, made.asked, made.media, self._limits)
            except AskingFailed as error:
                if error.status not in {429, 503} or time.monotonic() > end:
                    raise
            self._pause(pause)
            pause = min(2 * pause, 5.0)

    def _opened(self) -> Files:
        inputs, outputs = (self._folder(path) for path in (self._batch.inputs, self._batch.outputs))
        link = self._linked if self._schema.kind in chat_body.NO_DATA_URLS else None
        return Files(self._batch, self._schema, inputs, outputs, self._kept.spool, link)

    def _linked(self, reference: str) -> Media:
        return linked(reference, self._batch.workspace, self._limits, self._environ)

    def _folder(self, path: str) -> folders.Folder:
        return folders.opened(path, self._batch.workspace, self._limits, self._environ)

    def _labels(self) -> scoring.Labels | None:
        """Read before a model is started: what cannot be scored need not be run."""
        if not self._batch.labels:
            return None
        folder, _, name = self._batch.labels.rpartition("/")
        return scoring.read_labels(name, self._folder(folder).read(name))

    def _fetch(self, references: Sequence[str]) -> list[Media]:
        if self._schema.kind in chat_body.NO_DATA_URLS:
            return links(references, self._batch.workspace, self._limits, self._environ)
        return fetch(references, self._batch.workspace, self._limits, environ=self._environ)

    @contextmanager
    def _model(self) -> Iterator[str]:
        """The address of a microservice of our own, which ends with this block."""
        at, job = self._prepared()
        begun = starting.begun(at.name, job.options, job.network_arch)
        # It may take an hour: whoever finds this process killed meanwhile ends it by its id.
        self._kept.note_entry(begun)
        entry, before = None, signal.getsignal(signal.SIGTERM)
        try:
            self._check()
            entry = self._started(at, job)
            with at.way(self._batch.id, entry) as url:
                asking.await_model(
                    url, lambda: at.look(self._batch.id, entry), patience=LOAD_S, say=self._loading, sleep=self._pause
                )
                yield url.rstrip("/")
        except (Interrupted, PlatformError) as error:
            broke = isinstance(error, Interrupted) and not self._kept.cancelled
            self._seen = self._last_look(at, entry, LAST_LOOK_S if broke else 0.0) if entry else None
            raise
        finally:
            self._ended(at, entry, begun)
        signal.signal(signal.SIGTERM, before)  # what is left to do may be ended like anything else

    def _ended(self, at: Platform, entry: Entry | None, begun: Entry) -> None:
        """Of a start that failed, nothing is left as a rule; where that cannot be made sure, its reason is told."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever cancels also sends one, and it must not cut this off
        try:
            at.stop(self._batch.id, entry or begun)
            registry(self._environ).remove(self._batch.id)
        except PlatformError:
            if entry is not None:
                raise
        else:
            self._kept.note_entry(None)

    def _last_look(self, at: Platform, entry: Entry, patience: float) -> Seen | None:
        """What ends a model breaks its connections first: its platform may need a moment to see it ended."""
        end = time.monotonic() + patience
        with suppress(PlatformError):
            while (seen := at.look(self._batch.id, entry)).state == "running" and time.monotonic() < end:
                time.sleep(0.1)
            return seen
        return None

    def _prepared(self) -> tuple[Platform, Job]:
        batch = self._batch
        remote = "://" in batch.model_path and not batch.model_path.startswith(HUB)
        access = workspaces.access(batch.workspace if remote else None, self._environ)
        environ = {**self._environ, **access.secret}
        at = platform(batch.platform, environ)
        values, missing = starting.options(at.options, batch.options, environ)
        starting.refuse_missing(missing, at.name)
        wish = starting.Wish(
            batch.network_arch, batch.model_path, batch.platform, batch.num_gpus, values, access.plain,
            tuple(access.secret), remote=True,
        )  # fmt: skip
        return at, starting.job(wish, environ, batch.id)

    def _started(self, at: Platform, job: Job) -> Entry:
        entry = starting.start(job, at, registry(self._environ))
        self._kept.note_entry(entry)
        registry(self._environ).remove(job.id)  # nobody else shall ask it, or stop it as the latest
        return entry

    def _loading(self, message: str) -> None:
        self._note(message=message)

    def _pause(self, seconds: float) -> None:
        """A cancellation is not kept waiting."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check()
            time.sleep(min(0.1, seconds))

    def _check(self) -> None:
        if self._kept.cancelled:
            raise Interrupted("cancelled")

    def _going_on(self, files: Files) -> None:
        self._check()
        if time.monotonic() - self._noted > NOTE_S:
            self._note(done=files.done, failed=files.failed, message="")

    def _note(self, **changes: Any) -> None:
        self._noted = time.monotonic()
        self._progress = replace(self._progress, **changes, updated_at=utc())
        self._kept.note(self._progress)

    def _diagnosed(self, error: Exception) -> str:
        """With what is likely wrong, where the words tell it."""
        evidence = diagnosis.Evidence(job_id=self._batch.id, phase="failed", errors=(str(error),), seen=self._seen)
        found = diagnosis.findings(evidence)
        hint = error.hint if isinstance(error, PlatformError) else ""
        told = (str(error), found[0].cause, found[0].advice) if found else (str(error), hint)
        return "; ".join(dict.fromkeys(filter(None, told)))


def main(kept: Kept, environ: Mapping[str, str] = os.environ) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with kept.alone():
        kept.note_runner(os.getpid())
        signal.signal(signal.SIGTERM, _terminated)
        found = Runner(kept, environ).run()
    return 0 if found.state in {"done", "canceled"} else 1


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut off what the first one's end undoes
    raise Interrupted("its process was told to end; start it again to go on")


def check(batch: Batch) -> None:
    """Everything that can be refused before a process is started for it."""
    from pilotlight.microservices.batch.requests import check_parameters

    of = kinds.schema(batch.network_arch, batch.declared)
    check_parameters(of, batch.parameters)
    base = batch.workspace.uri.rstrip("/").removeprefix("file://")
    for name, path in (("inputs", batch.inputs), ("outputs", batch.outputs)):
        if not path:
            raise UsageError(f"{name} is missing: a folder of the workspace {base}")
        folders.relative(path, base)
    folders.check_there(batch.inputs, batch.workspace)
    if batch.labels:
        folders.relative(batch.labels, base)
        if of.kind in UNSCORED:
            raise UsageError(f"labels = {batch.labels}: results of the kind {of.kind} cannot be scored by labels")
