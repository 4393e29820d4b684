"""Requests to one microservice: wait for the model, infer by chat or tensors, probe."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import asking
from pilotlight.microservices.model import Entry, PlatformStatus
from platformctl import diagnosing, microservices, output, refused_requests, tensor_asking

PROBE_S: Final = 10.0


def wait_for_model(job_id: str, entry: Entry, max_wait_s: float) -> None:
    """Return once the model is loaded."""
    target, ticker = microservices.platform_of(entry), output.ProgressLog()
    with target.open_route(job_id, entry) as url, microservices.hints_for(job_id):
        try:
            asking.wait_for_model(
                url, lambda: target.status(job_id, entry), max_wait_s=max_wait_s, report=_reporter(ticker)
            )
        finally:
            ticker.close()


def _reporter(ticker: output.ProgressLog) -> Callable[[str], None]:
    return lambda message: ticker.log("loading", microservices.redacted(message))


def infer(
    job_id: str, entry: Entry, request: Mapping[str, Any], tensors: bool, timeout: float, max_wait_s: float
) -> asking.ChatResponse:
    """Send a chat or V2 tensor request; waits while the model loads."""
    target, ticker = microservices.platform_of(entry), output.ProgressLog()
    report = _reporter(ticker)

    def read_status() -> PlatformStatus:
        return target.status(job_id, entry)

    with target.open_route(job_id, entry) as url, microservices.hints_for(job_id):
        try:
            if tensors:  # only chat responses tell a loading model from a failed one
                asking.wait_for_model(url, read_status, max_wait_s=max_wait_s, report=report)
            send = asking.post_tensors if tensors else asking.post_chat
            reply = asking.send_chat(
                url, request, read_status, timeout=timeout, max_wait_s=max_wait_s, report=report, send=send
            )
            refused_requests.clear(job_id)
            return reply
        except UsageError as error:
            refused_requests.record(job_id, microservices.redacted(str(error).removeprefix(asking.REFUSED)))
            raise tensor_asking.explain_refusal(url, job_id, error) from None
        finally:
            ticker.close()


def probe_model(job_id: str, entry: Entry, timeout_s: float = PROBE_S) -> diagnosing.ModelStatus:
    target = microservices.platform_of(entry)
    try:
        with target.open_route(job_id, entry) as url:
            verdict = asking.classify(asking.post_chat(url, asking.PROBE, timeout_s))
            return diagnosing.model_status(verdict, asking.get_status(url, timeout_s))
    except (PlatformError, OSError):
        return diagnosing.UNREACHABLE


def accepts_tensors(job_id: str, entry: Entry) -> bool | None:
    """Return None if the model's metadata does not say."""
    try:
        with microservices.platform_of(entry).open_route(job_id, entry) as url:
            inputs = asking.metadata(url, PROBE_S).get("inputs")
    except (PlatformError, OSError):
        return None
    return all(each["name"] != asking.CHAT_INPUT for each in inputs) if inputs else None
