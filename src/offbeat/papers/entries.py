"""Published results of the papers: claims and numbers, read from `papers/PAPER/published.yaml`.

A file has tables. A table gives the fields that its entries share; an entry adds its own fields or overrides them.
`where` of an entry is appended to that of its table. `printed` is a list of values in the order of `methods`, or a
mapping from method to value. A value is a number, `NUMBER ± SPREAD`, `–` (not reached) or null (not printed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from offbeat.core.errors import ConfigError, unknown_name
from offbeat.papers.preset_registry import PAPERS

RELATIVE_TIME = "relative_time"  # key of quantities that are times relative to a reference method
FINAL_VALUE = "final"  # key of quantities that are the headline metric at the end of a run
NOT_REACHED = inf


@dataclass(frozen=True)
class PrintedValue:
    """A cell of a published table."""

    value: float
    spread: float | None = None  # standard deviation, if the paper prints one

    def text(self, digits: int) -> str:
        """Format the value and its spread with the given decimals."""
        if not isfinite(self.value):
            return "not reached"
        spread = "" if self.spread is None else f" ± {format_number(self.spread, digits)}"
        return format_number(self.value, digits) + spread


def format_number(value: float, digits: int) -> str:
    """Format with the given decimals; -1 selects scientific notation."""
    return f"{value:.2e}" if digits < 0 else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Quantity:
    """A measured quantity and the unit in which the paper prints it."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    key: str  # a measure of offbeat, metrics.NAME, RELATIVE_TIME or server_seconds_an_update
    title: str
    better: Literal["more", "less"]
    factor: float = 1.0  # converts from offbeat's unit to the paper's
    digits: int = 2  # decimals; -1: scientific notation
    same_unit: bool = True  # False: only orders can be compared, not values
    machine_dependent: bool = False  # depends on the computer and not on the simulated setting


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A claim of a paper: a column of a table or a figure."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    where: str  # place in the paper: "Table 2, MNIST"
    claim: str
    quantity: Quantity
    preset: str | None = None  # None: no preset runs it
    study_page: str = ""  # page with the result of an entry without a preset
    printed: Mapping[str, PrintedValue] = field(default_factory=dict)  # by method label of the preset
    winner: str | None = None  # the method that the claim is about
    variants: tuple[str, ...] = ()  # variants of the winner, which do not count as competitors
    stated_orders: tuple[tuple[str, str], ...] = ()  # (better, worse) pairs that the text states without numbers
    notes: tuple[str, ...] = ()  # possible reasons for a difference
    data_note: str = ""  # replacement used for data that is not freely available
    in_quick_subset: bool = False  # run by default at the quick scale


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper with all its entries."""

    name: str  # prefix of its presets
    title: str
    entries: tuple[Entry, ...]
    spread: str  # possible sources of the spreads that the paper prints
    notes: tuple[str, ...] = ()


class PublishedTable(BaseModel):
    """A table or figure in a published.yaml: fields shared by its entries (extra fields), and the entries."""

    model_config = ConfigDict(extra="allow")
    where: str = ""
    entries: list[dict[str, Any]]


class PublishedFile(BaseModel):
    """Layout of a published.yaml."""

    model_config = ConfigDict(extra="forbid")
    title: str
    spread: str
    notes: tuple[str, ...] = ()
    texts: dict[str, str] = {}  # sentences that claims, notes and data_note refer to by name
    quantities: dict[str, Quantity]
    tables: list[PublishedTable]


@cache
def load_papers() -> dict[str, Paper]:
    """Load the published results of all papers, by paper name."""
    return {name: read_published(Path(__file__).parent / name / "published.yaml") for name in PAPERS}


def find_entries(word: str) -> tuple[Paper, tuple[Entry, ...]]:
    """Return a paper and the selected entries.

    `orthofl` selects all entries, `orthofl/table2` those whose preset starts with this text, and the full name of a
    preset only the entries of that preset.
    """
    name, _, table = word.partition("/")
    papers = load_papers()
    if name not in papers:
        raise unknown_name("paper", name, papers)
    paper = papers[name]
    if not table:
        return paper, paper.entries
    exact = tuple(entry for entry in paper.entries if entry.preset == word)
    selected = exact or tuple(entry for entry in paper.entries if (entry.preset or "").startswith(word))
    if not selected:
        tables = dict.fromkeys(entry.preset.partition("/")[2] for entry in paper.entries if entry.preset)
        raise unknown_name(f"table of {name}", table, tables)
    return paper, selected


def read_published(path: Path) -> Paper:
    """Read the published results of the paper whose folder contains the file."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        file = PublishedFile.model_validate(tree)
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path}: {_describe_problem(error)}") from None
    entries = []
    for table in file.tables:
        for fields in table.entries:
            where = ", ".join(part for part in (table.where, str(fields.get("where", ""))) if part)
            try:
                entries.append(_parse_entry({**(table.model_extra or {}), **fields, "where": where}, file))
            except ValueError as error:
                raise ConfigError(f"{path}: entry {where!r}: {_describe_problem(error)}") from None
    return Paper(name=path.parent.name, title=file.title, entries=tuple(entries), spread=file.spread, notes=file.notes)


def _describe_problem(error: Exception) -> str:
    """Describe the first problem of a validation, or any other error, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


_ENTRY = TypeAdapter(Entry)


def _parse_entry(fields: dict[str, Any], file: PublishedFile) -> Entry:
    """Build an entry from its fields and those of its table; texts and quantities are referred to by name."""
    methods, printed = fields.pop("methods", []), fields.pop("printed", {})
    if not isinstance(printed, dict):
        if len(printed) != len(methods):
            raise ValueError(f"printed: {len(printed)} values for {len(methods)} methods")
        printed = dict(zip(methods, printed, strict=True))
    values = {method: _parse_value(method, value) for method, value in printed.items() if value is not None}
    if reference := fields.pop("relative_to", None):
        values = {method: PrintedValue(cell.value / values[reference].value) for method, cell in values.items()}
    if fields.get("quantity") not in file.quantities:
        raise ValueError(f"quantity: {fields.get('quantity')!r} is not one of {', '.join(file.quantities)}")
    texts = {key: file.texts.get(fields[key], fields[key]) for key in ("claim", "data_note") if key in fields}
    notes = tuple(file.texts.get(note, note) for note in fields.get("notes", ()))
    for text in (*texts.values(), *notes):
        if " " not in text:
            raise ValueError(f"{text!r} is not defined in texts")
    orders = tuple(pair for line in fields.get("stated_orders", ()) for pair in _parse_orders(line))
    fields |= texts | {"notes": notes, "stated_orders": orders, "printed": values}
    return _ENTRY.validate_python({**fields, "quantity": file.quantities[fields["quantity"]]})


def _parse_value(method: str, value: object) -> PrintedValue:
    """Parse a value in the notation of published.yaml."""
    if value == "–":
        return PrintedValue(NOT_REACHED)
    number, _, spread = str(value).partition(" ± ")
    try:
        return PrintedValue(float(number), float(spread) if spread else None)
    except ValueError:
        raise ValueError(f"printed.{method}: {value!r} is not a number, 'NUMBER ± SPREAD', – or null") from None


def _parse_orders(line: str) -> list[tuple[str, str]]:
    """Parse `a > b, c` into (better, worse) pairs."""
    better, mark, worse = (part.strip() for part in line.partition(">"))
    if not (better and mark and worse):
        raise ValueError(f"stated_orders: {line!r} is not of the form METHOD, … > METHOD, …")
    return list(product(better.split(", "), worse.split(", ")))
