"""What is generated into docs/ is what the code says now."""

import pytest
from tests.generated_pages import GENERATED, GeneratedPage


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.path)
def test_a_generated_page_is_up_to_date(page: GeneratedPage) -> None:
    assert page.written() == page.text(), "run: make docs"
