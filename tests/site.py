"""What `make site` does after the builder: commands are copied without their prompt, and the search leaves out the
archive and the reference of Python.

    python -m tests.site build/site
"""

from __future__ import annotations

import json
import re
import sys
from html import escape, unescape
from pathlib import Path

UNSEARCHED = ("measurements/", "decisions/", "reproduction", "api.html")
"""How the paths of pages begin that the search leaves out. They are in the navigation."""
BLOCK = re.compile(r'<div class="highlight">(<pre>.*?</pre>)', re.DOTALL)


def commands(shown: str) -> str:
    """The commands of a block, without prompts and without what they print."""
    typed: list[str] = []
    goes_on = False
    for line in shown.splitlines():
        if line.startswith("$ ") or goes_on:
            typed.append(line.removeprefix("$ "))
            goes_on = line.endswith("\\")
    return "\n".join(typed)


def with_commands(page: str) -> str:
    """The HTML of a page whose copy buttons copy commands alone: the site's script reads them from `data-copy`."""

    def told(block: re.Match[str]) -> str:
        shown = unescape(re.sub(r"<[^>]+>", "", block[1]))
        copied = escape(commands(shown)).replace("\n", "&#10;")
        return f'<div class="highlight" data-copy="{copied}">{block[1]}' if copied else block[0]

    return BLOCK.sub(told, page)


def searched(index: str) -> str:
    """The search index without the pages of UNSEARCHED."""
    found = json.loads(index)
    found["items"] = [item for item in found["items"] if not item["location"].startswith(UNSEARCHED)]
    return json.dumps(found, ensure_ascii=False)


def main(site: Path) -> None:
    """Changes the files of a site that was just built. Raises SystemExit if the builder's files are not as expected."""
    changed = 0
    for path in site.rglob("*.html"):
        before = path.read_text(encoding="utf-8")
        after = with_commands(before)
        changed += before != after
        path.write_text(after, encoding="utf-8")
    index = site / "search.json"
    before = index.read_text(encoding="utf-8")
    after = searched(before)
    index.write_text(after, encoding="utf-8")
    if not changed or after == before:
        raise SystemExit("tests/site.py found no commands or no archive: the builder writes other files than it did")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
