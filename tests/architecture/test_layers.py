"""The layers: imports point down the list, and neither modules nor folders import each other in a cycle.

Imports of every kind count: at the top of a module, inside a function, and under TYPE_CHECKING.
"""

from collections.abc import Iterable, Mapping

import pytest
from tests.architecture.source_tree import ROOT, by_name, edges, modules, within

PREDICTOR = "pilotlight_predictor"

# From the bottom up. A layer may import itself and what stands before it. A name stands for all that lies below it; the
# longest one counts, so `targets` is the interface and `targets.local` one implementation of it.
LAYERS: Mapping[str, tuple[str, ...]] = {
    "pilotlight": (
        "contract", "errors", "jwt_verification", "wire", "v2_tensors", "client",
        "k8s", "targets", "prometheus", "spec", "catalogue",
        "plan", "render", "lint", "release", "canaries", "observability", "gateway", "targets.kubernetes",
        "controller", "targets.local", "targets.ssh_tunnel", "targets.docker", "targets.slurm", "targets.remote",
        "targets.lepton", "targets.brev", "targets.table", "simulation", "api", "microservices", "console",
        "control_plane", "sdk",
    ),
    "pilotlight_predictor": (
        "errors", "core", "observability", "config", "metrics", "storage", "gpu", "repository", "backends",
        "scheduling", "models", "server", "frontends", "protocols", "workers", "fronts",
        "bootstrap", "__main__",
    ),
    "platformctl": (
        "output", "completion", "targets", "manifest_files", "options", "services", "profiles", "canary",
        "microservice", "doctor", "main", "commands", "__main__",
    ),
}  # fmt: skip


def layer(name: str) -> tuple[str, int] | None:
    """Package and position of a module; None for the package itself: its version, and names imported on first use."""
    package, _, rest = name.partition(".")
    matching = [each for each in LAYERS[package] if within(rest, each)]
    if not rest:
        return None
    assert matching, f"{name} belongs to no layer of tests/architecture/test_layers.py"
    return package, LAYERS[package].index(max(matching, key=len))


def test_imports_point_down_the_layers() -> None:
    upwards = []
    for name, targets in edges().items():
        for target in targets:
            here, there = layer(name), layer(target)
            if here and there and here[0] == there[0] and here[1] < there[1]:
                upwards.append(f"{name} imports {target}")
    assert not sorted(upwards)


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        work = [(root, iter(sorted(graph[root])))] if root not in index else []
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(graph.get(target, ())))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
    return found


def test_a_circle_would_be_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == [["a", "b", "c"]]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """`pilotlight` imports what it exports with the first use of the name, and holds the version that others import."""
    assert not circles({name: targets for name, targets in edges().items() if name != "pilotlight"})


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    """Below each package, a folder counts as one; `targets` is apart from its implementations."""
    folders = {module.folder for module in modules()}
    for package in sorted(folders):
        graph: dict[str, set[str]] = {}
        for name, targets in edges().items():
            if (here := child(package, name)) is not None:
                graph.setdefault(here, set()).update(
                    there for target in targets if (there := child(package, target)) not in (None, here)
                )
        assert not circles(graph), package


def child(package: str, name: str) -> str | None:
    """The module or folder directly below `package` that holds the module; None for others."""
    if not name.startswith(f"{package}."):
        return None
    position = layer(name) if package in LAYERS else None
    return LAYERS[package][position[1]] if position else name[len(package) + 1 :].split(".")[0]


def test_what_both_sides_share_stands_at_the_bottom() -> None:
    allowed = ("pilotlight.contract", "pilotlight.wire")
    foreign = [
        f"{name} imports {target}"
        for name, targets in edges().items()
        if within(name, PREDICTOR)
        for target in targets
        if within(target, "pilotlight") and not any(within(target, shared) for shared in allowed)
    ]
    assert not foreign


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_every_layer_exists(package: str) -> None:
    assert not [name for name in LAYERS[package] if f"{package}.{name}" not in by_name()]


def page_section(title: str) -> str:
    text = (ROOT / "docs/architecture.md").read_text()
    return text[text.index(f"## {title}\n") :].split("\n## ", 1)[0]


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_the_page_has_the_layers_in_this_order(package: str) -> None:
    listed = page_section("Layers").partition(f"\n- `{package}`: ")[2].partition("\n- ")[0].partition("\n\n")[0]
    names = [name.split()[0].replace("/", ".") for name in listed.split("<")]
    assert tuple(names) == LAYERS[package]


def test_the_page_names_every_folder_and_no_other() -> None:
    section = page_section("Folders")
    named = {line.split("`")[1].rstrip("/") for line in section.splitlines() if line.startswith("| `")}
    packages = {module.folder for module in modules()}
    folders = {str(by_name()[name].path.parent.relative_to(ROOT)) for name in packages if name in by_name()}
    expected = {folder for folder in folders if folder.split("/", 2)[2:]}  # below the three packages
    assert named == expected
