"""`python -m bench.cluster`: cold starts, autoscalers, drains, model caches and the controller on a real cluster."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.cluster.real_cluster import Cluster, find_cluster

from bench.__main__ import RESULTS, choice_of
from bench.cluster import cold, controller, drain, model_cache, picture, replay, scalers
from bench.cluster.images import import_kserve
from bench.cluster.report import BENCHMARK, Report, cold_table, markdown, scaling_table, sections, verdicts
from bench.cluster.subjects import SUBJECTS, deploy
from bench.cluster.trace import TRACE
from bench.environments import WORK
from bench.load import BenchError
from bench.machine import busy_share, describe, slug
from bench.rounds import Result, note_failure

CASES: Final = (*scalers.MODES, "cold", "drain", "model-cache", "controller")
STARTS: Final = 20
BUSY: Final = 0.25  # share of the machine that the idle cluster and others may use


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    cluster = find_cluster(os.environ)
    if isinstance(cluster, str):
        print(f"bench: {cluster}", file=sys.stderr)
        return 1
    quiet = busy_share() <= BUSY
    if not quiet:
        print("warning: something else keeps this machine busy", file=sys.stderr)
    report = measure(cluster, options.cases, 2 if options.quick else options.starts)
    whole = not options.quick and set(options.cases) == set(CASES) and not report.cold.failures
    stem = write(report, RESULTS if options.keep or (whole and quiet) else WORK / "results")
    print(cold_table(report.cold), *verdicts(report.cold), scaling_table(report.scaling), sep="\n")
    print(*sections(report.to_dict()).values(), sep="\n\n")
    print(f"written: {stem}.json, .md, .svg", file=sys.stderr)
    return 0


def measure(cluster: Cluster, cases: Sequence[str], starts: int) -> Report:
    """A case that fails is noted; the others go on."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    report = Report(Result(date, describe(), False, 0.0, starts, versions(cluster), benchmark=BENCHMARK))
    report.trace = [asdict(piece) for piece in TRACE]
    for case in cases:
        try:
            if case == "cold":
                cold_starts(cluster, starts, report.cold)
            elif case == "controller":
                report.controller = controller.measure(cluster)
            elif case == "drain":
                report.drain = drain.measure(cluster, report.cold)
            elif case == "model-cache":
                report.model_cache = model_cache.measure(cluster)
            else:
                report.scaling[case] = scaling(cluster, case)
        except (BenchError, OSError, AssertionError) as error:
            note_failure(report.cold, f"{case}: {error or type(error).__name__}")
    report.load_after = f"{os.getloadavg()[0]:.2f}"
    return report


def cold_starts(cluster: Cluster, starts: int, result: Result) -> None:
    import_kserve()
    namespace = cluster.new_namespace("bench-cold")
    try:
        for subject in SUBJECTS:
            deploy(cluster, namespace, subject)
        cold.measure(cluster, namespace, SUBJECTS, starts, result)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def scaling(cluster: Cluster, mode: str) -> dict[str, dict[str, object]]:
    """The local autoscaler and the real one hear the same requests at the same time."""
    with ExitStack() as stack:
        local = stack.enter_context(scalers.on_this_machine(mode))
        real = stack.enter_context(scalers.on_cluster(cluster, mode))
        print(f"{mode}: both at zero, replaying", file=sys.stderr)
        return {played.name: replay.summary(played) for played in replay.play(TRACE, (local, real))}


def versions(cluster: Cluster) -> dict[str, str]:
    """Of the cluster, as it tells them itself."""
    server = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    knative = cluster.get("deployment", "controller", "-n", "knative-serving")
    keda = cluster.get("crd", "scaledobjects.keda.sh")
    label = "app.kubernetes.io/version"
    found = {"Kubernetes": server}
    for name, each in (("Knative", knative), ("KEDA", keda)):
        version = (each or {}).get("metadata", {}).get("labels", {}).get(label)
        found |= {name: version} if version else {}
    return found


def write(report: Report, directory: Path) -> Path:
    """A run of some cases adds to the others of its day."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{report.cold.date[:10]}-{slug(report.cold.machine)}-cluster"
    if stem.with_suffix(".json").exists():
        report.complete_from(json.loads(stem.with_suffix(".json").read_text()))
    stem.with_suffix(".json").write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    stem.with_suffix(".md").write_text(markdown(report, f"{stem.name}.svg"))
    if report.scaling:
        picture.draw(TRACE, report.scaling, stem.with_suffix(".svg"))
    return stem


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    made.add_argument("--cases", type=choice_of(CASES), default=CASES, help=f"of {','.join(CASES)}")
    made.add_argument("--starts", type=int, default=STARTS, help=f"cold starts of each server ({STARTS})")
    made.add_argument(
        "--keep",
        action="store_true",
        help="keep what was measured also of some cases, or on a busy machine; it says how busy",
    )
    made.add_argument("--quick", action="store_true", help="two cold starts, to try it out")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
