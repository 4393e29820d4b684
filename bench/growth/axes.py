"""The table of axes, in the order in which they are measured and shown. A further one is a file and a line here."""

from collections.abc import Mapping

from bench.growth import (
    batch_size,
    connections,
    loaded_memory,
    model_count,
    rendering,
    services_at_zero,
    tensor_size,
)
from bench.growth.curves import Axis

AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        connections.AXIS,
        tensor_size.AXIS,
        batch_size.AXIS,
        model_count.AXIS,
        loaded_memory.AXIS,
        services_at_zero.AXIS,
        rendering.AXIS,
    )
}
