"""Tables of any width: what is a number is never cut and never broken, whatever the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.cli import text_table

README = [
    ["strategy", "final acc", "slowest ¼", "time to acc=0.9", "speed-up", "staleness", "moved", "idle", "updates"],
    ["fedavg", "0.946 ± 0.005", "0.942", "> 913 s (2 of 3)", "1.00×", "0.0", "13.8 MB", "39%", "351"],
    ["fedcompass", "0.947 ± 0.006", "0.930", "640 s", "1.22×", "1.4", "58.1 MB", "13%", "1503"],
]
WIDTHS = range(40, 201)

names = st.text("abcdefgh_()=,.0123456789", min_size=1, max_size=24)
headings = st.lists(st.text("abcdefgh¼=.0", min_size=1, max_size=12), min_size=1, max_size=4).map(" ".join)
cells = st.one_of(
    st.integers(0, 10**12).map(str),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.3f} ± {x / 7:.3f}"),
    st.floats(0, 1e9).map(lambda x: f"> {x:.0f} s (2 of 3)"),
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    wide, high = draw(st.integers(2, 12)), draw(st.integers(1, 5))
    first = [draw(headings) for _ in range(wide)]
    return [first, *([draw(names), *(draw(cells) for _ in range(wide - 1))] for _ in range(high))]


@settings(max_examples=150, deadline=None)
@given(rows=tables(), width=st.integers(40, 200))
def test_every_value_is_found_whole_and_no_line_is_too_long(rows, width):
    lines = text_table.format_table(rows, width)
    for row in rows[1:]:
        for cell in row:
            assert any(cell in line for line in lines), cell
    # a heading, or a number below it, may stand alone on a line, indented; these here are shorter than any width
    assert max(map(len, lines)) <= max(width, 2 + max(map(len, rows[0])))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_the_readme_is_whole_at_every_width(width):
    lines = text_table.format_table(README, width)
    assert max(map(len, lines)) <= width
    for row in README[1:]:
        # 351 updates do not read as 3: a value ends where the line or a blank does
        for cell in row:
            assert any(f" {cell} " in f" {line} " for line in lines), (cell, lines)


def test_columns_that_do_not_fit_go_below_with_the_names_repeated():
    # 10 + 2 + 13 + 2 + 9 + 2 + 16 = 54 with the headings as they are; speed-up would make it 64
    assert text_table.format_table(README, 60) == [
        "strategy        final acc  slowest ¼   time to acc=0.9",
        "fedavg      0.946 ± 0.005      0.942  > 913 s (2 of 3)",
        "fedcompass  0.947 ± 0.006      0.930             640 s",
        "",
        "strategy    speed-up  staleness    moved  idle  updates",
        "fedavg         1.00×        0.0  13.8 MB   39%      351",
        "fedcompass     1.22×        1.4  58.1 MB   13%     1503",
    ]


def test_headings_are_folded_and_blanks_saved_before_a_table_is_split():
    rows = [["strategy", "time to acc=0.9", "updates"], ["fedavg", "780 s", "351"]]
    # 8 + 2 + 15 + 2 + 7 = 34 as it is; 'acc=0.9' is the longest word: 8 + 2 + 7 + 2 + 7 = 26; with single blanks 24
    assert text_table.format_table(rows, 34) == [
        "strategy  time to acc=0.9  updates",
        "fedavg              780 s      351",
    ]
    folded = ["          time to", "strategy  acc=0.9  updates", "fedavg      780 s      351"]
    assert text_table.format_table(rows, 26) == folded
    assert text_table.format_table(rows, 24) == [
        "         time to",
        "strategy acc=0.9 updates",
        "fedavg     780 s     351",
    ]
    assert text_table.format_table(rows, 23) == [
        "          time to",
        "strategy  acc=0.9",
        "fedavg      780 s",
        "",
        "strategy  updates",
        "fedavg        351",
    ]


def test_a_rule_stands_below_the_headings_of_each_part():
    lines = text_table.format_table([["a", "b"], ["x", "1"]], 40, rule=True)
    assert lines == ["a  b", "────", "x  1"]


def test_where_even_a_name_and_a_number_do_not_fit_each_method_is_a_list():
    rows = [["strategy", "final acc", "updates"], ["a_name_of_23_characters", "0.946 ± 0.005", "351"]]
    assert text_table.format_table(rows, 30) == [
        "a_name_of_23_characters",
        "  final acc  0.946 ± 0.005",
        "  updates    351",
    ]


def test_of_one_run_a_value_that_does_not_fit_stands_below_its_name():
    rows = [["updates", "351"], ["acc by client: low / mean / high", "0.9000 / 0.9500 / 1.0000"]]
    assert text_table.format_pairs(rows, 80) == [
        "updates                           351",
        "acc by client: low / mean / high  0.9000 / 0.9500 / 1.0000",
    ]
    assert text_table.format_pairs(rows, 40) == [
        "updates                           351",
        "acc by client: low / mean / high",
        "  0.9000 / 0.9500 / 1.0000",
    ]


def test_prose_is_folded_at_blanks_beside_its_name_or_below():
    rows = [["name", "kind", "what it is"], ["thing", "small", "a sentence that is rather longer than it need be"]]
    assert text_table.format_prose(rows, 40) == [
        "name   kind   what it is",
        "thing  small  a sentence that is rather",
        "              longer than it need be",
    ]
    # 5 + 2 + 5 + 2 leave 16 of 30 for the sentence, less than the 20 it takes to be read
    assert text_table.format_prose(rows, 30) == [
        "thing",
        "  kind        small",
        "  what it is",
        "    a sentence that is rather",
        "    longer than it need be",
    ]


def test_what_is_wide_on_a_terminal_counts_twice():
    lines = text_table.format_table([["strategy", "n"], ["東京", "1"], ["bern", "2"]], 40)
    assert lines == ["strategy  n", "東京      1", "bern      2"]
