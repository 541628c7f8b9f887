"""Who holds what: a picture of a partition, clients × classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.core.errors import ConfigError
from offbeat.engine.checkpoint import write_whole
from offbeat.metrics.client_names import called

# formats, and what keeps the time out of them: the same figure is the same file
UNDATED: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
NAMED = 40  # clients at most whose names fit beside a picture
LONGEST = 30  # letters of a name that fit there too
TITLE = "who holds what (examples, first seed)"


@dataclass(frozen=True)
class Held:
    clients: Sequence[int]  # those that are shown
    counts: Tensor  # clients × classes, as `scenario.partition.class_counts` gives them
    names: Mapping[int, str] = field(default_factory=dict)  # of clients that are called something

    def called(self) -> list[str]:
        return [called(client, self.names) for client in self.clients]


def save(held: Held, path: Path, title: str = TITLE) -> None:
    """For a paper."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    counts, names = held.counts, [_short(name).replace("$", r"\$") for name in held.called()]
    clients, classes = counts.shape
    figure = Figure(figsize=(min(3 + 0.3 * classes, 12), min(2 + 0.2 * clients, 12)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    if classes <= 20:
        axis.set_xticks(range(classes), columns(counts))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=min(clients, NAMED) if held.names else "auto", integer=True))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < clients else ""))
    axis.set_xlabel("class")
    axis.set_ylabel("client")
    axis.set_title(title.replace("$", r"\$"), fontsize="small")  # a name is not a formula
    figure.colorbar(image, label="examples")
    save_figure(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def save_figure(figure: Any, path: Path, dpi: float = 130) -> None:
    """Whole or not at all; the ending of the path says which format."""
    ending = format_of(path)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi, format=ending, metadata=UNDATED[ending])
    write_whole(path, drawn.getvalue())


def format_of(path: Path) -> str:
    ending = path.suffix.removeprefix(".").lower()
    if ending not in UNDATED:
        raise ConfigError(f"{path}: the name of a figure ends in .pdf, .svg or .png")
    return ending


def columns(counts: Tensor) -> list[str]:
    return ["all"] if counts.shape[1] == 1 else [str(c) for c in range(counts.shape[1])]
