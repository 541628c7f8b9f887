"""Who holds what: a picture of a partition, clients × classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.engines.checkpoint import write_whole
from offbeat.experiment.sites import called

NAMED = 40  # clients at most whose names fit beside a picture
TITLE = "who holds what (examples, first seed)"


@dataclass(frozen=True)
class Held:
    clients: Sequence[int]  # those that are shown
    counts: Tensor  # clients × classes, as `scenario.partition.class_counts` gives them
    names: Mapping[int, str] = field(default_factory=dict)  # of clients that are called something

    def called(self) -> list[str]:
        return [called(client, self.names) for client in self.clients]


def draw(held: Held) -> Any:
    """For a page: interactive."""
    from plotly.graph_objects import Figure, Heatmap

    counts = held.counts
    rows: list[list[int]] = counts.tolist()
    hover = "client %{y}, class %{x}: %{z} examples<extra></extra>"
    drawn = Heatmap(
        z=rows,
        x=_columns(counts),
        y=held.called() if held.names else list(held.clients),
        colorscale="Blues",
        zmin=0,
        hovertemplate=hover,
    )
    x, y = (
        {"title": "class", "type": "category"},
        {"title": "client", "autorange": "reversed", **({"type": "category"} if held.names else {})},
    )
    return Figure(drawn, {"title": TITLE, "xaxis": x, "yaxis": y, "template": "plotly_white"})


def save(held: Held, path: Path, title: str = TITLE) -> None:
    """For a paper."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    counts, names = held.counts, [name.replace("$", r"\$") for name in held.called()]
    clients, classes = counts.shape
    figure = Figure(figsize=(min(3 + 0.3 * classes, 12), min(2 + 0.2 * clients, 12)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    if classes <= 20:
        axis.set_xticks(range(classes), _columns(counts))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=min(clients, NAMED) if held.names else "auto", integer=True))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < clients else ""))
    axis.set_xlabel("class")
    axis.set_ylabel("client")
    axis.set_title(title.replace("$", r"\$"), fontsize="small")  # a name is not a formula
    figure.colorbar(image, label="examples")
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Whole or not at all; the ending of the path says which format (png, pdf, svg)."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=130, format=path.suffix.removeprefix(".") or "png")
    write_whole(path, drawn.getvalue())


def _columns(counts: Tensor) -> list[str]:
    return ["all"] if counts.shape[1] == 1 else [str(c) for c in range(counts.shape[1])]
