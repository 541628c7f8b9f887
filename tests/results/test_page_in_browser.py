"""The page in a real browser: no script errors, everything drawn, every control used. Run by `make test-browser`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest
import torch
from handwritten_runs import TARGET, empty_run, write_run

from offbeat.experiment.data_assignment import ClassCounts
from offbeat.results import page, report, result_warnings, series
from offbeat.results.page import PageContent

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium, or CHROMIUM=PATH"),
]

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"

# what somebody would do who tries everything, and then what is there: the test reads it off the page
VISITOR = """
const errors = [], told = { drawn: {} };
window.addEventListener('error', (event) => errors.push(String(event.message)));
const count = (query) => document.querySelectorAll(query).length;
const curve = () => document.querySelector('#f-curves .plot .curve').getAttribute('d');
const wait = () => new Promise((after) => setTimeout(after, 300));

function press(element, key) {
  element.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
}

function drag(svg, from, to) {
  const box = svg.getBoundingClientRect();
  svg.setPointerCapture = () => {};
  [['pointerdown', from], ['pointermove', (from + to) / 2], ['pointerup', to]].forEach(([type, x]) => {
    const where = { clientX: box.left + x, clientY: box.top + 50 };
    svg.dispatchEvent(new PointerEvent(type, { ...where, bubbles: true, pointerId: 1 }));
  });
}

async function visit() {
  await wait();
  const plot = document.querySelector('#f-curves .plot'), all = curve();
  for (const key of ['+', 'ArrowLeft', 'ArrowRight', '-']) press(plot, key);
  told.zoomed = (press(plot, '+'), curve() !== all);
  told.reset = (press(plot, '0'), curve() === all);
  document.querySelectorAll('.controls select').forEach((select) => {
    for (const option of [...select.options].reverse()) {
      select.value = option.value;
      select.dispatchEvent(new Event('change'));
    }
  });
  document.querySelectorAll('button').forEach((button) => { button.click(); button.click(); });
  drag(document.querySelector('#f-curves .plot svg'), 100, 200);
  told.dragged = curve() !== all;
  document.querySelectorAll('details').forEach((details) => { details.open = true; });
  await wait();
  document.querySelectorAll('figure').forEach((figure) => {
    told.drawn[figure.id] = figure.querySelectorAll('.plot path, .plot rect').length;
  });
  told.hacked = window.hacked === 1;
  told.images = count('img');
  told.tables = count('details table');
  told.wider = document.documentElement.scrollWidth - document.documentElement.clientWidth;
}

visit().catch((error) => errors.push(String(error))).finally(() => {
  document.body.dataset.told = JSON.stringify({ ...told, errors });
});
"""


def visit(path: Path, width: int = 800) -> dict:
    """What a visitor finds on a page."""
    visited = path.with_name("visited.html")  # without the policy, which would keep the visitor out as well
    visited.write_text(unprotected(path).replace("</body>", f"<script>{VISITOR}</script></body>"))
    found = re.search(r'<body[^>]* data-told="([^"]*)"', opened(visited, width)[0])
    assert found is not None
    told: dict = json.loads(unescape(found[1]))
    return told


def unprotected(path: Path) -> str:
    text, policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
    assert policies == 1
    return text


def opened(path: Path, width: int = 800) -> tuple[str, list[str]]:
    """The document when its scripts have run, and what they said to the console."""
    return browsed(path.resolve().as_uri(), path.parent, width)


def browsed(address: str, home: Path, width: int = 800) -> tuple[str, list[str]]:
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=4000"]
    places = [f"--user-data-dir={home / 'profile'}", f"--window-size={width},1200", "--dump-dom", address]
    given = subprocess.run([CHROMIUM, *flags, *places], capture_output=True, text=True, timeout=120)
    assert given.returncode == 0, given.stderr
    return given.stdout, [line for line in given.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Ten methods and thirty clients, one of each with a name that means harm."""
    home = tmp_path_factory.mktemp("many")
    names = ("fedavg", "fedasync", "fedbuff", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass", "safa", "mifa")
    runs = {
        name: [write_run(home / f"{name}{s}", name, s, 0.9 - i / 50, clients=30, target=TARGET) for s in range(2)]
        for i, name in enumerate(names)
    }
    runs[HOSTILE] = runs.pop("mifa")
    found = replace(series.collect_series(runs, {0: HOSTILE, 1: "bern"}), title=f"many {HOSTILE}")
    held = ClassCounts(list(range(30)), torch.randint(50, (30, 10)))
    tables = [[["strategy", *(f"measure {i}" for i in range(9))], [HOSTILE, *("0.123 ± 0.456" for _ in range(9))]]]
    content = PageContent(result_warnings.find_warnings(found), tables, tables[0], "fedavg", "data", held)
    page.save_page(found, content, home / "page.html")
    return home / "page.html"


@pytest.mark.parametrize("width", [800, 500])
def test_everything_is_drawn_every_control_works_and_nothing_is_wider_than_the_window(many, width):
    told = visit(many, width)
    assert told["errors"] == []
    assert told["zoomed"]
    assert told["reset"]
    assert told["dragged"]
    assert told["wider"] <= 0
    assert told["tables"] >= 7
    figures = {"f-curves", "f-staleness", "f-timeline", "f-heard", "f-classes", "f-own", "f-held"}
    assert {name for name, count in told["drawn"].items() if count >= 3} == figures  # a frame and what is in it


def test_on_a_phone_nothing_is_wider_than_the_screen(many):
    """Chromium's windows are at least 500 points wide: a frame is as narrow as one likes."""
    frame = many.with_name("phone.html")
    frame.write_text(f'<iframe id="f" style="width:375px" srcdoc="{escape(unprotected(many))}"></iframe>{WIDTH}')
    assert '<body data-wider="0">' in opened(frame)[0]


WIDTH = """<script>setTimeout(() => {
  const page = document.getElementById('f').contentDocument.documentElement;
  document.body.dataset.wider = page.scrollWidth - page.clientWidth;
}, 2500);</script>"""


def test_names_that_mean_harm_stay_names(many):
    told = visit(many)
    assert not told["hacked"]
    assert told["images"] == 0


def test_under_its_own_policy_it_draws_and_says_nothing(many):
    document, console = opened(many)
    assert 'data-drawn="yes"' in document
    assert console == []
    assert document.count('class="curve"') >= 10


def test_a_script_that_is_not_its_own_does_not_run(many):
    smuggled = many.with_name("smuggled.html")
    smuggled.write_text(many.read_text().replace("</body>", "<script>document.title = 'hacked'</script></body>"))
    document, console = opened(smuggled)
    assert "<title>hacked" not in document
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.parametrize("state", ["just begun", "still going on", "one run"])
def test_runs_in_every_state_have_a_page_without_errors(tmp_path, state):
    if state == "just begun":
        run, trace = empty_run(tmp_path / "run")
        trace.add(0.0, "dispatch", 0, 0, 0)
        trace.close()
    else:
        run = write_run(tmp_path / "run", "fedbuff", ended=None if state == "still going on" else "seconds")
    report.draw_figure_or_page(run, tmp_path / "page.html")
    document, console = opened(tmp_path / "page.html")
    assert console == []
    assert 'data-drawn="yes"' in document
