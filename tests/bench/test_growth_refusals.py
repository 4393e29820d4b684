"""A real server that refuses most of its load: every axis under load counts the refusals and none of them as a rate."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bench.environments import Environment, own_environment
from bench.growth.axes import AXES
from bench.growth.curves import Growth, Setup, measure
from bench.machine import Cores, describe
from bench.models import Model, payload_of, write_models
from bench.processes import Command
from bench.servers import SERVERS, Ports, start_pilotlight
from bench.subject import Subject

FREE = Cores(None, None)


def narrow(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
    command = start_pilotlight(env, models, folder, ports)
    return replace(command, argv=[*command.argv, "--max-queue-size", "1"])


@pytest.mark.long
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.parametrize("name", ["connections", "batch-size", "models", "tensor-size"])
def test_refusals_are_counted_and_told(name: str, tmp_path: Path) -> None:
    models = write_models(tmp_path)
    payloads = {key: payload_of(model) for key, model in models.items()}
    server = replace(SERVERS[0], start=narrow)
    growth = Growth(name, datetime.now(UTC).isoformat(), describe(), AXES[name].command, 1.0)
    subject = Subject(server, own_environment(), models, payloads, tmp_path, FREE)
    measure(AXES[name], [subject], Setup(tmp_path, FREE, 1.0, quick=True), growth)
    assert growth.failures
    assert all(" requests failed at " in failure for failure in growth.failures)
    (_, rate), (_, answers) = (growth.curves[figure][server.name][-1] for figure in ("rps", "answers"))
    assert 0 < rate < 1.2 * answers  # in a second; refusals would have raised it
