"""The pages of a dashboard: the list of runs, and one or several of them, in the page that a comparison has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from offbeat.core.errors import OffbeatError, RunError
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run.execution import Run
from offbeat.metrics.curves import headline
from offbeat.results import page, pictures, series
from offbeat.results.dashboard.run_index import Entry
from offbeat.results.page import page_data
from offbeat.results.series import Series

HERE = Path(__file__).parent
STYLE = """
.state { white-space: nowrap; } .state progress { width: 5rem; vertical-align: middle; margin-right: .4rem; }
.sub th { padding-left: 1.4rem; font-weight: 400; } .bad { color: var(--bad); } th.left, td.left { text-align: left; }
form p { margin: .6rem 0; } .wrong { white-space: normal; max-width: 24rem; text-align: left; }
.top { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: center; font-size: .875rem; }
"""


def listed(entries: Sequence[Entry], root: Path) -> str:
    """All runs; two or more can be chosen."""
    if entries:
        left = '<th scope="col">run</th><td></td>'
        left += "".join(f'<th scope="col" class="left">{word}</th>' for word in ("method", "state"))
        head = left + "".join(f'<th scope="col">{word}</th>' for word in ("seconds", "updates", "metric", "staleness"))
        rows = "".join(map(_rows, entries))
        inside = f"""<form action="/view" method="get"><div class="wide" tabindex="0"><table>
<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<p><button>compare the chosen runs</button></p></form>"""
    else:
        inside = """<p>There is no run below this folder yet. One begins with <code>offbeat run quickstart</code>, or
with <code>offbeat compare quickstart</code>; it will stand here a moment later.</p>"""
    body = f"""<header><h1>Runs</h1>
<p class="note">below {escape(str(root))}; only looked at, never changed</p></header>
<main id="list">{inside}</main><p class="note" id="heard" role="status"></p>"""
    return page.document(f"offbeat: {root.name}", body, [HERE / "list.js"], style=STYLE, asks=True)


def _rows(entry: Entry) -> str:
    if entry.runs is None:
        return f"<tr>{_cells(entry, entry.name)}</tr>"
    below = "".join(f'<tr class="sub">{_cells(run, run.folder.name)}</tr>' for run in entry.runs)
    head = f'<th scope="row">{_link(entry, entry.name)}</th>'
    if entry.wrong is not None:
        return f'<tr>{head}<td class="wrong bad" colspan="7">{escape(entry.wrong)}</td></tr>'
    done = sum(run.state == "ended" for run in entry.runs)
    told = f'<td></td><td class="left">{done} of {len(entry.runs)} runs</td>{_state(entry)}<td colspan="4"></td>'
    return f"<tr>{head}{told}</tr>{below}"


def _cells(run: Entry, shown: str) -> str:
    head = f'<th scope="row">{_link(run, shown)}</th>'
    if run.look is None:
        return f'{head}<td class="wrong bad" colspan="7">{escape(run.wrong or "")}</td>'
    look, name = run.look, headline(list(run.look.metrics))
    box = f'<input type="checkbox" name="of" value="{escape(run.name)}" aria-label="choose {escape(run.name)}">'
    begun = look.state != "not begun"
    cells = [
        f"{look.now:.0f}" if begun else "",
        str(look.updates) if begun else "",
        f"{name} {look.metrics[name]:.3f}" if name in look.metrics else "",
        "" if look.staleness is None else f"{look.staleness:.1f}",
    ]
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'{head}<td>{box}</td><td class="left">{escape(run.label)}, seed {run.seed}</td>{_state(run)}{rest}'


def _state(entry: Entry) -> str:
    return f'<td class="state left">{_standing(entry)}</td>'


def _standing(entry: Entry) -> str:
    bar = f'<progress max="1" value="{entry.share:.3f}" aria-label="how much is done"></progress>'
    if entry.state == "ended":
        reason = entry.look.reason if entry.look and entry.look.reason else None
        return f"ended ({escape(reason)})" if reason else "ended"
    return f"{bar}{entry.share:.0%}, {escape(entry.state)}"


def _link(entry: Entry, shown: str) -> str:
    return f'<a href="/view?{escape(address([entry]))}">{escape(shown)}</a>'


def address(entries: Sequence[Entry]) -> str:
    return urlencode([("of", entry.name) for entry in entries])


def stamp(entries: Sequence[Entry]) -> str:
    """Another one whenever there is something new to see."""
    looks = [(run.name, run.look, run.wrong) for entry in entries for run in entry.each]
    return hashlib.sha256(repr(looks).encode()).hexdigest()[:16]


def viewed(entries: Sequence[Entry]) -> str:
    """One comparison, or runs beside each other."""
    names = ", ".join(entry.name for entry in entries)
    one = len(entries) == 1
    top = f"""<p class="top"><a href="/">← all runs</a><span>{escape(names)}</span>
<span class="state" id="standing">{_standing(entries[0]) if one else ""}</span>
<span id="heard" role="status"></span></p>"""
    try:
        found, of = drawn(entries)
        made = pictures.content(of, found)
    except OffbeatError as error:
        wrong = f'<main><h1>{escape(names)}</h1><p class="doubt">{escape(str(error))}</p></main>'
        return page.document(names, top + wrong, [HERE / "waiting.js"], _live(entries), STYLE, asks=True)
    live = f'<script type="application/json" id="live">{page.inert(_live(entries))}</script>'
    text = page.render(found, made, top + live, [HERE / "live.js"])
    return text.replace("</style>", f"{STYLE}</style>", 1)


def _live(entries: Sequence[Entry]) -> str:
    going = any(entry.state in ("going on", "stopped", "not begun") for entry in entries)
    return page.in_json({"url": f"/numbers?{address(entries)}", "stamp": stamp(entries), "going": going})


def fresh(entries: Sequence[Entry]) -> str:
    """What a page that is open needs to draw itself anew."""
    told = {"stamp": stamp(entries), "ended": all(entry.state == "ended" for entry in entries)}
    standing = {"share": entries[0].share, "state": entries[0].state} if len(entries) == 1 else None
    found, _ = drawn(entries)
    return page.in_json({**told, "standing": standing, "numbers": page_data.of(found, None)})


def drawn(entries: Sequence[Entry]) -> tuple[Series, Comparison | Run | None]:
    if len(entries) == 1:
        (entry,) = entries
        if entry.runs is not None:
            comparison = Comparison(entry.folder)
            return pictures.of_comparison(comparison), comparison
        run = Run(entry.folder)
        return pictures.of_run(run), run
    if any(entry.wrong for entry in entries):
        raise RunError(next(entry.wrong for entry in entries if entry.wrong))
    runs = [run for entry in entries for run in entry.each]
    labels = [run.label for run in runs]
    alike = {label for label in labels if labels.count(label) > 1}
    beside = {f"{run.label} ({run.name})" if run.label in alike else run.label: [Run(run.folder)] for run in runs}
    found = series.collect(beside, "")
    return replace(found, title=f"{found.metric}: {len(found.methods)} runs beside each other"), None
