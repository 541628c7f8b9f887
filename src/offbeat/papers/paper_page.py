"""Write the reproduction page of a paper in Markdown: published numbers, our numbers, verdicts and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev

from offbeat.core.errors import RunError, format_count
from offbeat.engine import write_atomically
from offbeat.metrics import confidence_interval
from offbeat.papers.entries import FINAL_VALUE, Paper, format_number, load_papers
from offbeat.papers.evaluated_entry import NOT_RUN, EntryResult, MeasuredEntry, StoredRuns
from offbeat.papers.measured_values import curve_stability
from offbeat.papers.page_merge import (
    BEGIN,
    END,
    EXPLANATION,
    EntryKey,
    PageSection,
    entry_key,
    format_heading,
    format_setting,
    sections_to_keep,
    summary_lines,
)
from offbeat.papers.preset_registry import load_paper_preset
from offbeat.papers.run_import import DIGEST_LENGTH
from offbeat.papers.run_store import STAND_IN, PaperSetting
from offbeat.papers.verdict import RULE

INDEX = "README.md"
HEAD = ["in the paper", "measured", "claim", "verdict", "size here", "seeds"]
MAX_MISSING_SHOWN = 12  # missing runs listed by method and seed
NONE = "–"


def write_page(paper: Paper, results: Sequence[EntryResult], folder: Path) -> tuple[Path, list[EntryKey]]:
    """Write the page of a paper and the index of the folder.

    Returns the path of the page, and the entries kept from the existing page because the store has fewer runs.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create the folder {folder} for pages: {error.strerror or error}") from None
    path = folder / f"{paper.name}.md"
    previous = sections_to_keep(path, results)
    write_atomically(path, render_page(paper, results, previous).encode())
    write_atomically(folder / INDEX, render_index(folder).encode())
    return path, list(previous)


def render_page(
    paper: Paper, results: Sequence[EntryResult], previous: Mapping[EntryKey, PageSection] | None = None
) -> str:
    """Render the page of a paper; entries in `previous` are taken from an earlier page."""
    previous = previous or {}
    rows = []
    for result in results:
        entry, seeds, verdict = result.entry, NONE, result.verdict
        if isinstance(result, MeasuredEntry):
            seeds, verdict = str(result.runs.seed_count), f"**{verdict}**"
        row = [entry.where, entry.quantity.title, entry.claim, verdict, result.size, seeds]
        rows.append(previous[entry_key(entry)].row if entry_key(entry) in previous else row)
    parts = [
        f"# {paper.name}: published numbers and ours",
        f"{paper.title}. Written by `offbeat reproduce {paper.name}` from stored runs ([how](../how-to/reproduce.md)).",
        BEGIN,
        format_table(HEAD, rows),
        END,
        "## The rule",
        RULE,
        f"**Sources of the spreads.** {paper.spread}",
        *paper.notes,
    ]
    return "\n\n".join([*parts, *_sections(results, previous)]) + "\n"


def render_index(folder: Path) -> str:
    """Render the index from the pages in the folder."""
    parts = [
        "# Reproductions",
        "Every table and figure of the five papers that compares methods has an entry, or its page says why not. "
        "`offbeat reproduce PAPER` runs the missing experiments and writes the page of the paper "
        "([how](../how-to/reproduce.md)). Claims that do not hold here are reported as such; no setting is tuned to "
        "make them hold. Every page states the rule behind its verdicts.",
    ]
    for name, paper in load_papers().items():
        path = folder / f"{name}.md"
        lines = summary_lines(path)
        finished = [line for line in lines[2:] if f"| {NOT_RUN} |" not in line]
        title = f"## [{name}]({name}.md)" if path.is_file() else f"## {name}"
        parts += [title, f"{paper.title}."]
        if finished:
            parts.append("\n".join([*lines[:2], *finished]))
        waiting = len(lines[2:]) - len(finished) if lines else len(paper.entries)
        if waiting:
            parts.append(f"Not run yet: {waiting} of {len(finished) + waiting} entries.")
    others = [path for path in sorted(folder.glob("*.md")) if path.name != INDEX and path.stem not in load_papers()]
    parts += ["## Other studies"] if others else []
    parts += [f"- [{path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({path.name})" for path in others]
    return "\n\n".join(parts) + "\n"


def _sections(results: Iterable[EntryResult], previous: Mapping[EntryKey, PageSection]) -> list[str]:
    """Render one section per setting, in the order of the paper."""
    sections: dict[PaperSetting | str, list[MeasuredEntry]] = {}  # a text is a section of the earlier page
    for result in results:
        if (key := entry_key(result.entry)) in previous:
            sections.setdefault(previous[key].section, [])
        elif isinstance(result, MeasuredEntry):
            sections.setdefault(result.runs.setting, []).append(result)
    return [key if isinstance(key, str) else _render_section(measured) for key, measured in sections.items()]


def _render_section(results: Sequence[MeasuredEntry]) -> str:
    """Render the section of the entries that are measured in the same runs."""
    runs = results[0].runs
    places = dict.fromkeys(result.entry.where for result in results)
    notes = dict.fromkeys(chain.from_iterable(result.entry.notes for result in results))
    digests = [[name, str(seed), f"`{run.digest()[:DIGEST_LENGTH]}`"] for name, seed, run in runs.finished]
    digest_title = f"{format_count(len(digests), 'run')} and {'its digest' if len(digests) == 1 else 'their digests'}"
    parts = [
        f"## {'; '.join(places)}",
        "\n".join([format_setting(runs.setting), *_list_provenance(runs)]),
        *chain.from_iterable(map(_render_entry, results)),
        f"{EXPLANATION}\n\n" + "\n".join(f"- {note}" for note in [*notes, *_list_limitations(results)]),
        _details(digest_title + _data_label(runs), ["method", "seed", "digest of the run folder"], digests),
    ]
    return "\n\n".join(parts)


def _list_limitations(results: Sequence[MeasuredEntry]) -> list[str]:
    """List how data and size of the runs differ from the paper's."""
    setting = results[0].runs.setting
    lines = []
    if setting.stand_in:
        lines.append("The data is synthetic: the numbers cannot be compared with the paper's.")
    elif setting.nearest:
        lines.append(f"The data is {setting.other_data}: values cannot be compared, and orders are only an indication.")
    elif not any(setting.has_paper_size(result.entry.quantity.key) for result in results):
        lines.append(f"Run here: {load_paper_preset(setting.preset, setting.scale).summary}.")
    if note := next((result.entry.data_note for result in results if result.entry.data_note), ""):
        lines.append(f"Data: {note}.")
    return lines


def _list_provenance(runs: StoredRuns) -> list[str]:
    """List size, data, command, environment, worker and missing runs of a section."""
    setting, summaries = runs.setting, [s for by_seed in runs.summaries.values() for s in by_seed.values()]
    lines = [f"- Size: {setting.label}; {format_count(runs.seed_count, 'seed')}"]
    data = next((summary.data for summary in summaries if summary.data), None)
    lines += [f"- Data: {data}"] if data else []
    # a run may be started with one worker and finished by another: "batched, then inline"
    workers = Counter(summary.worker for summary in summaries if summary.worker)
    kinds = {worker.split(", then ")[-1].partition(":")[0].partition(" ")[0] for worker in workers}
    seeds = 1 + max((seed for by_seed in runs.summaries.values() for seed in by_seed), default=0)
    command = f"offbeat reproduce {setting.preset} --scale {setting.scale} --seeds {seeds}"
    command += f" --until {setting.until}" if setting.until else ""
    command += f" --worker {kinds.pop()}" if len(kinds) == 1 and kinds != {"inline"} else ""
    lines.append(f"- Command: `{command}`")
    lines += dict.fromkeys(map(_format_environment, runs.environments()))
    if workers:
        listed = ", ".join(f"{worker} ({format_count(number, 'run')})" for worker, number in workers.items())
        mixed = "; results agree within rounding, digests depend on the worker" if len(workers) > 1 else ""
        lines.append(f"- Worker: {listed}{mixed}")
    seconds = [summary.wall_seconds for summary in summaries if isfinite(summary.wall_seconds)]
    if seconds:
        count = format_count(len(seconds), "run")
        lines.append(f"- Wall time per run: {min(seconds):.0f} to {max(seconds):.0f} s, {count} (some in parallel)")
    if missing := runs.missing:
        listed = ", ".join(f"{name} {seed}" for name, seed in missing[:MAX_MISSING_SHOWN])
        listed += ", …" if len(missing) > MAX_MISSING_SHOWN else ""
        bias = "; runs end at a target, so the fastest finish first and the means are too low"
        lines.append(f"- Missing: {format_count(len(missing), 'run')} ({listed}){bias if runs.slowest_missing else ''}")
    if number := len(runs.skipped):
        verbs = "is damaged or differs" if number == 1 else "are damaged or differ"
        lines.append(f"- Excluded: {format_count(number, 'run')} that {verbs} from the current preset")
    return lines


def _format_environment(environment: Mapping[str, object]) -> str:
    """Describe the versions and the machine of a run in one line."""
    packages = environment.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    versions = ", ".join(f"{name} {packages[name]}" for name in ("offbeat", "torch", "numpy") if name in packages)
    system = str(environment.get("platform", "")).split("-")[0]
    gpu = f", {environment['gpu']}" if "gpu" in environment else ""
    return (
        f"- Computed with: Python {environment.get('python')}, {versions}; {system}, {environment.get('cpu')}, "
        f"{environment.get('cores')} cores{gpu}"
    )


def _render_entry(result: MeasuredEntry) -> list[str]:
    """Render the numbers, the verdict and the details of an entry, part by part."""
    entry, judgement = result.entry, result.judgement
    head = ["method", "paper", "here", "n", "95 % interval", "difference", "paper in widened interval"]
    label = _data_label(result.runs)
    parts = [
        f"{format_heading(entry_key(entry))}{entry.quantity.better} is better)",
        f"Claim: {entry.claim}",
        format_table(head, [_method_row(result, name, label) for name in result.runs.preset.methods]),
    ]
    if result.measured.target is not None:
        ended = " Runs that did not reach it count with their end time." if result.measured.not_reached else ""
        parts.append(f"Target here: {result.measured.target}.{ended}")
    parts.append(f"**Verdict: {judgement.verdict}**{label}: " + "; ".join(judgement.reasons) + ".")
    parts += [_orders_table(result)] if judgement.orders else []
    parts += [_stability_table(result)] if entry.quantity.key == FINAL_VALUE else []
    return parts


def _stability_table(result: MeasuredEntry) -> str:
    """Show how much final values depend on when a run ends."""
    quantity = result.entry.quantity
    rows = []
    for name, by_run in curve_stability(result.runs.comparison, result.runs.summaries).items():
        final = _format_mean([run.final * quantity.factor for run in by_run], quantity.digits)
        best = _format_mean([run.best * quantity.factor for run in by_run], quantity.digits)
        swing = fmean(run.swing * quantity.factor for run in by_run)
        rows.append([name, final, best, format_number(swing, max(1, quantity.digits))])
    head = ["method", "at the end", "best", "standard deviation over the last tenth of a run"]
    return _details("If runs had ended earlier" + _data_label(result.runs), head, rows)


def _data_label(runs: StoredRuns) -> str:
    """Return the label of numbers that do not come from the paper's data."""
    if runs.setting.nearest:
        return f" ({runs.setting.other_data})"
    return f" ({STAND_IN}, {runs.setting.scale})" if runs.setting.stand_in else ""


def _orders_table(result: MeasuredEntry) -> str:
    """Show our paired difference for each pair of methods that the paper distinguishes."""
    digits = max(2, result.entry.quantity.digits) if result.entry.quantity.digits >= 0 else -1
    rows = []
    for order in result.judgement.orders:
        difference = order.difference
        lead = format_number(difference.mean, digits) if difference.seeds else NONE
        bounds = ", ".join(format_number(bound, digits) for bound in (difference.low, difference.high))
        interval = f"[{bounds}]" if isfinite(difference.half) else NONE
        rows.append([order.better, order.worse, lead, interval, order.status])
    head = ["better in the paper", "worse in the paper", "lead here, paired", "95 % interval", "order"]
    return _details(f"{format_count(len(rows), 'order')} of the paper{_data_label(result.runs)}", head, rows)


def _method_row(result: MeasuredEntry, name: str, label: str) -> list[str]:
    """Return the cells of a method in the table of an entry; `label` marks numbers from other data."""
    quantity, printed = result.entry.quantity, result.entry.printed.get(name)
    paper = NONE if printed is None else printed.text(quantity.digits)
    values = list(result.measured.values.get(name, {}).values())
    if not values:
        here = "no value" if name in result.runs.summaries else NOT_RUN
        return [name + label, paper, here, "0", NONE, NONE, NONE]
    interval, bound = confidence_interval(values), result.measured.bounds.get(name, "")
    here = "unknown" if bound == "?" else f"{bound} {_format_mean(values, quantity.digits)}".strip()
    if not_reached := result.measured.not_reached.get(name, 0):
        here += f" ({len(values) - not_reached} of {len(values)} reached it)"
    if no_value := result.measured.no_value.get(name, 0):
        here += f" ({len(values)} of {len(values) + no_value} seeds; the others have no value)"
    ends = [format_number(end, quantity.digits) for end in (interval.low, interval.high)]
    interval_text = f"[{', '.join(ends)}]" if isfinite(interval.half) and not bound else NONE
    difference = NONE
    if printed is not None and isfinite(printed.value) and bound != "?":
        gap = interval.mean - printed.value
        difference = f"{bound} {'+' if gap >= 0 else ''}{format_number(gap, quantity.digits)}".strip()
    agrees = result.judgement.value_in_interval.get(name) if len(values) > 1 else None
    in_interval = {True: "yes", False: "no", None: NONE}[agrees]
    return [name + label, paper, here, str(len(values)), interval_text, difference, in_interval]


def _format_mean(values: Sequence[float], digits: int) -> str:
    """Format the mean, and the standard deviation of several values."""
    mean = format_number(fmean(values), digits)
    return f"{mean} ± {format_number(stdev(values), digits)}" if len(values) > 1 else mean


def _details(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that readers unfold."""
    return f"<details><summary>{title}</summary>\n\n{format_table(head, rows)}\n\n</details>"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
