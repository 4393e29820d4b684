"""Growth as people read it: for each axis what our own curve says, its picture, and the command that makes both."""

from collections.abc import Sequence

from bench.growth.axes import AXES
from bench.growth.curves import Growth
from bench.plot import Curves, Sheet
from bench.servers import OURS, SERVERS

ORDER = tuple(AXES)
TITLES = {server.name: server.title for server in SERVERS}


def sentences(growth: Growth) -> list[str]:
    """Return one sentence for each panel that has a curve of Pilotlight."""
    found = ((panel, growth.curves.get(panel.figure, {}).get(OURS)) for panel in AXES[growth.axis].panels)
    return [panel.tell(points) for panel, points in found if points]


def caption(growth: Growth) -> str:
    """Where and when, and what to type."""
    machine = growth.machine
    before, after = machine.get("load_before", "?"), machine.get("load_after", "?")
    where = f"{machine['cpu']}, {machine['cores']} cores, load average {before} before and {after} after"
    return f"{growth.command} · {growth.date[:10]} · {where}"


def sheet(growth: Growth) -> Sheet:
    """What plot.py draws."""
    axis = AXES[growth.axis]
    panels = [
        Curves(panel.title, {TITLES.get(name, name): points for name, points in curves.items()})
        for panel in axis.panels
        if (curves := growth.curves.get(panel.figure))
    ]
    return Sheet(axis.title, axis.x_label, caption(growth), panels)


def markdown(growth: Growth, stem: str) -> str:
    """The page beside a picture: sentences, all points, and what failed."""
    axis = AXES[growth.axis]
    parts = [
        f"# {axis.title[0].upper()}{axis.title[1:]}",
        *([_bullets(sentences(growth))] if sentences(growth) else []),
    ]
    parts += [
        f"![{axis.title}]({stem}.svg)",
        table(growth),
        f"`{growth.command}`, {caption(growth).partition(' · ')[2]}.",
    ]
    return "\n\n".join([*parts, *(["What failed:\n\n" + _bullets(growth.failures)] if growth.failures else [])]) + "\n"


def table(growth: Growth) -> str:
    """A row for each server and step; failed requests have a column where there are any."""
    axis = AXES[growth.axis]
    failed = any(count for points in growth.curves.get("errors", {}).values() for _, count in points)
    columns = [(panel.figure, panel.title) for panel in axis.panels] + [("errors", "failed")] * failed
    lines = [f"| | {axis.x_label} | " + " | ".join(title for _, title in columns) + " |"]
    lines.append("|---|---:|" + "---:|" * len(columns))
    by_server = [{s: dict(p) for s, p in growth.curves.get(figure, {}).items()} for figure, _ in columns]
    for server in by_server[0] if by_server else ():
        for x in by_server[0][server]:
            cells = [_cell(found.get(server, {}).get(x)) for found in by_server]
            lines.append(f"| {TITLES.get(server, server)} | {x:,.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gallery(found: Sequence[tuple[str, Growth]]) -> str:
    """All of them for docs/benchmarks.md, given by the stem of their files."""
    lines = ["Each chart names the command that measures it; `make bench` runs all of them.", ""]
    for stem, growth in found:
        axis = AXES[growth.axis]
        made = f"`{growth.command}`, {growth.date[:10]}"
        lines.append(f"- [{axis.title}](../bench/results/{stem}.md): {'; '.join(sentences(growth))}. {made}")
    pictures = [f"![{AXES[growth.axis].title}](../bench/results/{stem}.svg)" for stem, growth in found]
    return "\n".join([*lines, "", *"\n\n".join(pictures).splitlines()])


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if value < 10_000 else f"{value:,.0f}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
