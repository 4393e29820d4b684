"""The HTTP dialect of the TensorRT Inference Server, Triton's ancestor: health, status, inference, profile.

Requests are described in the header NV-InferRequest, outcomes in NV-Status, both protobuf text. A failure has an empty
body and the same status as in every other dialect. Few servers are asked so: the codecs, which take milliseconds to
import, come with the first call.
"""

from collections.abc import Awaitable

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import Dialect, Route
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.server import Server


def error_body(error: PredictorError) -> Reply:
    from pilotlight_predictor.routes import trtis_calls

    return trtis_calls.error_body(error)


def live(server: Server, call: Call) -> Reply:
    from pilotlight_predictor.routes import trtis_calls

    return trtis_calls.live(server, call)


def ready(server: Server, call: Call) -> Reply:
    from pilotlight_predictor.routes import trtis_calls

    return trtis_calls.ready(server, call)


def status(server: Server, call: Call) -> Reply:
    from pilotlight_predictor.routes import trtis_calls

    return trtis_calls.status(server, call)


def infer(server: Server, call: Call) -> None:
    from pilotlight_predictor.routes import trtis_calls

    trtis_calls.infer(server, call)


def profile(server: Server, call: Call) -> Awaitable[Reply]:
    from pilotlight_predictor.routes import trtis_calls

    return trtis_calls.profile(server, call)


DIALECT = Dialect(
    "trtis",
    (
        Route("GET", "/api/health/live", live, Action.HEALTH, hot=True),
        Route("GET", "/api/health/ready", ready, Action.HEALTH, hot=True),
        Route("GET", "/api/status", status, Action.READ),
        Route("GET", "/api/status/{model}", status, Action.READ),
        Route("POST", "/api/infer/{model}", infer, Action.INFER, hot=True),
        Route("POST", "/api/infer/{model}/{version}", infer, Action.INFER, hot=True),
        Route("GET", "/api/profile", profile, Action.ADMIN),
    ),
    error_body,
)
