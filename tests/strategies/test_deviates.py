"""A strategy's deviations are written once, in the header of its file; its page lists the same, rendered from there."""

import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from offbeat.core.about import deviations_of
from offbeat.core.strategies import REGISTRY

PAGES = Path(__file__).parents[2] / "docs" / "strategies"
COMMAND = "OFFBEAT_RENDER=1 pytest tests/strategies/test_deviates.py"


def page_of(name: str) -> Path:
    return PAGES / ("local.md" if name == "global" else f"{name}.md")


def listed(name: str) -> re.Match[str]:
    """The part of a page between its two marks."""
    found = re.search(
        rf"(?<=<!-- Deviates of {name}, )([^\n]*\n)(.*?)(?=<!-- end -->)", page_of(name).read_text(), re.S
    )
    assert found, f"{page_of(name).name} has no list of {name}'s deviations: put the two marks there, then {COMMAND}"
    return found


def rendered(name: str) -> str:
    lines = []
    for number, item in enumerate(deviations_of(REGISTRY[name]), 1):
        first, rest = f"{number}. ", " " * (len(str(number)) + 2)
        text = item.replace("<", "\\<")  # Markdown would take <d, d> for a tag
        lines += textwrap.wrap(
            text, 118, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", REGISTRY)
def test_a_page_lists_the_deviations_of_its_file(name):
    found = listed(name)
    if os.environ.get("OFFBEAT_RENDER") and found[2] != rendered(name):
        text = page_of(name).read_text()
        page_of(name).write_text(text[: found.start(2)] + rendered(name) + text[found.end(2) :])
        found = listed(name)
    assert found[2] == rendered(name), f"{page_of(name).name} is not what {name}'s header says: {COMMAND}"


@pytest.mark.parametrize("name", REGISTRY)
def test_deviations_are_numbered_from_one_and_say_something(name):
    header = sys.modules[REGISTRY[name].__module__].__doc__
    numbers = re.findall(r"^(?:Deviates:)? +(\d+)\. ", header, re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(deviations_of(REGISTRY[name])) + 1))
    assert all(deviations_of(REGISTRY[name]))
