"""The pages of this repository lead to one another: each link's file is there, and so is its heading."""

import re
from pathlib import Path

import pytest

from tests.source_code import ROOT

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docker/*.md", "infra/*/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them; lines of code blocks are none."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_of_a_page_leads_somewhere(page: Path) -> None:
    for file, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{file}#{anchor}"
