"""Tables of a page that are made from results: the text between `<!-- table: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from hmc.artifact.errors import InvalidRequestError

MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, table: Callable[[str], str | None], known: Collection[str]) -> str:
    """The page with new tables.

    table: Markdown of the table of that name; None leaves the table as it is. known: the names that there are. Raises
    InvalidRequestError for another name.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[2] not in known:
            raise InvalidRequestError(f"table {match[2]}: unknown; there are {', '.join(known)}")
        found = table(match[2])
        return match[0] if found is None else f"{match[1]}\n{found}\n{match[3]}"

    return MARKED.sub(replaced, text)
