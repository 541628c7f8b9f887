"""The page of a comparison or a run: complete, small, and safe for any names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from handwritten_runs import TARGET, empty_run, write_run
from test_palette import contrast

from offbeat.experiment.data_assignment import ClassCounts
from offbeat.results import page, report, result_warnings, series
from offbeat.results.page import PageContent

HOSTILE = "</script><script>alert('x')</script><img src=//evil.example/x onerror=alert(1)>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Read(HTMLParser):
    """Parses a page: open tags, ids, scripts, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, key, value) for key, value in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    @property
    def numbers(self):
        return json.loads(next(t for t in self.texts["script"] if t.startswith("{")), parse_constant=pytest.fail)

    @property
    def words(self) -> str:
        return " ".join(text for tag, texts in self.texts.items() if tag not in ("script", "style") for text in texts)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    home = tmp_path_factory.mktemp("page")
    runs = {
        name: [write_run(home / f"{name}{seed}", name, seed, 0.9 - i / 10, target=TARGET) for seed in range(2)]
        for i, name in enumerate(("fedavg", "fedbuff"))
    }
    runs[HOSTILE] = runs.pop("fedbuff")
    return replace(series.collect_series(runs, {0: "bern", 1: HOSTILE}), title=f"two {HOSTILE}")


@pytest.fixture(scope="module")
def held():
    return ClassCounts([0, 1, 2, 3], torch.tensor([[8, 0], [6, 2], [0, 8], [4, 4]]))


@pytest.fixture(scope="module")
def read(found, held):
    tables = [[["strategy", "final acc ↑"], [HOSTILE, "0.9 ± 0.1"]]]
    caveats, by_run = result_warnings.find_warnings(found), [["strategy", "x"], [HOSTILE, "1"]]
    content = PageContent(caveats, tables, by_run, HOSTILE, HOSTILE, held)
    return Read(page.render_page(found, content))


def test_it_loads_nothing_and_runs_only_its_own_script(read):
    loads = ("src", "srcset", "data", "action", "poster", "background")
    assert [(t, k, v) for t, k, v in read.attributes if k in loads] == []
    assert all(v.startswith("#") for _, k, v in read.attributes if k == "href")
    assert [(t, k) for t, k, _ in read.attributes if k.startswith("on")] == []
    assert "@import" not in " ".join(read.texts["style"])
    assert "url(" not in " ".join(read.texts["style"])
    policy = next(v for _, k, v in read.attributes if k == "content" and "default-src" in v)
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_names_are_text_whatever_is_in_them(read):
    assert len(read.texts["script"]) == 2  # the numbers and the script
    assert "img" not in {tag for tag, _, _ in read.attributes}
    assert read.words.count(HOSTILE) >= 5
    assert [method["name"] for method in read.numbers["methods"]] == ["fedavg", HOSTILE]
    assert read.numbers["methods"][0]["lanes"]["clients"] == ["bern", HOSTILE, "2", "3"]


def test_all_links_have_targets_and_ids_are_unique(read):
    assert len(set(read.ids)) == len(read.ids)
    assert {v.removeprefix("#") for _, k, v in read.attributes if k == "href"} <= set(read.ids)
    labelled = {v for _, k, v in read.attributes if k == "aria-labelledby"}
    assert labelled
    assert labelled <= set(read.ids)


def test_it_shows_settings_seeds_versions_and_commands(read):
    for word in ("Caveats", "0, 1", "torch ", "offbeat run ", "computed by inline", "until", "100s"):
        assert word in read.words
    assert "partition" in read.words


def test_only_settings_of_all_methods_are_shared(tmp_path):
    """Swept settings are listed with each method."""
    runs = {name: [write_run(tmp_path / name, "fedavg", clients=int(name))] for name in ("3", "4")}
    own, rest = page.render_page(series.collect_series(runs), PageContent()).split("Shared settings")
    assert "; clients: 3</td>" in own
    assert "; clients: 4</td>" in own
    shared = rest.split("The experiment file of")[0]
    assert '<th scope="row">model</th>' in shared
    assert '<th scope="row">clients</th>' not in shared
    assert '<th scope="row">strategy</th>' not in shared


def test_the_numbers_are_those_of_the_traces(read):
    fedavg, other = read.numbers["methods"]
    assert fedavg["values"]["acc"][0][-1] == 0.9
    assert other["values"]["acc"][0][-1] == 0.8
    assert fedavg["against"]["updates"][0][-1] == 75  # as in test_series
    assert fedavg["against"]["moved"][1][-1] == 15_400
    assert fedavg["lanes"]["work"] == ["9" * 200] * 4
    assert "away" not in fedavg["lanes"]
    # 25, 20, 16 and 14 of 75 updates where 75 / 4 would be even
    assert [row[0] for row in read.numbers["heard"]["values"]] == [1.3333, 1.0667, 0.85333, 0.74667]
    # class 0 is 1, 3/4, 0 and 1/2 of what the clients hold: 2.25 / 4 if all contributed equally;
    # weighed by updates (25 + 15 + 0 + 7) / 75: a ratio of 1.11407
    assert read.numbers["classes"]["values"][0][0] == 1.1141
    assert read.numbers["held"]["values"] == [[8, 0], [6, 2], [0, 8], [4, 4]]


@pytest.mark.parametrize("paper", [0, 1])
def test_text_has_enough_contrast_in_light_and_dark(paper):
    style = (page.PAGE_FOLDER / "style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    colours = dict(re.findall(r"--(\w+): (#\w+)", blocks[paper]))
    for word, ground in (("ink", "paper"), ("soft", "paper"), ("link", "paper"), ("ink", "warn"), ("ink", "grid")):
        assert contrast(colours[word], colours[ground]) >= 4.5, (word, ground)  # what WCAG asks of text
    for mark in ("away", "bad", "more", "less", "edge"):
        assert contrast(colours[mark], colours["paper"]) >= 3, mark  # and of graphics


def test_a_page_of_ten_methods_three_seeds_and_a_hundred_clients_is_under_two_megabytes(tmp_path):
    names = ("fedavg", "fedasync", "fedbuff", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass", "safa", "mifa")
    runs = {name: [write_run(tmp_path / f"{name}{s}", name, s, clients=100) for s in range(3)] for name in names}
    big = series.collect_series(runs)
    held = ClassCounts(list(range(100)), torch.randint(1000, (100, 10)))
    text = page.render_page(big, PageContent(result_warnings.find_warnings(big), class_counts=held))
    assert len(text.encode()) < 2_000_000


def test_a_run_that_has_just_started_has_a_page_and_figures(tmp_path):
    run, trace = empty_run(tmp_path / "new")
    trace.add(0.0, "dispatch", 0, 0, 0)
    trace.close()
    for name in ("x.html", "x.pdf", "x.png"):
        report.draw_figure_or_page(run, tmp_path / name)
        assert (tmp_path / name).is_file()
    read = Read((tmp_path / "x.html").read_text())
    assert "learned nothing" in read.words


def test_the_page_of_a_run_has_every_part(tmp_path):
    run = write_run(tmp_path / "run", "fedbuff")
    report.draw_figure_or_page(run, tmp_path / "run.html")
    read = Read((tmp_path / "run.html").read_text())
    parts = "caveats results curves staleness timeline contribution held seeds settings"
    assert set(parts.split()) <= set(read.ids)
    assert "made up: fedbuff, acc, seed 0" in read.words
    assert len(read.numbers["held"]["values"]) == 4
