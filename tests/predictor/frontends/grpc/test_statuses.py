"""Every error has its gRPC status."""

from pilotlight_predictor import errors
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.grpc.dispatcher import CODES, code_of


def every(kind: type[PredictorError]) -> set[type[PredictorError]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__() if each.__module__ == errors.__name__))


def test_every_class_of_the_tree_has_a_code_that_grpc_knows() -> None:
    import grpc

    assert set(CODES) == every(PredictorError)
    assert set(CODES.values()) <= set(grpc.StatusCode.__members__)


def test_a_class_of_a_plug_in_has_the_code_of_what_it_derives_from() -> None:
    class Busy(errors.QueueFull):
        pass

    assert code_of(Busy) == "UNAVAILABLE"
