"""Self-contained HTML page of a comparison or a run, which needs no server and no network.

Texts and tables are HTML. The scripts of this folder draw the figures from numbers embedded as JSON. A content security
policy allows only these scripts and forbids loading anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from offbeat.engine import write_atomically
from offbeat.experiment import ClassCounts
from offbeat.metrics import without_nan
from offbeat.results.page import page_data, page_text
from offbeat.results.series import FigureSeries

PAGE_FOLDER = Path(__file__).parent
SCRIPTS = ("base.js", "curves.js", "staleness.js", "timeline.js", "grids.js", "main.js")

TableCells = list[list[str]]  # headings first


@dataclass(frozen=True)
class PageContent:
    """The tables and texts of a page."""

    caveats: Sequence[str] = ()
    tables: Sequence[TableCells] = ()  # means over seeds
    by_run: TableCells | None = None
    reference: str | None = None  # method that others are compared with
    data: str | None = None
    class_counts: ClassCounts | None = None


def save_page(series: FigureSeries, content: PageContent, path: Path) -> None:
    """Write a page atomically."""
    write_atomically(path, render_page(series, content).encode(errors="replace"))  # a name may contain a lone surrogate


def render_page(series: FigureSeries, content: PageContent, top: str = "", more: Sequence[Path] = ()) -> str:
    """Render a page; `top` is HTML above it, `more` are scripts that may send requests to the page's own server."""
    return html_document(
        series.title,
        f"{top}\n{page_text.page_body(series, content)}",
        [*(PAGE_FOLDER / name for name in SCRIPTS), *more],
        compact_json(page_data.page_numbers(series, content.class_counts)),
        page_text.colour_variables(series),
        connects=bool(more),
    )


def html_document(
    title: str, body: str, scripts: Sequence[Path], data: str = "null", style: str = "", connects: bool = False
) -> str:
    """Return an HTML document with the shared style, its scripts and their numbers."""
    script = "(() => {\n'use strict';\n" + "".join(path.read_text() for path in scripts) + "})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    server = " connect-src 'self';" if connects else ""
    policy = f"default-src 'none';{server} style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{(PAGE_FOLDER / "style.css").read_text()}{style}</style></head>
<body>
{body}
<script type="application/json" id="numbers">{escape_json(data)}</script>
<script>{script}</script>
</body></html>
"""


def compact_json(value: object) -> str:
    """Format a value as JSON without blanks, with null for NaN."""
    return json.dumps(without_nan(value), separators=(",", ":"), allow_nan=False)


def escape_json(data: str) -> str:
    """Escape JSON so that no name in it can end the script element."""
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
