"""Heat map of a data partition: training examples by client and class."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from offbeat.experiment import ClassCounts
from offbeat.results.figures.figure_style import escape_text, new_figure, write_figure

MAX_NAMED_CLIENTS = 40  # the largest number of client names that fit beside the heat map
MAX_NAME_LENGTH = 30  # letters
TITLE = "training examples by client and class (first seed)"


def save_heatmap(class_counts: ClassCounts, path: Path, title: str = TITLE) -> None:
    """Write the heat map to a PDF, SVG or PNG file."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    counts = class_counts.counts
    names = [escape_text(name, MAX_NAME_LENGTH) for name in class_counts.client_labels()]
    clients, classes = counts.shape
    figure = new_figure(min(3 + 0.3 * classes, 12), min(2 + 0.2 * clients, 12))
    axes = figure.subplots()
    image = axes.imshow(counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    if classes <= 20:
        axes.set_xticks(range(classes), class_counts.class_labels())
    max_ticks: int | Literal["auto"] = min(clients, MAX_NAMED_CLIENTS) if class_counts.names else "auto"
    axes.yaxis.set_major_locator(MaxNLocator(nbins=max_ticks, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < clients else ""))
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    axes.set_title(escape_text(title), fontsize="small")
    figure.colorbar(image, label="examples")
    write_figure(figure, path)
