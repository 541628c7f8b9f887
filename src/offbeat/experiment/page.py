"""One self-contained HTML page of a comparison: no server, no network, interactive figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from offbeat.engines.checkpoint import write_whole
from offbeat.engines.until import Target
from offbeat.experiment.series import Method

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } p.note { color: #666; }
"""
WHITE = {"color": "white", "width": 1}


def save(
    methods: list[Method],
    tables: list[list[list[str]]],
    metric: str,
    target: Target | None,
    title: str,
    path: Path,
    reference: str,
    more: Sequence[Any] = (),
    data: str | None = None,
) -> None:
    """`tables`: a heading row and one row a method, already formatted; `more`: figures to put below them."""
    figures = [_curves(methods, metric, target), _timeline(methods), _staleness(methods), *more]
    parts = [f.to_html(full_html=False, include_plotlyjs="inline" if i == 0 else False) for i, f in enumerate(figures)]
    source = f'<p class="note">Data: {escape(data)}</p>' if data else ""
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{escape(title)}</h1>{source}{"".join(map(_table, tables))}
<p class="note">↑ more is better, ↓ less. Curves: mean over seeds, band from lowest to highest. Timeline: the
first seed's run. Slowest ¼, active, stragglers: clients by what a job of theirs takes, on examples of their own.
Relative time: to 95 % of the lowest final value of all, the reference ({escape(reference)}) = 1. docs/metrics.md has
the formulas.</p>
{"".join(parts)}</body></html>"""
    write_whole(path, page.encode())


def _table(rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _curves(methods: list[Method], metric: str, target: Target | None) -> Any:
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for m in methods:
        band = Scatter(x=[*m.seconds, *m.seconds[::-1]], y=[*m.high, *m.low[::-1]], fill="toself", line_width=0)
        quiet = {"legendgroup": m.name, "showlegend": False, "hoverinfo": "skip"}
        figure.add_trace(band.update(fillcolor=m.colour, opacity=0.15, **quiet))
        figure.add_trace(Scatter(x=m.seconds, y=m.mean, name=m.name, line_color=m.colour, legendgroup=m.name))
    if target is not None and target.metric == metric:
        figure.add_hline(y=target.value, line_dash="dot", line_color="grey", annotation_text=f"target {target}")
    return _labelled(figure, f"{metric} against virtual time", "virtual seconds", metric)


def _labelled(figure: Any, title: str, x: str, y: str) -> Any:
    return figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white")


def _timeline(methods: list[Method]) -> Any:
    """Who trained when; a menu chooses the method."""
    from plotly.graph_objects import Bar, Figure

    figure = Figure()
    for i, m in enumerate(methods):
        began, lengths = [s.started for s in m.spans], [s.ended - s.started for s in m.spans]
        bars = Bar(
            x=lengths,
            y=[m.names.get(s.client, s.client) for s in m.spans],
            base=began,
            orientation="h",
            name=m.name,
            visible=i == 0,
        )
        outcomes = [s.outcome for s in m.spans]
        figure.add_trace(bars.update(marker_color=m.colour, marker_line=WHITE, hovertext=outcomes))
    shown = [[j == i for j in range(len(methods))] for i in range(len(methods))]
    buttons = [
        {"label": m.name, "method": "update", "args": [{"visible": visible}]}
        for m, visible in zip(methods, shown, strict=True)
    ]
    end = max((m.end for m in methods), default=0.0) / 10
    menu = {"buttons": buttons, "x": 1.0, "y": 1.15}
    figure.update_layout(xaxis_range=[0, end], barmode="overlay", showlegend=False, updatemenus=[menu])
    return _labelled(figure, "who trained when (drag to see the rest)", "virtual seconds", "client")


def _staleness(methods: list[Method]) -> Any:
    from plotly.graph_objects import Bar, Figure

    ages = [(m, list(m.staleness), list(m.staleness.values())) for m in methods]
    figure = Figure([Bar(x=x, y=y, name=m.name, marker_color=m.colour) for m, x, y in ages], {"barmode": "group"})
    return _labelled(figure, "how old updates are", "staleness (versions committed since dispatch)", "share of updates")
