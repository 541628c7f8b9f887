"""Who worked when, for every method, over the whole run: clients from the fastest to the slowest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.results.figures.figure_style import plain
from offbeat.results.series import Method, Series
from offbeat.results.timelines import BINS, Lanes

ACROSS = 4  # timelines beside each other
EACH = 1.05  # inches of height
LONGEST = 24  # letters of a method's name
NAMED, SHORT = 7, 12  # clients at most whose names fit, and letters of one
AWAY, IN_VAIN = (0.55, 0.55, 0.55), (0.85, 0.0, 0.1)
FEW = 40  # lanes that have a line between them
WORK, ARRIVED = 0.35, 0.9  # how much of the method's colour


def height(series: Series) -> float:
    return 0.55 + EACH * -(-len(series.methods) // ACROSS)


def draw(figure: Any, series: Series) -> None:
    count = len(series.methods)
    across = min(count, ACROSS)
    down = -(-count // across)
    grid = figure.subplots(down, across, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < count:
            _one(axes, series.methods[place], last=place + across >= count)
            if place % across == 0:
                _names(axes, series, series.methods[place])
        else:
            axes.set_visible(False)
    shown, all_of = len(series.methods[0].lanes.clients), len(series.clients)
    whom = f"{shown} of {all_of} clients" if 1 < shown < all_of else "clients"
    figure.supylabel(f"{whom}, fastest on top", fontsize=8)
    text = "light: at work, full: an update arrived, white: waiting, grey line: away, red half: lost or refused"
    figure.supxlabel(f"{series.clock}\n{text} (first seed)", fontsize=7)


def _one(axes: Any, method: Method, last: bool) -> None:
    lanes = method.lanes
    rows = max(1, len(lanes.clients))
    extent = (0, lanes.end or 1.0, rows, 0)
    axes.imshow(pixels(lanes, method.style.colour), aspect="auto", extent=extent, interpolation="nearest")
    axes.set_yticks([])
    axes.set_title(plain(method.name, LONGEST), fontsize=7, pad=2)
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(labelbottom=last, bottom=last)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def _names(axes: Any, series: Series, method: Method) -> None:
    """Whose lane is whose, while there is room for letters."""
    clients = method.lanes.clients
    if 1 < len(clients) <= NAMED:
        middles = [row + 0.5 for row in range(len(clients))]
        axes.set_yticks(middles, [plain(series.name(client), SHORT) for client in clients])
        axes.tick_params(axis="y", length=0, pad=2)


def pixels(lanes: Lanes, colour: str) -> NDArray[np.float64]:
    """Lanes × bins × red, green, blue, each lane some pixels high. Marks differ in shape, not in colour alone: away is
    a thin line, what came to nothing is half a lane high. Between two lanes is a white line, while there are few.
    """
    rows = max(1, len(lanes.clients))
    own = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    image = np.ones((rows, BINS, 3))
    thick = max(6, 60 // rows)
    if lanes.clients:
        _mix(image, own, WORK * lanes.work)
        _mix(image, own, ARRIVED * (lanes.arrived > 0))
    tall = np.repeat(image, thick, axis=0).reshape(rows, thick, BINS, 3)
    if lanes.clients:
        third, half = slice(thick // 3, 2 * thick // 3), slice(thick // 2, thick)
        _mix(tall[:, third], np.array(AWAY), lanes.away[:, None])
        _mix(tall[:, half], np.array(IN_VAIN), lanes.in_vain[:, None] > 0)
    if rows <= FEW:
        tall[:, -1] = 1.0
    return tall.reshape(rows * thick, BINS, 3)


def _mix(image: NDArray[np.float64], colour: NDArray[np.float64], share: NDArray[Any]) -> None:
    share = np.asarray(share, dtype=np.float64)[..., None]
    image *= 1 - share
    image += share * colour
