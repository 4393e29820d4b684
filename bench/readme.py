"""Figures of README.md and docs/benchmarks.md, from the newest result of each kind in bench/results.

`python -m bench readme` writes them between the marks of each section; a test compares the pages with the results.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.cluster import report as cluster
from bench.embedded import report as embedded
from bench.growth import report as growth
from bench.growth.curves import BENCHMARK as GROWTH
from bench.growth.curves import Growth
from bench.load import BenchError
from bench.promises import promises
from bench.report import HEADLINES, ROWS, conditions, side_by_side, table
from bench.rounds import BENCHMARK, Result
from bench.simulation import ON_CLUSTER as SIMULATION_ON_CLUSTER
from bench.simulation import SUBJECT as SIMULATION
from bench.simulation import cluster_tables
from bench.simulation import table as simulation_table
from bench.text import report as text

Document = dict[str, Any]
Sections = Mapping[str, Callable[[Path], str]]


def write_page(page: Path, results: Path, sections: Sections) -> None:
    page.write_text(with_figures(page.read_text(), results, sections))


def with_figures(page: str, results: Path, sections: Sections) -> str:
    """Return a page's text with its sections written from the results."""
    for name, section in sections.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise BenchError(f"the page has no {start} … {end}: put both where the figures belong")
        page = "\n\n".join([before + start, section(results), end + after])
    return page


def readme_section(results: Path) -> str:
    """Four rows and one chart."""
    newest, result = _peers(results)
    machine = result.machine
    rows = [row for row in ROWS if row.figure in README_ROWS]
    picture = f"![Requests per second, time to ready and memory of each server](bench/results/{newest.stem}.svg)"
    where = f"{result.date[:10]}, {machine['cpu']}, one core for each server, the same ONNX model"
    return "\n\n".join([side_by_side(result, rows), picture, f"{where}. {README_NOTE}"])


def peers_section(results: Path) -> str:
    newest, result = _peers(results)
    link = f"[All figures of this run](../bench/results/{newest.stem}.md)."
    picture = f"![Requests per second, time to ready and memory of each server](../bench/results/{newest.stem}.svg)"
    return "\n\n".join([table(result, HEADLINES), f"{conditions(result)} {link}", picture])


def targets_section(results: Path) -> str:
    return promises(_peers(results)[1])


def embedded_section(results: Path) -> str:
    newest = newest_result(results, embedded.SUBJECT)
    return embedded.headlines(Result.from_dict(json.loads(newest.read_text())), f"../bench/results/{newest.stem}.md")


def simulation_section(results: Path) -> str:
    if not _documents(results, SIMULATION):
        return "No result yet: `python -m bench.simulation` on an idle machine."
    newest = newest_result(results, SIMULATION)
    document = json.loads(newest.read_text())
    machine = document["machine"]
    where = f"{document['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, load average {machine['load_after']}"
    return f"{simulation_table(document)}\n\n{where}: [`{newest.stem}`](../bench/results/{newest.stem}.json)."


def cluster_simulation_section(results: Path) -> str:
    if not _documents(results, SIMULATION_ON_CLUSTER):
        return "Not compared yet: Knative and KEDA on a real cluster (`python -m bench.simulation --cluster`)."
    newest = newest_result(results, SIMULATION_ON_CLUSTER)
    document = json.loads(newest.read_text())
    machine, versions = document["machine"], ", ".join(f"{name} {each}" for name, each in document["versions"].items())
    where = f"{document['date'][:10]}, {versions}, {machine['cpu']}, load average {machine['load_after']}"
    return f"{cluster_tables(document)}\n\n{where}: [`{newest.stem}`](../bench/results/{newest.stem}.json)."


def growth_section(results: Path) -> str:
    """One chart for each axis, from its newest run."""
    found = sorted(_documents(results, GROWTH).items(), key=lambda item: item[1]["date"])
    newest = {document["axis"]: (path.stem, Growth.from_dict(document)) for path, document in found}
    return growth.gallery([newest[axis] for axis in growth.ORDER if axis in newest])


def cluster_section(results: Path) -> str:
    """Each table from the newest run that has it."""
    found = sorted(_documents(results, cluster.BENCHMARK).items(), key=lambda item: item[1]["date"])
    newest = {
        name: f"{text}\n\n{document['date'][:10]}, {document['machine']['cpu']}, {document['machine']['cores']} cores"
        f" ([all figures](../bench/results/{path.stem}.md))"
        for path, document in found
        for name, text in cluster.sections(document).items()
    }
    return "\n\n".join(f"#### {newest[name]}" for name in cluster.HEADINGS if name in newest)


def text_section(results: Path) -> str:
    if not _documents(results, text.BENCHMARK):
        return "No result yet: `python -m bench.text` on an idle machine."
    return text.section(Result.from_dict(json.loads(newest_result(results, text.BENCHMARK).read_text())))


def prefix_section(results: Path) -> str:
    """The table of each bench, from its newest run."""
    tables = []
    for benchmark in ("prefix", "prefix-llama-cpp"):
        if found := _documents(results, benchmark):
            path, document = max(found.items(), key=lambda item: item[1]["date"])
            _, rows = path.with_suffix(".md").read_text().strip().split("\n\n", 1)
            machine, load = document["machine"], f"{document['requests']} requests, {document['clients']} clients"
            where = f"{document['date'][:10]}, {machine['cpu']}, {machine['cores']} cores; {load}"
            tables.append(f"{rows}\n\n{where}: [`{path.stem}`](../bench/results/{path.stem}.md)")
    return "\n\n".join(tables) or "No result yet: `python -m bench.prefix` on an idle machine."


README_ROWS = ("json.c32.rps", "grpc.r1c8.rps", "start.ready_s", "memory.idle_mb")
README_NOTE = (
    "In parentheses: Pilotlight's advantage as a factor. Triton runs its Python backend, since NVIDIA's wheel has no "
    "other for ONNX. Method, all figures, and the targets we missed: [docs/benchmarks.md](docs/benchmarks.md)."
)
README: Sections = {"bench": readme_section}
BENCHMARKS_PAGE: Sections = {
    "bench": peers_section,
    "bench-targets": targets_section,
    "bench-embedded": embedded_section,
    "bench-simulation": simulation_section,
    "bench-simulation-cluster": cluster_simulation_section,
    "bench-text": text_section,
    "bench-prefix": prefix_section,
    "bench-growth": growth_section,
    "bench-cluster": cluster_section,
}


def _peers(results: Path) -> tuple[Path, Result]:
    newest = newest_result(results, BENCHMARK)
    return newest, Result.from_dict(json.loads(newest.read_text()))


def newest_result(results: Path, benchmark: str) -> Path:
    dated = [(document["date"], path) for path, document in _documents(results, benchmark).items()]
    if not dated:
        raise BenchError(f"no result of {benchmark} in {results.name}: run `make bench` first")
    return max(dated)[1]


def _documents(results: Path, benchmark: str) -> dict[Path, Document]:
    """Return the results of one benchmark; all of them share the folder."""
    found = {path: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    return {path: doc for path, doc in found.items() if isinstance(doc, dict) and doc.get("benchmark") == benchmark}
