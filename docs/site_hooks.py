"""Links of the pages, for MkDocs (mkdocs.yml) and for the test of all links.

Pages link to files outside docs/ as a git host wants it: `../examples/iris/train.py`. The site gets a page for each of
these files under files/, with the links rewritten, so that the same Markdown works in both places.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = "docs"
FILES: Final = "files"  # folder of the site for everything outside docs/
# Files that become a page with their text; all others but Markdown are copied as they are.
SOURCES: Final = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".proto": "protobuf", ".pbtxt": "text", "": "text"}

_CODE = re.compile(r"^(?P<fence> *`{3,}).*?^(?P=fence)`* *$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)? *$", re.M)


def prose(text: str) -> str:
    """The text with code blanked out, at the same offsets."""
    return _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def links(text: str) -> Iterator[re.Match[str]]:
    """Relative links of a page, with the groups `path` and `anchor`."""
    for match in _LINK.finditer(prose(text)):
        if not re.match(r"[a-z]+:", match["path"]):
            yield match


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as git hosts and our MkDocs settings make them."""
    fences = re.compile(r"^( *`{3,}).*?^\1`* *$", re.M | re.S)
    headings = _HEADING.findall(fences.sub("", text))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


def target(page: str, path: str) -> str:
    """Path in the repository that a link of `page` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page


def site_path(path: str) -> str:
    """Source path in the site of a file or folder of the repository."""
    if (ROOT / path).is_dir():
        return f"{FILES}/{path}/README.md"
    if path.startswith(f"{DOCS}/"):
        return path[len(DOCS) + 1 :]
    return f"{FILES}/{path}.md" if Path(path).suffix in SOURCES else f"{FILES}/{path}"


def rewritten(text: str, page: str) -> str:
    """The page with its links as the site needs them."""
    folder, parts, position = posixpath.dirname(site_path(page)), [], 0
    for match in links(text):
        if match["path"]:
            path = posixpath.relpath(site_path(target(page, match["path"])), folder or ".")
            parts += [text[position : match.start()], path, match["anchor"] or ""]
            position = match.end()
    return "".join([*parts, text[position:]])


def content(path: str) -> str:
    """Markdown of the page that stands for a file or a folder outside docs/."""
    place = ROOT / path
    if place.is_dir() and not (place / "README.md").exists():
        names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in place.iterdir())
        return "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names if name[0] not in "._")]) + "\n"
    if place.is_dir() or place.suffix == ".md":
        page = f"{path}/README.md" if place.is_dir() else path
        return rewritten((ROOT / page).read_text("utf-8"), page)
    text = place.read_text("utf-8").rstrip()
    return f"# {path}\n\n````{SOURCES[place.suffix]}\n{text}\n````\n"


def linked_files(pages: list[str]) -> set[str]:
    """Everything outside docs/ that the pages lead to, directly or through one another."""
    found: set[str] = set()
    queue = list(pages)
    while queue:
        page = queue.pop()
        text = (ROOT / page).read_text("utf-8")
        for path in {target(page, match["path"]) for match in links(text)}:
            if not site_path(path).startswith(f"{FILES}/") or path in found or not (ROOT / path).exists():
                continue
            found.add(path)
            readme = f"{path}/README.md" if (ROOT / path).is_dir() else path
            if readme.endswith(".md") and (ROOT / readme).exists():
                queue.append(readme)
    return found


def on_files(files: "Files", config: "MkDocsConfig", **_: Any) -> "Files":
    """Add the pages of what lies outside docs/."""
    from mkdocs.structure.files import File

    pages = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    for path in sorted(linked_files(pages)):
        uri = site_path(path)
        if files.get_file_from_path(uri) is None:
            source = {"content": content(path)} if uri.endswith(".md") else {"abs_src_path": os.fspath(ROOT / path)}
            files.append(File.generated(config, uri, **source))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: Any) -> str:
    """Rewrite the links of a page of docs/; the others are rewritten when they are made."""
    uri = page.file.src_uri
    return markdown if uri.startswith(f"{FILES}/") else rewritten(markdown, f"{DOCS}/{uri}")
