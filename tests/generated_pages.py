"""Pages and sections that are made from code; `python -m tests.generated_pages` (make docs) writes them."""

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.architecture import field_english
from tests.cli import cli_page
from tests.doc_pages import page_section, with_section
from tests.platform.catalogue import formats_page
from tests.platform.lint import lint_page
from tests.platform.observability import control_metrics_page
from tests.platform.spec import annotations_page, errors_page
from tests.predictor.config import settings_page, triton_flags_page
from tests.predictor.metrics import metrics_page
from tests.serving import ROOT
from tests.triton_compatibility import scores_page


class GeneratedPage(NamedTuple):
    """`text` makes a whole page, or the section that its heading names."""

    path: str
    text: Callable[[], str]
    section: str = ""

    def written(self) -> str:
        return page_section(self.path, self.section) if self.section else (ROOT / self.path).read_text("utf-8")

    def write(self) -> None:
        text = with_section(self.path, self.section, self.text()) if self.section else self.text()
        (ROOT / self.path).write_text(text, "utf-8")


GENERATED: Final = (
    GeneratedPage("docs/reference/settings.md", settings_page.page),
    GeneratedPage("docs/how-to/migrate-triton.md", triton_flags_page.page, "Flags"),
    GeneratedPage("docs/how-to/migrate-triton.md", scores_page.page, "Recorded cases"),
    GeneratedPage("docs/reference/cli.md", cli_page.page),
    GeneratedPage("docs/reference/manifests.md", annotations_page.page, "Annotations"),
    GeneratedPage("docs/reference/lint.md", lint_page.page),
    GeneratedPage("docs/reference/errors.md", errors_page.page),
    GeneratedPage("docs/reference/metrics.md", metrics_page.page, "Metrics of a predictor"),
    GeneratedPage("docs/reference/metrics.md", control_metrics_page.page, "Metrics of the control process"),
    GeneratedPage("CONTRIBUTING.md", field_english.page, "Words of user-facing text"),
    GeneratedPage("docs/reference/formats.md", formats_page.page, "Formats"),
)

if __name__ == "__main__":
    for page in GENERATED:
        page.write()
