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

from offbeat.engines.checkpoint import write_whole
from offbeat.experiment.heatmap import Held
from offbeat.experiment.metrics import without_nan
from offbeat.experiment.page import numbers, words
from offbeat.experiment.series import Series

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


def render(series: Series, content: Content) -> str:
    script = "(() => {\n'use strict';\n" + "".join((HERE / name).read_text() for name in SCRIPTS) + "})();"
    style = (HERE / "style.css").read_text() + words.colours(series)
    data = json.dumps(without_nan(numbers.of(series, content.held)), separators=(",", ":"), allow_nan=False)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(series.title)}</title>
<style>{style}</style></head>
<body>
{words.body(series, content)}
<script type="application/json" id="numbers">{_inert(data)}</script>
<script>{script}</script>
</body></html>
"""


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"


def _inert(data: str) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
