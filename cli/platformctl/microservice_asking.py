"""One microservice over the way to it: waited for, asked by chat or by tensors, and looked at; for the verbs."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import asking
from pilotlight.microservices.model import Entry, Seen
from platformctl import diagnosing, microservices, output, refused_requests, tensor_asking

PROBE_S: Final = 10.0


def await_model(job_id: str, entry: Entry, patience: float) -> None:
    """Returns once the model is loaded."""
    place, ticker = microservices.reached(entry), output.Ticker()
    with place.way(job_id, entry) as url, microservices.hints_for(job_id):
        try:
            asking.await_model(url, lambda: place.look(job_id, entry), patience=patience, say=_sayer(ticker))
        finally:
            ticker.close()


def _sayer(ticker: output.Ticker) -> Callable[[str], None]:
    return lambda message: ticker.say("loading", microservices.shown(message))


def answer(
    job_id: str, entry: Entry, request: Mapping[str, Any], tensors: bool, timeout: float, patience: float
) -> asking.Reply:
    """To a chat, or to V2's tensors; waits while the model loads."""
    place, ticker = microservices.reached(entry), output.Ticker()
    say = _sayer(ticker)

    def look() -> Seen:
        return place.look(job_id, entry)

    with place.way(job_id, entry) as url, microservices.hints_for(job_id):
        try:
            if tensors:  # only to a chat does it say whether its model will ever be there
                asking.await_model(url, look, patience=patience, say=say)
            send = asking.post_tensors if tensors else asking.post
            reply = asking.ask(url, request, look, timeout=timeout, patience=patience, say=say, send=send)
            refused_requests.forget(job_id)
            return reply
        except UsageError as error:
            refused_requests.note(job_id, microservices.shown(str(error).removeprefix(asking.REFUSED)))
            raise tensor_asking.instead(url, job_id, error) from None
        finally:
            ticker.close()


def model(job_id: str, entry: Entry) -> diagnosing.Model:
    place = microservices.reached(entry)
    try:
        with place.way(job_id, entry) as url:
            verdict = asking.judge(asking.post(url, asking.PROBE, PROBE_S))
            return diagnosing.model(verdict, asking.status_of(url, PROBE_S))
    except (PlatformError, OSError):
        return diagnosing.UNREACHABLE


def takes_tensors(job_id: str, entry: Entry) -> bool | None:
    """None: it does not say, so its network tells."""
    try:
        with microservices.reached(entry).way(job_id, entry) as url:
            inputs = asking.metadata(url, PROBE_S).get("inputs")
    except (PlatformError, OSError):
        return None
    return all(each["name"] != asking.CHAT_INPUT for each in inputs) if inputs else None
