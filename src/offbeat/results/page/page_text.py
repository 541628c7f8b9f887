"""The part of a page that is words and tables: all of it escaped, for names come from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import OffbeatError
from offbeat.experiment import checksummed_json
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.serialization import to_plain
from offbeat.results.series import EARLY, Series

if TYPE_CHECKING:
    from offbeat.results.page import Content, Table

PER_METHOD = ("strategy", "seed")  # of an experiment: what differs in every comparison; in a sweep more does
Section = tuple[str, str, str]  # id, heading, what is in it
LEGEND = """<ul class="key"><li><i class="work"></i>at work</li><li><i class="arrived"></i>an update arrived</li>
<li><i class="idle"></i>waiting</li><li><i class="away"></i>away</li>
<li><i class="vain"></i>lost, refused or rejected</li></ul>"""


def colours(series: Series) -> str:
    """Of each method, on white and on dark."""
    light = "".join(f"--m{i}:{m.style.colour};" for i, m in enumerate(series.methods))
    dark = "".join(f"--m{i}:{m.style.dark};" for i, m in enumerate(series.methods))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def body(series: Series, content: Content) -> str:
    sections = [section for section in _sections(series, content) if section[2]]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    shown = "".join(
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{heading}</h2>\n{inside}</section>\n'
        for name, heading, inside in sections
    )
    data = f'<p class="note">Data: {escape(content.data)}</p>' if content.data else ""
    return f"""<header><h1>{escape(series.title)}</h1>{data}
<nav aria-label="On this page"><ul>{links}</ul></nav></header>
<main>
<noscript><p class="doubt">Figures need JavaScript; tables and settings do not.</p></noscript>
{shown}</main>"""


def _sections(series: Series, content: Content) -> list[Section]:
    many = len(series.methods) > 1
    return [
        ("doubts", "What is not to be trusted", _doubts(content.doubts)),
        ("results", "Results", _results(content)),
        ("curves", "Curves", _figure("curves", f"{series.metric} against {series.clock}", _curves_note(series))),
        ("staleness", "How old updates are", _figure("staleness", "Staleness of updates, a row a method", STALENESS)),
        ("timeline", "Who trained when", LEGEND + _figure("timeline", "A lane a client, fastest on top", TIMELINE)),
        ("contribution", "Who contributes", _figure("heard", "Updates by client", HEARD)
         + _figure("classes", "Updates by class", CLASSES) + _figure("own", f"{series.metric} by client", OWN)),
        ("held", "Who holds what", _figure("held", "Examples by client and class", HELD)),
        ("seeds", "Every seed", _table(content.by_seed) if content.by_seed else ""),
        ("settings", "Settings", _settings(series, many)),
        ("made", "Versions and commands", _made(series)),
    ]  # fmt: skip


STALENESS = "Line: 5 % to 95 % of updates; box: the middle half; bar: median; ring: mean; cross: the largest."
TIMELINE = "The run of the first seed, from its beginning to its end."
HEARD = """Accepted updates of each client with the first seed, fastest on top; 1× is what all would have if all were
heard equally often."""
CLASSES = """The same by class: the updates of a client count for the classes it holds. How a method weighs an update is
not in it."""
OWN = "Of the final model on each client's own examples, in the world of the first seed."
HELD = "Training examples in the world of the first seed; clients from the fastest to the slowest."
FINE = (
    """Nothing was found that speaks against these numbers: several seeds, every client heard, every run to its end."""
)


def _curves_note(series: Series) -> str:
    worst, side = ("lowest", "begins at") if series.higher else ("highest", "ends at")
    return (
        f"Mean over seeds, band from lowest to highest. The axis {side} the {worst} mean that any method has after "
        f"{EARLY:.0%} of the run; what came before is cut off. Drag to zoom; with the keyboard arrows move the cursor, "
        "+ and − zoom, 0 shows all."
    )


def _figure(name: str, label: str, note: str) -> str:
    return (
        f'<figure id="f-{name}" aria-label="{escape(label)}"><div class="controls"></div><div class="plot"></div>'
        f'<figcaption class="note">{escape(note)}</figcaption></figure>'
    )


def _doubts(doubts: Sequence[str]) -> str:
    if not doubts:
        return f'<p class="fine">{FINE}</p>'
    return '<ul class="doubt">' + "".join(f"<li>{escape(line)}</li>" for line in doubts) + "</ul>"


def _results(content: Content) -> str:
    reference = f", the reference ({escape(content.reference)}) = 1" if content.reference else ""
    note = f"""<p class="note">↑ more is better, ↓ less. Slowest ¼, active, stragglers: clients by what a job of theirs
takes, on examples of their own. Relative time: to 95 % of the lowest final value of all{reference}. docs/metrics.md has
the formulas.</p>"""
    return "".join(map(_table, content.tables)) + note if content.tables else ""


def _table(rows: Table) -> str:
    headings = [cell.replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓") for cell in rows[0]]  # not alone on a line
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in headings)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows[1:])
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'


def _row(cells: Sequence[str]) -> str:
    return f'<th scope="row">{escape(cells[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])


def _settings(series: Series, many: bool) -> str:
    """What all share once, what each method has of its own in a line."""
    each = [to_plain(method.experiments[0]) for method in series.methods]
    shared = {k: v for k, v in each[0].items() if k not in PER_METHOD and all(other[k] == v for other in each)}
    own = [["method", "seeds", "settings"]]
    for method, given in zip(series.methods, each, strict=True):
        world = {key: value for key, value in given.items() if key not in PER_METHOD and key not in shared}
        told = [_flow(given["strategy"]), *(f"{key}: {_nested(value)}" for key, value in world.items())]
        own.append([method.name, ", ".join(map(str, method.seeds)), "; ".join(told)])
    heading = "<h3>Of the methods</h3>" if many else "<h3>Of the method</h3>"
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(_flow(shared[key]))}</td></tr>' for key in shared
    )
    listed = f'<div class="wide" tabindex="0"><table class="text"><tbody>{rows}</tbody></table></div>'
    methods = _table(own).replace("<table>", '<table class="text">', 1)
    whole = escape(experiment_files.dump(series.methods[0].experiments[0]))
    file = f"<details><summary>The experiment file of {escape(_which(series))}</summary><pre>{whole}</pre></details>"
    return f"{heading}{methods}<h3>Of the world they share</h3>{listed}{file}"


def _which(series: Series) -> str:
    return f"{series.methods[0].name}, seed {series.methods[0].seeds[0]}"


def _flow(value: Any) -> str:
    """In one line, as YAML would have it."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_nested(inside)}" for key, inside in value.items()) or "{}"
    return _nested(value)


def _nested(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _made(series: Series) -> str:
    """With what, and the commands that make each run again."""
    runs = [run for method in series.methods for run in method.runs]
    environments = [_environment(run.folder / "environment.json") for run in runs]
    workers = dict.fromkeys(s.worker or "" for m in series.methods for s in m.summaries)
    lines = [*dict.fromkeys(filter(None, environments)), "computed by " + ", ".join(filter(None, workers))]
    commands = "".join(_text(run.folder / "command.txt") for run in runs)
    made = _paragraphs(lines if any(workers) else lines[:-1])
    return f"{made}<details><summary>Commands that repeat each run</summary><pre>{escape(commands)}</pre></details>"


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _environment(path: Any) -> str:
    try:
        stored = checksummed_json.read(path)
    except (OSError, OffbeatError):
        return ""
    packages = stored.get("packages")
    versions = {**packages} if isinstance(packages, dict) else {}
    named = [f"{name} {version}" for name, version in {**versions, "Python": stored.get("python")}.items()]
    return ", ".join([*named, *(str(stored[key]) for key in ("platform", "cpu") if stored.get(key))])


def _text(path: Any) -> str:
    try:
        text: str = path.read_text(errors="replace")
    except OSError:
        return ""
    return text if text.endswith("\n") else text + "\n"
