"""Self-contained HTML page of a comparison or a run, which needs no server and no network.

Texts and tables are HTML. The scripts of this folder draw the figures from numbers embedded as JSON. A content security
policy allows only these scripts and forbids loading anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from offbeat.core.errors import OffbeatError
from offbeat.engine import write_atomically
from offbeat.experiment import ClassCounts
from offbeat.experiment.run import read_checksummed
from offbeat.experiment.spec import to_values, to_yaml
from offbeat.metrics import without_nan
from offbeat.results.page import page_data
from offbeat.results.series import EARLY_SHARE, FigureSeries

PAGE_FOLDER = Path(__file__).parent
SCRIPTS = ("base.js", "curves.js", "staleness.js", "timeline.js", "grids.js", "main.js")

TableCells = list[list[str]]  # headings first
METHOD_KEYS = ("strategy", "seed")  # settings that always belong to a method; in a sweep others differ too
Section = tuple[str, str, str]  # id, heading, HTML
LEGEND = """<ul class="key"><li><i class="work"></i>at work</li><li><i class="arrived"></i>an update arrived</li>
<li><i class="idle"></i>waiting</li><li><i class="away"></i>away</li>
<li><i class="failed"></i>lost, refused or rejected</li></ul>"""
STALENESS_NOTE = "Line: 5 % to 95 % of updates; box: 25 % to 75 %; bar: median; ring: mean; cross: maximum."
TIMELINE_NOTE = "The whole run of the first seed."
UPDATES_NOTE = (
    "Accepted updates of each client, fastest on top, for the first seed. 1× means an equal share for everyone."
)
CLASSES_NOTE = """The same by class: a client's updates count for the classes of its data. The weights that methods give
to updates are not included."""
METRIC_NOTE = "The final model evaluated on each client's own examples, for the first seed."
EXAMPLES_NOTE = "Training examples for the first seed; clients from the fastest to the slowest."
NO_CAVEATS = "No caveats: there are several seeds, every client contributed, and every run ended as planned."


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
    # each method's colour on white and on dark backgrounds, as CSS variables
    light = "".join(f"--m{i}:{m.style.colour};" for i, m in enumerate(series.methods))
    dark = "".join(f"--m{i}:{m.style.dark};" for i, m in enumerate(series.methods))
    return html_document(
        series.title,
        f"{top}\n{page_body(series, content)}",
        [*(PAGE_FOLDER / name for name in SCRIPTS), *more],
        compact_json(page_data.page_numbers(series, content.class_counts)),
        f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n",
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


def page_body(series: FigureSeries, content: PageContent) -> str:
    """Return the header with links to all sections, and the sections."""
    sections = [section for section in _sections(series, content) if section[2]]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    main = "".join(
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{heading}</h2>\n{html}</section>\n'
        for name, heading, html in sections
    )
    data = f'<p class="note">Data: {escape(content.data)}</p>' if content.data else ""
    return f"""<header><h1>{escape(series.title)}</h1>{data}
<nav aria-label="On this page"><ul>{links}</ul></nav></header>
<main>
<noscript><p class="caveat">Figures need JavaScript; tables and settings do not.</p></noscript>
{main}</main>"""


def _sections(series: FigureSeries, content: PageContent) -> list[Section]:
    """Return id, heading and HTML of each section; a section without content has empty HTML."""
    worst, side = ("lowest", "starts at") if series.higher else ("highest", "ends at")
    curves_note = (
        f"Mean over seeds, band from minimum to maximum. The axis {side} the {worst} mean of any method after "
        f"{EARLY_SHARE:.0%} of the run; earlier values beyond it are cut off. Drag to zoom. Keyboard: arrows move the "
        "cursor, + and − zoom, 0 shows all."
    )
    caveats = "".join(f"<li>{escape(line)}</li>" for line in content.caveats)
    contributions = [
        _figure("heard", "Updates by client", UPDATES_NOTE),
        _figure("classes", "Updates by class", CLASSES_NOTE),
        _figure("own", f"{series.metric} by client", METRIC_NOTE),
    ]
    timeline = _figure("timeline", "Activity by client, fastest on top", TIMELINE_NOTE)
    return [
        (
            "caveats",
            "Caveats",
            f'<ul class="caveat">{caveats}</ul>' if caveats else f'<p class="fine">{NO_CAVEATS}</p>',
        ),
        ("results", "Results", _result_tables(content)),
        ("curves", "Curves", _figure("curves", f"{series.metric} over {series.clock}", curves_note)),
        ("staleness", "Staleness", _figure("staleness", "Staleness of updates by method", STALENESS_NOTE)),
        ("timeline", "Client activity", LEGEND + timeline),
        ("contribution", "Contributions of clients", "".join(contributions)),
        ("held", "Data distribution", _figure("held", "Examples by client and class", EXAMPLES_NOTE)),
        ("seeds", "All runs", _table(content.by_run) if content.by_run else ""),
        ("settings", "Settings", _settings_html(series)),
        ("made", "Versions and commands", _versions_and_commands(series)),
    ]


def _figure(name: str, label: str, note: str) -> str:
    """Return the frame of a figure, which a script fills."""
    return (
        f'<figure id="f-{name}" aria-label="{escape(label)}"><div class="controls"></div><div class="plot"></div>'
        f'<figcaption class="note">{escape(note)}</figcaption></figure>'
    )


def _result_tables(content: PageContent) -> str:
    """Return the tables of means, with a note that explains their columns."""
    reference = f", relative to {escape(content.reference)}" if content.reference else ""
    note = f"""<p class="note">↑ higher is better, ↓ lower is better. Slowest ¼, active, stragglers: client groups by
job duration, each evaluated on its own data. Relative time: time to 95 % of the lowest final value of all
methods{reference}. docs/metrics.md has the formulas.</p>"""
    return "".join(map(_table, content.tables)) + note if content.tables else ""


def _table(rows: TableCells, css_class: str = "") -> str:
    """Return a table whose first row has the headings."""
    headings = [cell.replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓") for cell in rows[0]]  # no line break before it
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in headings)
    return _wide_table(f"<thead><tr>{head}</tr></thead>", rows[1:], css_class)


def _wide_table(head: str, rows: Sequence[Sequence[str]], css_class: str = "") -> str:
    """Return a table that scrolls if it is wider than the page."""
    lines = []
    for name, *cells in rows:
        numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>')
    table = f'<table class="{css_class}">' if css_class else "<table>"
    return f'<div class="wide" tabindex="0">{table}{head}<tbody>{"".join(lines)}</tbody></table></div>\n'


def _settings_html(series: FigureSeries) -> str:
    """Return the settings of each method, then those that all methods share."""
    experiments = [to_values(method.experiments[0]) for method in series.methods]
    first = experiments[0]
    shared = {k: v for k, v in first.items() if k not in METHOD_KEYS and all(other[k] == v for other in experiments)}
    methods = [["method", "seeds", "settings"]]
    for method, experiment in zip(series.methods, experiments, strict=True):
        others = {key: value for key, value in experiment.items() if key not in METHOD_KEYS and key not in shared}
        texts = [_one_line_yaml(experiment["strategy"]), *(f"{key}: {_inline_value(v)}" for key, v in others.items())]
        methods.append([method.name, ", ".join(map(str, method.seeds)), "; ".join(texts)])
    heading = "Methods" if len(series.methods) > 1 else "Method"
    shared_table = _wide_table("", [[key, _one_line_yaml(value)] for key, value in shared.items()], "text")
    file = escape(to_yaml(series.methods[0].experiments[0]))
    name = escape(f"{series.methods[0].name}, seed {series.methods[0].seeds[0]}")
    return (
        f"<h3>{heading}</h3>{_table(methods, 'text')}<h3>Shared settings</h3>{shared_table}"
        f"<details><summary>The experiment file of {name}</summary><pre>{file}</pre></details>"
    )


def _one_line_yaml(value: object) -> str:
    """Format a setting in one line; a mapping without braces."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_inline_value(item)}" for key, item in value.items()) or "{}"
    return _inline_value(value)


def _inline_value(value: object) -> str:
    """Format a value as JSON, and text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _versions_and_commands(series: FigureSeries) -> str:
    """Return the machines and workers that computed the runs, and the commands that repeat them."""
    runs = [run for method in series.methods for run in method.runs]
    lines = [*dict.fromkeys(filter(None, (_environment(run.folder / "environment.json") for run in runs)))]
    workers = dict.fromkeys(s.worker for m in series.methods for s in m.summaries if s.worker)
    if workers:
        lines.append("computed by " + ", ".join(workers))
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines)
    commands = escape("".join(_read_command(run.folder / "command.txt") for run in runs))
    return f"{paragraphs}<details><summary>Commands that repeat each run</summary><pre>{commands}</pre></details>"


def _environment(path: Path) -> str:
    """Return the recorded versions and machine in one line; empty if the file is missing or damaged."""
    try:
        stored = read_checksummed(path)
    except (OSError, OffbeatError):
        return ""
    packages = stored.get("packages")
    versions = {**packages} if isinstance(packages, dict) else {}
    parts = [f"{name} {version}" for name, version in {**versions, "Python": stored.get("python")}.items()]
    return ", ".join([*parts, *(str(stored[key]) for key in ("platform", "cpu") if stored.get(key))])


def _read_command(path: Path) -> str:
    """Return the command of a run with a line break at its end; empty if it is missing."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return text if text.endswith("\n") else text + "\n"
