"""One page a paper, in Markdown: its numbers beside ours, what to think of it, and where every number is from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from offbeat.core.errors import RunError, counted
from offbeat.engine.checkpoint import write_whole
from offbeat.metrics.intervals import interval
from offbeat.papers import papers
from offbeat.papers.entries import ACCURACY, Paper, shown
from offbeat.papers.evaluated_entry import NOT_RUN, Looked, Shelf
from offbeat.papers.measured_values import steadiness
from offbeat.papers.page_merge import BEGIN, END, EXPLAINED, Kept, Key, heading, keep, key_of, setting, summary_lines
from offbeat.papers.paper_presets import load_paper_preset
from offbeat.papers.run_store import STAND_IN, World
from offbeat.papers.verdict import RULE

INDEX = "README.md"
HEAD = ["in the paper", "measured", "claim", "verdict", "size here", "seeds"]
PREFIX = 16  # letters of a digest
MOST_MISSING = 12  # runs, with method and seed
NONE = "–"


def write(paper: Paper, looked: Sequence[Looked], folder: Path) -> tuple[Path, list[Key]]:
    """The page, and the index of all pages that lie in the folder; which entries stay as the page had them, since
    there is less of them here.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder} for pages: {error.strerror or error}") from None
    path = folder / f"{paper.name}.md"
    kept = keep(path, looked)
    write_whole(path, page(paper, looked, kept).encode())
    write_whole(folder / INDEX, index(folder).encode())
    return path, list(kept)


def page(paper: Paper, looked: Sequence[Looked], kept: Mapping[Key, Kept] | None = None) -> str:
    """`kept`: entries of which what an earlier page had is shown."""
    kept = kept or {}
    parts = [
        f"# {paper.name}: the paper's numbers beside ours",
        f"{paper.title}. Written by `offbeat reproduce {paper.name}` from the runs of a store; "
        "[how](../how-to/reproduce.md). Numbers of the paper are the paper's.",
        BEGIN,
        table(HEAD, (kept[key].row if (key := key_of(one.entry)) in kept else _summary(one) for one in looked)),
        END,
        "## The rule",
        RULE,
        f"**What spreads come from.** {paper.spread}",
        *paper.notes,
    ]
    return "\n\n".join([*parts, *_sections(looked, kept)]) + "\n"


def index(folder: Path) -> str:
    """Put together from the pages that are there, whatever store each was made from."""
    parts = [
        "# Reproductions",
        "Every table and figure of five papers that compares methods has an entry, or its page says why not; "
        "`offbeat reproduce PAPER` runs what is "
        "missing and writes its page "
        "([how](../how-to/reproduce.md)). A claim that does not hold in our hands is reported as such; "
        "nothing is tuned until it looks true. "
        "The rule behind a verdict stands on every page.",
    ]
    for name, paper in papers().items():
        path = folder / f"{name}.md"
        lines = summary_lines(path)
        run = [line for line in lines[2:] if f"| {NOT_RUN} |" not in line]
        title = f"## [{name}]({name}.md)" if path.is_file() else f"## {name}"
        parts += [title, f"{paper.title}."]
        if run:
            parts.append("\n".join([*lines[:2], *run]))
        waiting = len(lines[2:]) - len(run) if lines else len(paper.entries)
        if waiting:
            parts.append(f"Not run yet: {waiting} of {len(run) + waiting} entries.")
    others = [path for path in sorted(folder.glob("*.md")) if path.name != INDEX and path.stem not in papers()]
    parts += ["## Beside the papers"] if others else []
    parts += [f"- [{path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({path.name})" for path in others]
    return "\n\n".join(parts) + "\n"


def _summary(one: Looked) -> list[str]:
    entry, seeds = one.entry, NONE if one.shelf is None else str(one.shelf.seeds)
    verdict = one.verdict if one.judged is None else f"**{one.verdict}**"
    return [entry.where, entry.quantity.title, entry.claim, verdict, one.size, seeds]


def _sections(looked: Iterable[Looked], kept: Mapping[Key, Kept]) -> list[str]:
    """Of what was run, one a world, in the order of the paper."""
    found: dict[World | str, list[Looked]] = {}
    for one in looked:
        if (key := key_of(one.entry)) in kept:
            found.setdefault(kept[key].section, [])
        elif one.shelf is not None:
            found.setdefault(one.shelf.world, []).append(one)
    return [world if isinstance(world, str) else "\n\n".join(_section(several)) for world, several in found.items()]


# ---------------------------------------------------------------- one world


def _section(several: Sequence[Looked]) -> list[str]:
    shelf = several[0].shelf
    assert shelf is not None
    wheres = dict.fromkeys(one.entry.where for one in several)
    notes = dict.fromkeys(chain.from_iterable(one.entry.notes for one in several))
    return [
        f"## {'; '.join(wheres)}",
        "\n".join([setting(shelf.world), *_provenance(shelf)]),
        *chain.from_iterable(map(_numbers, several)),
        f"{EXPLAINED}\n\n" + "\n".join(f"- {note}" for note in [*notes, *_gaps(several)]),
        _runs(shelf),
    ]


def _gaps(several: Sequence[Looked]) -> list[str]:
    """What follows from what was run."""
    shelf = several[0].shelf
    assert shelf is not None
    found = []
    if shelf.world.stand_in:
        found.append("The data is made up: no number here says anything about the paper's.")
    elif shelf.world.nearest:
        found.append(f"The data is {shelf.world.other_data}: values cannot be compared, orders say something at most.")
    elif not any(shelf.world.paper_size(one.entry.quantity.key) for one in several):
        found.append(f"Run here: {load_paper_preset(shelf.world.preset, shelf.world.scale).summary}.")
    if data := next((one.entry.data for one in several if one.entry.data), ""):
        found.append(f"Data: {data}.")
    return found


def _provenance(shelf: Shelf) -> list[str]:
    world = shelf.world
    lines = [f"- Size: {world.label}; {counted(shelf.seeds, 'seed')}"]
    data = next((s.data for given in shelf.found.values() for s in given.values() if s.data), None)
    lines += [f"- Data: {data}"] if data else []
    workers = _workers(shelf)
    kinds = {kind.split(", then ")[-1].partition(":")[0].partition(" ")[0] for kind in workers}
    # the seeds that are shown, and perhaps more
    seeds = 1 + max((seed for given in shelf.found.values() for seed in given), default=0)
    command = f"offbeat reproduce {world.preset} --scale {world.scale} --seeds {seeds}"
    command += f" --until {world.until}" if world.until else ""
    command += f" --worker {kinds.pop()}" if len(kinds) == 1 and kinds != {"inline"} else ""
    lines.append(f"- Command: `{command}`")
    lines += dict.fromkeys(map(_machine, shelf.environments()))
    if workers:
        several = ", ".join(f"{kind} ({counted(number, 'run')})" for kind, number in workers.items())
        mixed = "; they agree within rounding, so digests are those of the worker" if len(workers) > 1 else ""
        lines.append(f"- Jobs computed by: worker {several}{mixed}")
    took = [s.wall_seconds for given in shelf.found.values() for s in given.values() if isfinite(s.wall_seconds)]
    if took:
        lines.append(
            f"- Wall time of a run: {min(took):.0f} to {max(took):.0f} s, of {counted(len(took), 'run')} "
            "(some side by side)"
        )
    if missing := shelf.missing:
        which = ", ".join(f"{name} {seed}" for name, seed in missing[:MOST_MISSING])
        which += ", …" if len(missing) > MOST_MISSING else ""
        slow = "; where runs end at a target the quickest are there first, and their means are too low"
        lines.append(f"- Missing: {counted(len(missing), 'run')} ({which}){slow if shelf.slowest_missing else ''}")
    if shelf.left:
        number = len(shelf.left)
        which = "is damaged, or not" if number == 1 else "are damaged, or not"
        lines.append(f"- Left out: {counted(number, 'run')} that {which} what the preset is now")
    return lines


def _machine(given: Mapping[str, Any]) -> str:
    packages = given.get("packages") or {}
    versions = ", ".join(f"{name} {packages[name]}" for name in ("offbeat", "torch", "numpy") if name in packages)
    system = str(given.get("platform", "")).split("-")[0]
    return (
        f"- Computed with: Python {given.get('python')}, {versions}; {system}, {given.get('cpu')}, "
        f"{given.get('cores')} cores{', ' + given['gpu'] if 'gpu' in given else ''}"
    )


def _workers(shelf: Shelf) -> Counter[str]:
    """As the runs say: one that was begun with one worker may have been finished by another."""
    return Counter(s.worker for given in shelf.found.values() for s in given.values() if s.worker)


def _numbers(one: Looked) -> list[str]:
    assert one.shelf is not None
    assert one.judged is not None
    entry, judged = one.entry, one.judged
    way = "more" if entry.quantity.better == "more" else "less"
    head = ["method", "paper", "here", "n", "95 % interval", "difference", "in our interval, widened"]
    label = _label(one.shelf)
    rows = [_row(one, name, label) for name in one.shelf.preset.methods]
    return [
        f"{heading(key_of(entry))}{way} is better)",
        f"Claim: {entry.claim}",
        table(head, rows),
        *_to_what(one),
        f"**Verdict: {judged.verdict}**{label}: " + "; ".join(judged.reasons) + ".",
        *([_orders(one)] if judged.pairs else []),
        *([_steady(one)] if entry.quantity.key == ACCURACY.key else []),
    ]


def _steady(one: Looked) -> str:
    """Final values depend on when a run ends: the more, the more its curve swings."""
    assert one.shelf is not None
    quantity, found = one.entry.quantity, steadiness(one.shelf.comparison, one.shelf.found)
    rows = []
    for name, several in found.items():
        columns = [[getattr(run, key) * quantity.factor for run in several] for key in ("final", "best", "swing")]
        final, best = (_mean(values, quantity.digits) for values in columns[:2])
        rows.append([name, final, best, shown(fmean(columns[2]), max(1, quantity.digits))])
    head = ["method", "at the end", "at its best", "swing: deviation over the last tenth of a run"]
    return _folded("Had runs ended earlier" + _label(one.shelf), table(head, rows))


def _label(shelf: Shelf) -> str:
    """Behind whatever is of other data than the paper's."""
    if shelf.world.nearest:
        return f" ({shelf.world.other_data})"
    return f" ({STAND_IN}, {shelf.world.scale})" if shelf.world.stand_in else ""


def _to_what(one: Looked) -> list[str]:
    """Of times: the target, and what becomes of those who did not get there."""
    assert one.measured is not None
    if one.measured.target is None:
        return []
    told = f"To {one.measured.target} here."
    if one.measured.beyond:
        told += " Who did not get there counts with the time for which it was watched."
    return [told]


def _orders(one: Looked) -> str:
    """Of every two methods that the paper tells apart, our paired difference: above 0 on the paper's side."""
    assert one.shelf is not None
    assert one.judged is not None
    rows = []
    for pair in one.judged.pairs:
        found, digits = pair.difference, max(2, one.entry.quantity.digits) if one.entry.quantity.digits >= 0 else -1
        lead = shown(found.mean, digits) if found.seeds else NONE
        bounds = ", ".join(shown(bound, digits) for bound in (found.low, found.high))
        rows.append([pair.better, pair.worse, lead, f"[{bounds}]" if isfinite(found.half) else NONE, pair.holds])
    head = ["better in the paper", "than", "lead here, paired", "95 % interval", "the order"]
    return _folded(f"{counted(len(rows), 'order')} of the paper{_label(one.shelf)}", table(head, rows))


def _row(one: Looked, name: str, label: str) -> list[str]:
    assert one.measured is not None
    assert one.judged is not None
    quantity, printed = one.entry.quantity, one.entry.printed.get(name)
    paper = NONE if printed is None else printed.text(quantity.digits)
    values = list(one.measured.values.get(name, {}).values())
    if not values:
        ran = one.shelf is not None and name in one.shelf.found
        return [name + label, paper, "no value" if ran else NOT_RUN, "0", NONE, NONE, NONE]
    found, bound = interval(values), one.measured.bounds.get(name, "")
    here = "not known" if bound == "?" else f"{bound} {_mean(values, quantity.digits)}".strip()
    if late := one.measured.beyond.get(name, 0):
        here += f" ({len(values) - late} of {len(values)} got there)"
    if without := one.measured.without.get(name, 0):
        here += f" (of {len(values)} of {len(values) + without} seeds: the others gave no number)"
    bounds = [shown(side, quantity.digits) for side in (found.low, found.high)]
    between = f"[{', '.join(bounds)}]" if isfinite(found.half) and not bound else NONE
    differs = NONE
    if printed is not None and isfinite(printed.value) and bound != "?":
        gap = found.mean - printed.value
        differs = f"{bound} {'+' if gap >= 0 else ''}{shown(gap, quantity.digits)}".strip()
    inside = {True: "yes", False: "no", None: NONE}[one.judged.inside.get(name) if len(values) > 1 else None]
    return [name + label, paper, here, str(len(values)), between, differs, inside]


def _mean(values: Sequence[float], digits: int) -> str:
    return shown(fmean(values), digits) + (f" ± {shown(stdev(values), digits)}" if len(values) > 1 else "")


def _runs(shelf: Shelf) -> str:
    """What every number is traced by."""
    rows = [[name, str(seed), f"`{run.digest()[:PREFIX]}`"] for name, seed, run in shelf.finished]
    cells = table(["method", "seed", "digest of the run folder"], rows)
    digests = "its digest" if len(rows) == 1 else "their digests"
    return _folded(f"{counted(len(rows), 'run')} and {digests}{_label(shelf)}", cells)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
