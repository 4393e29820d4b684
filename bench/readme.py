"""The figures of README and docs/benchmarks.md, from kept results: peers, embedded platform, growth, a real cluster.

`python -m bench readme` puts the newest of each kind between the section's marks; a test holds the pages against them.
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
from bench.report import conditions, table
from bench.rounds import BENCHMARK, Result
from bench.text import report as text

Document = dict[str, Any]
Sections = Mapping[str, Callable[[Path], str]]


def write_readme(readme: Path, results: Path, sections: Sections | None = None) -> None:
    readme.write_text(with_figures(readme.read_text(), results, sections))


def with_figures(page: str, results: Path, sections: Sections | None = None) -> str:
    """Return a page's text with its sections from the stored results; the sections of the README by default."""
    for name, section in (SECTIONS if sections is None else sections).items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise BenchError(f"the page has no {start} … {end}: put both where the figures belong")
        page = "\n\n".join([before + start, section(results), end + after])
    return page


def peers_section(results: Path) -> str:
    newest = newest_result(results, BENCHMARK)
    result = Result.from_dict(json.loads(newest.read_text()))
    picture = f"![Requests per second, time to ready and memory of each server](bench/results/{newest.stem}.svg)"
    held = f"What was promised, and what [that run](bench/results/{newest.stem}.md) says of it:"
    return "\n\n".join([table(result, headline=True), conditions(result), picture, held, promises(result)])


def embedded_section(results: Path) -> str:
    newest = newest_result(results, embedded.SUBJECT)
    return embedded.headlines(Result.from_dict(json.loads(newest.read_text())), f"bench/results/{newest.stem}.md")


def growth_section(results: Path) -> str:
    """One picture for each axis, from its newest run."""
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
    return "\n\n".join(f"### {newest[name]}" for name in cluster.HEADINGS if name in newest)


def text_section(results: Path) -> str:
    if not _documents(results, text.BENCHMARK):
        return "Not kept yet: `python -m bench.text` on a machine that others leave alone."
    return text.section(Result.from_dict(json.loads(newest_result(results, text.BENCHMARK).read_text())))


SECTIONS: Sections = {
    "bench": peers_section,
    "bench-embedded": embedded_section,
    "bench-growth": growth_section,
}
BENCHMARKS_PAGE: Sections = {"bench-text": text_section, "bench-cluster": cluster_section}


def newest_result(results: Path, benchmark: str) -> Path:
    dated = [(document["date"], path) for path, document in _documents(results, benchmark).items()]
    if not dated:
        raise BenchError(f"no result of {benchmark} in {results.name}: run `make bench` first")
    return max(dated)[1]


def _documents(results: Path, benchmark: str) -> dict[Path, Document]:
    """All benchmarks keep their results in the same folder; each says which it is."""
    found = {path: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    return {path: doc for path, doc in found.items() if isinstance(doc, dict) and doc.get("benchmark") == benchmark}
