"""The docs as a site: make docs. Its pages are those of a plain checkout; nothing comes from the network."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import urldefrag

ROOT = Path(__file__).resolve().parents[2]

project = "offbeat"
author = project_copyright = "The offbeat developers"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "bench/RESULTS.md", "examples/**README.md"]
exclude_patterns = ["docs/site"]
html_theme = "furo"
html_title = "offbeat"
html_extra_path = ["index.html"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # a browser reads no pages from a folder for it
myst_heading_anchors = 4  # slugs as a plain checkout's reader makes them
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # a fence may name what nothing colours

# pages that list the others of their folder
LISTS = {
    "docs/strategies/README": "*",
    "docs/decisions/README": "*",
    "docs/reproductions/README": "*",
    "examples/README": "*/README",
}
BELOW = "\n\n```{toctree}\n:hidden:\n:glob:\n\n%s\n```\n"
LINK = re.compile(r"(?<=\]\()([^()\s:]+)(?=\))")


def as_the_site_has_it(app: object, document: str, source: list[str]) -> None:
    """A link to a folder leads to its README, or to the first of its modules; pages that list have those below them."""

    def led(found: re.Match[str]) -> str:
        link, mark = urldefrag(found[1])
        folder = ROOT / posixpath.dirname(document) / link
        if not link or not folder.is_dir():
            return found[0]
        inside = next(
            n for n in ("README.md", "__init__.py", "__main__.py", "benchmark_page.py") if (folder / n).is_file()
        )
        return f"{link.rstrip('/')}/{inside}" + (f"#{mark}" if mark else "")

    source[0] = LINK.sub(led, source[0])
    if document in LISTS:
        source[0] += BELOW % LISTS[document]


def setup(app: object) -> None:
    app.connect("source-read", as_the_site_has_it)  # type: ignore[attr-defined]
