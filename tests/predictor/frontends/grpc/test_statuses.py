"""Every error has its gRPC status."""

from pilotlight_predictor import errors
from pilotlight_predictor.errors import PredictorError


def every(kind: type[PredictorError]) -> set[type[PredictorError]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__() if each.__module__ == errors.__name__))


def test_every_class_of_the_tree_has_a_code_that_grpc_knows() -> None:
    import grpc

    assert {kind.grpc_status for kind in every(PredictorError)} <= set(grpc.StatusCode.__members__)
    plain = {kind.__name__ for kind in every(PredictorError) if kind.grpc_status == "INTERNAL"}
    assert plain == {"PredictorError", "Unreadable", "BackendFailed"}


def test_a_class_of_a_plug_in_has_the_code_of_what_it_derives_from() -> None:
    class Busy(errors.QueueFull):
        pass

    assert Busy.grpc_status == "UNAVAILABLE"
