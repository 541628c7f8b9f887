"""HTML of the dashboard: the list of runs, and the page of one or several of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from offbeat.core.errors import OffbeatError, RunError
from offbeat.experiment import Comparison
from offbeat.experiment.run import Run
from offbeat.metrics import headline_metric
from offbeat.results import page, report
from offbeat.results.dashboard.run_index import IndexEntry
from offbeat.results.page import page_data
from offbeat.results.series import FigureSeries, collect_series

SCRIPT_FOLDER = Path(__file__).parent
STYLE = """
.state { white-space: nowrap; } .state progress { width: 5rem; vertical-align: middle; margin-right: .4rem; }
.sub th { padding-left: 1.4rem; font-weight: 400; } .bad { color: var(--bad); } th.left, td.left { text-align: left; }
form p { margin: .6rem 0; } .wrong { white-space: normal; max-width: 24rem; text-align: left; }
.top { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: center; font-size: .875rem; }
"""
STATE_TEXTS = {
    "not begun": "not started",
    "going on": "running",
    "stopped": "not running",
    "ended": "finished",
    "damaged": "damaged",
}


def runs_page(entries: Sequence[IndexEntry], root: Path) -> str:
    """Return the list of all runs, with check boxes to compare several."""
    if entries:
        left = "".join(f'<th scope="col" class="left">{word}</th>' for word in ("method", "state"))
        right = "".join(f'<th scope="col">{word}</th>' for word in ("seconds", "updates", "metric", "staleness"))
        head = f'<th scope="col">run</th><td></td>{left}{right}'
        rows = "".join(map(_rows, entries))
        main = f"""<form action="/view" method="get"><div class="wide" tabindex="0"><table>
<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<p><button>compare the selected runs</button></p></form>"""
    else:
        main = """<p>There are no runs in this folder yet. Start one with <code>offbeat run quickstart</code> or
<code>offbeat compare quickstart</code>; it will appear here.</p>"""
    body = f"""<header><h1>Runs</h1>
<p class="note">in {escape(str(root))} (read-only)</p></header>
<main id="list">{main}</main><p class="note" id="heard" role="status"></p>"""
    scripts = [SCRIPT_FOLDER / "list.js"]
    return page.html_document(f"offbeat: {root.name}", body, scripts, style=STYLE, connects=True)


def _rows(entry: IndexEntry) -> str:
    """Return the row of a run, or the rows of a comparison and its runs."""
    if entry.runs is None:
        return f"<tr>{_run_cells(entry, entry.name)}</tr>"
    head = f'<th scope="row">{_link(entry, entry.name)}</th>'
    if entry.error is not None:
        return f'<tr>{head}<td class="wrong bad" colspan="7">{escape(entry.error)}</td></tr>'
    finished = f"{sum(run.state == 'ended' for run in entry.runs)} of {len(entry.runs)} runs"
    cells = f'<td></td><td class="left">{finished}</td>{_state_cell(entry)}<td colspan="4"></td>'
    runs = "".join(f'<tr class="sub">{_run_cells(run, run.folder.name)}</tr>' for run in entry.runs)
    return f"<tr>{head}{cells}</tr>{runs}"


def _run_cells(run: IndexEntry, text: str) -> str:
    """Return the cells of a run, with this text as the link to its page."""
    head = f'<th scope="row">{_link(run, text)}</th>'
    progress = run.progress
    if progress is None:
        return f'{head}<td class="wrong bad" colspan="7">{escape(run.error or "")}</td>'
    metric, started = headline_metric(list(progress.metrics)), progress.state != "not begun"
    box = f'<input type="checkbox" name="of" value="{escape(run.name)}" aria-label="select {escape(run.name)}">'
    numbers = [
        f"{progress.now:.0f}" if started else "",
        str(progress.updates) if started else "",
        f"{metric} {progress.metrics[metric]:.3f}" if metric in progress.metrics else "",
        "" if progress.staleness is None else f"{progress.staleness:.1f}",
    ]
    cells = "".join(f"<td>{escape(number)}</td>" for number in numbers)
    return f'{head}<td>{box}</td><td class="left">{escape(run.label)}, seed {run.seed}</td>{_state_cell(run)}{cells}'


def _state_cell(entry: IndexEntry) -> str:
    """Return the cell with the state of a run or comparison."""
    return f'<td class="state left">{_describe_state(entry)}</td>'


def _describe_state(entry: IndexEntry) -> str:
    """Return the state as HTML, with a bar unless it is finished."""
    text = STATE_TEXTS[entry.state]
    if entry.state == "ended":
        reason = entry.progress.reason if entry.progress else None
        return f"{text} ({escape(reason)})" if reason else text
    bar = f'<progress max="1" value="{entry.share:.3f}" aria-label="progress"></progress>'
    return f"{bar}{entry.share:.0%}, {text}"


def _link(entry: IndexEntry, text: str) -> str:
    """Return a link to the page of an entry."""
    return f'<a href="/view?{escape(view_query([entry]))}">{escape(text)}</a>'


def view_query(entries: Sequence[IndexEntry]) -> str:
    """Return the query that names these entries in a request."""
    return urlencode([("of", entry.name) for entry in entries])


def content_stamp(entries: Sequence[IndexEntry]) -> str:
    """Return a hash that changes whenever there is new content."""
    content = [(run.name, run.progress, run.error) for entry in entries for run in entry.all_runs]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def result_page(entries: Sequence[IndexEntry]) -> str:
    """Return the page of one run or comparison, or of several runs side by side."""
    names = ", ".join(entry.name for entry in entries)
    state = _describe_state(entries[0]) if len(entries) == 1 else ""
    top = f"""<p class="top"><a href="/">← all runs</a><span>{escape(names)}</span>
<span class="state" id="standing">{state}</span>
<span id="heard" role="status"></span></p>"""
    unfinished = any(entry.state in ("going on", "stopped", "not begun") for entry in entries)
    url = f"/numbers?{view_query(entries)}"
    polling = page.compact_json({"url": url, "stamp": content_stamp(entries), "going": unfinished})
    try:
        series, result = entries_series(entries)
        content = report.page_content(result, series)
    except OffbeatError as error:
        main = f'<main><h1>{escape(names)}</h1><p class="caveat">{escape(str(error))}</p></main>'
        return page.html_document(names, top + main, [SCRIPT_FOLDER / "waiting.js"], polling, STYLE, connects=True)
    live = f'<script type="application/json" id="live">{page.escape_json(polling)}</script>'
    html = page.render_page(series, content, top + live, [SCRIPT_FOLDER / "live.js"])
    return html.replace("</style>", f"{STYLE}</style>", 1)


def updated_numbers(entries: Sequence[IndexEntry]) -> str:
    """Return the JSON with which an open page redraws itself."""
    state = {"share": entries[0].share, "state": STATE_TEXTS[entries[0].state]} if len(entries) == 1 else None
    series, _ = entries_series(entries)
    numbers = page_data.page_numbers(series, None)
    ended = all(entry.state == "ended" for entry in entries)
    return page.compact_json({"stamp": content_stamp(entries), "ended": ended, "standing": state, "numbers": numbers})


def entries_series(entries: Sequence[IndexEntry]) -> tuple[FigureSeries, Comparison | Run | None]:
    """Read the series of the entries, and return the comparison or run if there is only one."""
    if len(entries) == 1:
        (entry,) = entries
        if entry.runs is not None:
            comparison = Comparison(entry.folder)
            return report.comparison_series(comparison), comparison
        run = Run(entry.folder)
        return report.run_series(run), run
    for entry in entries:
        if entry.error:
            raise RunError(entry.error)
    runs = [run for entry in entries for run in entry.all_runs]
    counts = Counter(run.label for run in runs)
    names = [f"{run.label} ({run.name})" if counts[run.label] > 1 else run.label for run in runs]
    series = collect_series({name: [Run(run.folder)] for name, run in zip(names, runs, strict=True)})
    return replace(series, title=f"{series.metric}: {len(series.methods)} runs side by side"), None
