"""Process of one batch job: list the files, start the model, run it on them, collect results, stop the model.

Started by jobs.py as `python -m pilotlight.microservices.batch.runner FOLDER`. The model is stopped also after errors,
to free its GPU; only a killed process leaves that to jobs.py.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices import diagnosis
from pilotlight.microservices.batch import label_accuracy, workspace_storage
from pilotlight.microservices.batch.file_inference import Files, Interrupted, Request, check_parameters
from pilotlight.microservices.batch.job_folder import Batch, JobFolder, Progress, State
from pilotlight.microservices.inference import client, predict
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.jobs import launcher, org_resources
from pilotlight.microservices.jobs.model_isolation import check_model
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.media import limits_from
from pilotlight.microservices.media.file_and_bucket_sources import link
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.container_command import HUB
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.microservices.registry.registry_file import registry

LOAD_S: Final = 3600.0  # very large models load long
BUSY_S: Final = 60.0
FINAL_STATUS_S: Final = 5.0
UNSCORED: Final = frozenset({"segmentation", "tensors"})
SAVE_INTERVAL_S: Final = 0.5
log = logging.getLogger("pilotlight.batch")


class Runner:
    def __init__(self, folder: JobFolder, environ: Mapping[str, str]) -> None:
        self._job_folder, self._environ = folder, environ
        self._batch = folder.batch()
        self._limits = limits_from(environ)
        self._schema = model_kinds.schema(self._batch.network_arch, self._batch.declared, self._batch.kind)
        self._progress = Progress(self._batch.id, "pending", started_at=utc_now())
        self._saved_at = 0.0
        self._platform_status: PlatformStatus | None = None
        self._files: Files | None = None

    def run(self) -> Progress:
        """Run the job to a final state. Errors are recorded, not raised."""
        try:
            self._work()
        except Interrupted as error:
            cancelled = self._job_folder.cancelled
            self._finish("canceled" if cancelled else "failed", "" if cancelled else self._diagnose(error))
        except PlatformError as error:
            self._finish("failed", self._diagnose(error))
        except Exception:
            log.exception("batch job %s failed", self._batch.id)
            self._finish("failed", f"an internal error; see {self._job_folder.log}")
        return self._progress

    def _finish(self, state: State, message: str) -> None:
        """Record the final state with the counts so far."""
        counts = {"done": self._files.done, "failed": self._files.failed} if self._files else {}
        self._update(state=state, message=message, **counts)

    def _work(self) -> None:
        if self._batch.org:
            org_resources.check_folder(self._batch.org, self._batch.workspace, self._limits)
        batch, labels, storage = self._batch, None, (self._batch.workspace, self._limits, self._environ)
        if batch.labels:  # read before the model is started: they may be invalid
            folder, _, name = batch.labels.rpartition("/")
            labels = label_accuracy.read_labels(name, workspace_storage.open_folder(folder, *storage).read(name))
        inputs, outputs = (workspace_storage.open_folder(path, *storage) for path in (batch.inputs, batch.outputs))
        by_link = (lambda reference: link(reference, *storage)) if self._schema.kind in predict.NO_DATA_URLS else None
        files = self._files = Files(batch, self._schema, inputs, outputs, self._job_folder.spool, by_link)
        files.scan()
        self._update(
            state="loading", total=len(files.names), done=files.done, failed=files.failed, skipped=files.skipped
        )
        if files.left():
            with self._model() as url:
                self._update(state="running", message="")
                files.run(
                    lambda request: self._predict(url, request),
                    lambda references: predict.load_media(self._schema, references, *storage),
                    self._limits,
                    int(batch.parameters.get("batch_size", 1)),
                    lambda: self._checkpoint(files),
                )
        metrics = files.finish(labels)
        self._update(state="done", done=files.done, failed=files.failed, metrics=metrics, message=files.failure_summary)
        self._job_folder.spool.unlink(missing_ok=True)  # it is all in the storage

    def _predict(self, url: str, request: Request) -> dict[str, Any]:
        """Send one request; retry a busy server for BUSY_S with backoff."""
        end, pause = time.monotonic() + BUSY_S, 0.1
        while True:
            try:
                return predict.predict(url, self._schema, request.model_request, request.media, self._limits)
            except InferenceFailed as error:
                if error.status not in {429, 503} or time.monotonic() > end:
                    raise
            self._pause(pause)
            pause = min(2 * pause, 5.0)

    @contextmanager
    def _model(self) -> Iterator[str]:
        """Start a microservice, yield its URL when it is ready, and stop it."""
        target, job = self._prepare()
        provisional = target.provisional_entry(job.options, job.network_arch)
        self._job_folder.save_entry(provisional)  # if this process is killed, jobs.py stops the model by its id
        entry, before = None, signal.getsignal(signal.SIGTERM)
        try:
            self._check()
            entry = launcher.start(job, target, registry(self._environ))
            self._job_folder.save_entry(entry)
            registry(self._environ).remove(job.id)  # no other client uses it, or stops it as the latest
            wait = client.Wait(LOAD_S, lambda message: self._update(message=message), sleep=self._pause)
            read_status = partial(target.status, self._batch.id, entry)
            with client.open_route(partial(target.open_route, self._batch.id, entry), read_status, wait) as url:
                client.wait_for_model(url, read_status, wait)
                yield url.rstrip("/")
        except (Interrupted, PlatformError) as error:
            broke = isinstance(error, Interrupted) and not self._job_folder.cancelled
            if entry:
                self._platform_status = self._final_status(target, entry, FINAL_STATUS_S if broke else 0.0)
            raise
        finally:
            self._stop_model(target, entry, provisional)
        signal.signal(signal.SIGTERM, before)  # the rest may be terminated

    def _stop_model(self, target: TargetService, entry: Entry | None, provisional: Entry) -> None:
        """Stop the model. After a failed start, which is rolled back, an error here does not hide its reason."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a cancellation also sends one, and must not interrupt this
        try:
            target.stop(self._batch.id, entry or provisional)
            registry(self._environ).remove(self._batch.id)
        except PlatformError:
            if entry is not None:
                raise
        else:
            self._job_folder.save_entry(None)

    def _final_status(self, target: TargetService, entry: Entry, seconds: float) -> PlatformStatus | None:
        """Return the platform status after a failure; the platform may report the end only after `seconds`."""
        end = time.monotonic() + seconds
        with suppress(PlatformError):
            while (status := target.status(self._batch.id, entry)).state == "running" and time.monotonic() < end:
                time.sleep(0.1)
            return status
        return None

    def _prepare(self) -> tuple[TargetService, Job]:
        batch = self._batch
        remote = "://" in batch.model_path and not batch.model_path.startswith(HUB)
        access = org_resources.access(batch.workspace if remote else None, self._environ)
        environ = {**self._environ, **access.secret}
        request = launcher.StartRequest(
            batch.network_arch, batch.model_path, batch.platform, batch.num_gpus, batch.options, access.plain,
            tuple(access.secret), remote=True, isolation=batch.isolation, kind=self._schema.kind,
        )  # fmt: skip
        check_model(batch.org, batch.model_path, batch.isolation)
        return TargetService(batch.platform, environ), launcher.build_job(request, environ, batch.id)

    def _pause(self, seconds: float) -> None:
        """Sleep, checking for cancellation."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check()
            time.sleep(min(0.1, seconds))

    def _check(self) -> None:
        if self._job_folder.cancelled:
            raise Interrupted("cancelled")

    def _checkpoint(self, files: Files) -> None:
        self._check()
        if time.monotonic() - self._saved_at > SAVE_INTERVAL_S:
            self._update(done=files.done, failed=files.failed, message="")

    def _update(self, **changes: Any) -> None:
        self._saved_at = time.monotonic()
        self._progress = self._job_folder.save_progress(replace(self._progress, **changes))

    def _diagnose(self, error: Exception) -> str:
        """Return the error with a diagnosis or hint."""
        evidence = diagnosis.Evidence(
            job_id=self._batch.id, phase="failed", errors=(str(error),), platform=self._platform_status
        )
        findings = diagnosis.diagnose(evidence)
        hint = error.hint if isinstance(error, PlatformError) else ""
        parts = (str(error), findings[0].cause, findings[0].advice) if findings else (str(error), hint)
        return "; ".join(dict.fromkeys(filter(None, parts)))


def main(folder: JobFolder, environ: Mapping[str, str] = os.environ) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with folder.exclusive():
        folder.save_runner(os.getpid())
        signal.signal(signal.SIGTERM, _interrupt)
        progress = Runner(folder, environ).run()
    return 0 if progress.state in {"done", "canceled"} else 1


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the cleanup
    raise Interrupted("its process was stopped; start it again to continue")


def check(batch: Batch) -> None:
    """Raise for everything that can be rejected before the job's process is started."""
    schema = model_kinds.schema(batch.network_arch, batch.declared, batch.kind)
    check_parameters(schema, batch.parameters)
    for name, path in (("inputs", batch.inputs), ("outputs", batch.outputs)):
        if not path:
            raise UsageError(f"{name} is missing: a folder of the workspace {batch.workspace.base}")
        workspace_storage.check_path(path, batch.workspace)
    workspace_storage.check_exists(batch.inputs, batch.workspace)
    if batch.labels:
        workspace_storage.check_path(batch.labels, batch.workspace)
        if schema.kind in UNSCORED:
            raise UsageError(f"labels = {batch.labels}: results of the kind {schema.kind} cannot be scored by labels")


if __name__ == "__main__":
    sys.exit(main(JobFolder(Path(sys.argv[1]))))
