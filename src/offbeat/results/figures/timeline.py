"""Timeline panels: when each client worked, one panel per method, fastest client on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from offbeat.results.figures.figure_style import escape_text
from offbeat.results.series import FigureSeries, MethodRuns
from offbeat.results.timelines import BINS, ClientLanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MAX_COLUMNS = 4  # panels side by side
PANEL_HEIGHT = 1.05  # inches
MAX_METHOD_NAME = 24  # letters
MAX_NAMED_LANES, MAX_CLIENT_NAME = 7, 12  # the largest number of clients whose names fit, and letters per name
AWAY_COLOUR, FAILED_COLOUR = (0.55, 0.55, 0.55), (0.85, 0.0, 0.1)
MAX_SEPARATED_LANES = 40  # with more lanes there are no lines between them
WORK_OPACITY, ARRIVAL_OPACITY = 0.35, 0.9  # of the method's colour


def timeline_height(series: FigureSeries) -> float:
    """Return the height of all timeline panels in inches."""
    return 0.55 + PANEL_HEIGHT * -(-len(series.methods) // MAX_COLUMNS)


def draw_timelines(figure: Figure | SubFigure, series: FigureSeries) -> None:
    """Draw one panel per method, at most MAX_COLUMNS side by side."""
    count = len(series.methods)
    columns = min(count, MAX_COLUMNS)
    grid = figure.subplots(-(-count // columns), columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number < count:
            _draw_timeline(axes, series.methods[number], last=number + columns >= count)
            clients = series.methods[number].lanes.clients
            if number % columns == 0 and 1 < len(clients) <= MAX_NAMED_LANES:
                names = [escape_text(series.client_name(client), MAX_CLIENT_NAME) for client in clients]
                axes.set_yticks([row + 0.5 for row in range(len(clients))], names)
                axes.tick_params(axis="y", length=0, pad=2)
        else:
            axes.set_visible(False)
    shown, total = len(series.methods[0].lanes.clients), len(series.clients)
    label = f"{shown} of {total} clients" if 1 < shown < total else "clients"
    figure.supylabel(f"{label}, fastest on top", fontsize=8)
    key = "light: at work, full: an update arrived, white: waiting, grey line: away, red half: lost or refused"
    figure.supxlabel(f"{series.clock}\n{key} (first seed)", fontsize=7)


def _draw_timeline(axes: Axes, method: MethodRuns, last: bool) -> None:
    """Draw the lanes of one method; the last row of panels has the labels of the time axis."""
    lanes = method.lanes
    extent = (0, lanes.end or 1.0, max(1, len(lanes.clients)), 0)
    axes.imshow(lane_pixels(lanes, method.style.colour), aspect="auto", extent=extent, interpolation="nearest")
    axes.set_yticks([])
    axes.set_title(escape_text(method.name, MAX_METHOD_NAME), fontsize=7, pad=2)
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(labelbottom=last, bottom=last)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def lane_pixels(lanes: ClientLanes, colour: str) -> NDArray[np.float64]:
    """Render the lanes as an image of pixels × bins × RGB.

    Marks differ in shape, not in colour alone: an absence is a thin line, a failed job is half a lane high. White lines
    separate the lanes unless there are too many.
    """
    rows = max(1, len(lanes.clients))
    method_colour = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    image = np.ones((rows, BINS, 3))
    lane_height = max(6, 60 // rows)
    if lanes.clients:
        _blend(image, method_colour, WORK_OPACITY * lanes.work)
        _blend(image, method_colour, ARRIVAL_OPACITY * (lanes.arrived > 0))
    tall = np.repeat(image, lane_height, axis=0).reshape(rows, lane_height, BINS, 3)
    if lanes.clients:
        third, half = slice(lane_height // 3, 2 * lane_height // 3), slice(lane_height // 2, lane_height)
        _blend(tall[:, third], np.array(AWAY_COLOUR), lanes.away[:, None])
        _blend(tall[:, half], np.array(FAILED_COLOUR), lanes.failed[:, None] > 0)
    if rows <= MAX_SEPARATED_LANES:
        tall[:, -1] = 1.0
    return tall.reshape(rows * lane_height, BINS, 3)


def _blend(image: NDArray[np.float64], colour: NDArray[np.float64], opacity: NDArray[np.number | np.bool_]) -> None:
    """Paint a colour over an image."""
    alpha = np.asarray(opacity, dtype=np.float64)[..., None]
    image *= 1 - alpha
    image += alpha * colour
