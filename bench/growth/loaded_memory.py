"""Memory against the number of loaded models, each of which has answered once; and the CPU time until then."""

from collections.abc import Iterator

from bench.growth.curves import Axis, Panel, Point, Setup
from bench.growth.fit import each
from bench.growth.model_count import copies_serving, steps_of
from bench.processes import alone_mb, cpu_seconds, settled_memory_mb
from bench.servers import OURS
from bench.subject import Subject


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    for count in steps_of(setup, subject):
        with copies_serving(subject, count) as (server, _):
            started = cpu_seconds(server.pid)
            yield Point(count, {"memory_mb": settled_memory_mb(server.pid, weigh=alone_mb), "cpu_s": started})


AXIS = Axis(
    "memory",
    "small ONNX models in one server",
    "loaded models",
    (
        Panel("memory_mb", "memory, MB", each("memory", "MB")),
        Panel("cpu_s", "CPU until all have answered, s", each("CPU of the start", "s")),
    ),
    measure,
    servers=(OURS, "kserve", "mlserver", "triton"),
    steady=True,
)
