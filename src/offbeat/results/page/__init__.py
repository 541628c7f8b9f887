"""One self-contained HTML page of a comparison or a run: no server, no network, nothing to install.

What is written in words and tables stands in the page itself; what is drawn is drawn by the scripts of this folder from
the numbers in it. A policy in its head lets a browser run these scripts and nothing else, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from offbeat.engine.checkpoint import write_whole
from offbeat.experiment.partition_heatmap import Held
from offbeat.metrics.trace_summary import without_nan
from offbeat.results.page import page_data, page_text
from offbeat.results.series import Series

HERE = Path(__file__).parent
SCRIPTS = ("base.js", "curves.js", "staleness.js", "timeline.js", "grids.js", "main.js")

Table = list[list[str]]  # headings first


@dataclass(frozen=True)
class Content:
    """What a page tells beside what is drawn."""

    doubts: Sequence[str] = ()
    tables: Sequence[Table] = ()  # of means over seeds
    by_seed: Table | None = None
    reference: str | None = None  # whom speed-ups are against
    data: str | None = None
    held: Held | None = None


def save(series: Series, content: Content, path: Path) -> None:
    write_whole(path, render(series, content).encode(errors="replace"))  # a name may hold half a character


def render(series: Series, content: Content, top: str = "", more: Sequence[Path] = ()) -> str:
    """`top` is HTML above it all, `more` scripts that go on where the page's end: a page that is served has both, and
    may ask its server.
    """
    return document(
        series.title,
        f"{top}\n{page_text.body(series, content)}",
        [*(HERE / name for name in SCRIPTS), *more],
        in_json(page_data.of(series, content.held)),
        page_text.colours(series),
        asks=bool(more),
    )


def document(
    title: str, body: str, scripts: Sequence[Path], data: str = "null", style: str = "", asks: bool = False
) -> str:
    """A whole page, in the style of all of them, with scripts and the numbers they draw."""
    script = "(() => {\n'use strict';\n" + "".join(path.read_text() for path in scripts) + "})();"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script, asks)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{(HERE / "style.css").read_text()}{style}</style></head>
<body>
{body}
<script type="application/json" id="numbers">{inert(data)}</script>
<script>{script}</script>
</body></html>
"""


def in_json(value: object) -> str:
    return json.dumps(without_nan(value), separators=(",", ":"), allow_nan=False)


def _policy(script: str, asks: bool) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    server = " connect-src 'self';" if asks else ""
    return f"default-src 'none';{server} style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"


def inert(data: str) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
