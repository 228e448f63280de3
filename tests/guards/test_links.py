"""Every relative link of the documents leads to a file and a heading that exist, and every page is in the site."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
import yaml
from tests.guards.pages import listed
from tests.processes import REPOSITORY

DOCS = REPOSITORY / "docs"
SITE = REPOSITORY / "mkdocs.yml"
PAGES = sorted(DOCS.rglob("*.md"))
OTHERS = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOORS = ["Home", "Tutorial", "How-to", "Reference", "Explanation", "Archive"]


def prose(text: str) -> str:
    """A page without its code: blocks, and what stands between backquotes."""
    blocks = re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", "`code`", blocks)


def links(text: str) -> list[str]:
    """Targets of links and pictures that are not URLs."""
    found = re.findall(r"\]\(([^()\s]+)\)", prose(text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The names that the site's builder and GitHub both give to the headings of a page."""
    blocks = re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", blocks, flags=re.MULTILINE)}


def anchor(heading: str) -> str:
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    ascii_only = unicodedata.normalize("NFKD", shown).encode("ascii", "ignore").decode()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip())


def problems(page: Path, *, inside: Path | None = None) -> list[str]:
    """Links of a page that lead nowhere. inside: the folder that they may not leave."""
    found = []
    for link in links(page.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            found.append(f"{page.name}: {link}: no such file")
        elif inside is not None and not target.is_relative_to(inside):
            found.append(f"{page.name}: {link}: outside of the site; name the path as code")
        elif heading and target.suffix == ".md" and heading not in anchors(target.read_text(encoding="utf-8")):
            found.append(f"{page.name}: {link}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(DOCS)) for page in PAGES])
def test_links_of_a_page_lead_to_pages_of_the_site(page: Path) -> None:
    assert problems(page, inside=DOCS) == []


@pytest.mark.parametrize("page", OTHERS, ids=[page.name for page in OTHERS])
def test_links_of_the_other_documents_lead_somewhere(page: Path) -> None:
    assert problems(page) == []


def test_the_navigation_has_every_page_once() -> None:
    site = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    assert [door for entry in site["nav"] for door in entry] == DOORS
    assert sorted(listed(site["nav"])) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_the_site_loads_nothing_from_elsewhere() -> None:
    site = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css"} & set(site)


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    (tmp_path / "out.md").write_text("# Out\n")
    page.write_text("# A `b` – c\n[1](#a-b-c) [2](#b) [3](no.md) [4](../out.md) [5](https://x.org/y) `[6](no.md)`\n")
    said = [problem.split(": ", 1)[1].split(";")[0] for problem in problems(page, inside=page.parent)]
    assert said == ["#b: no such heading", "no.md: no such file", "../out.md: outside of the site"]
