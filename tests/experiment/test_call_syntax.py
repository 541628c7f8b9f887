"""Tests of choices with settings in one text."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.experiment.spec.call_syntax import ChoiceCall, parse_call, split_calls

NAMES = st.from_regex(r"[a-z][a-z0-9_.:/-]{0,12}", fullmatch=True)
KEYS = st.from_regex(r"[a-z][a-z_]{0,5}(\.[a-z]{1,4})?", fullmatch=True)
NUMBERS = st.one_of(st.integers().map(str), st.floats().map(str), st.sampled_from(["1e-3", "null", "true", "mix"]))
QUOTED = st.text("ab ,()[]{}='", max_size=8).map(lambda text: "'" + text.replace("'", "''") + "'")
DOUBLE = st.text('ab ,()[]{}=\\"', max_size=8).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)
LISTS = st.lists(st.one_of(NUMBERS, QUOTED, DOUBLE), min_size=1, max_size=3).map(
    lambda values: f"[{', '.join(values)}]"
)
MAPPINGS = st.dictionaries(KEYS, st.one_of(NUMBERS, LISTS), min_size=1, max_size=2).map(
    lambda body: "{" + ", ".join(f"{key}: {value}" for key, value in body.items()) + "}"
)
TEXTS = st.one_of(NUMBERS, QUOTED, DOUBLE, LISTS, MAPPINGS)


def words(values: st.SearchStrategy[str | ChoiceCall], least: int = 0) -> st.SearchStrategy[ChoiceCall]:
    pairs = st.dictionaries(KEYS, values, min_size=least, max_size=3).map(lambda body: tuple(body.items()))
    return st.builds(ChoiceCall, NAMES, pairs)


# a nested choice without settings is a name, which is a text
WORDS = words(st.recursive(TEXTS, lambda inner: words(inner, least=1), max_leaves=4))


@given(WORDS)
def test_a_formatted_call_parses_back(word: ChoiceCall) -> None:
    assert parse_call(str(word)) == word


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_a_joined_list_splits_into_its_calls(given_words: list[ChoiceCall]) -> None:
    assert list(map(parse_call, split_calls(",".join(map(str, given_words))))) == given_words
    assert list(map(parse_call, split_calls(" , ".join(map(str, given_words))))) == given_words


@given(st.text(max_size=20))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(ConfigError):
        assert parse_call(str(parse_call(text))) == parse_call(text)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("fedbuff", ["strategy=fedbuff"]),
        ("fedbuff()", ["strategy=fedbuff"]),
        (" fedbuff ( k = 2 , lr = 0.5 ) ", ["strategy=fedbuff", "strategy.k=2", "strategy.lr=0.5"]),
        ("fedasync(staleness.a=1)", ["strategy=fedasync", "strategy.staleness.a=1"]),
        (
            "fedasync(staleness=polynomial(a=1),alpha=0.4)",
            ["strategy=fedasync", "strategy.staleness=polynomial", "strategy.staleness.a=1", "strategy.alpha=0.4"],
        ),
        ("mine.py:CosBuff(k=3)", ["strategy=mine.py:CosBuff", "strategy.k=3"]),
        ("it's (mine)/o'b.py:X(k=3)", ["strategy=it's (mine)/o'b.py:X", "strategy.k=3"]),
        ("a(work={steps: 3, lr: 0.1})", ["strategy=a", "strategy.work={steps: 3, lr: 0.1}"]),
        ("a(b='x), (',c=[1,2])", ["strategy=a", "strategy.b='x), ('", "strategy.c=[1,2]"]),
    ],
)
def test_a_call_equals_changes_of_set(text: str, changes: list[str]) -> None:
    assert list(parse_call(text).changes("strategy")) == changes


@pytest.mark.parametrize(("text", "words"), messages.CALLS)
def test_an_invalid_call_is_one_line(text: str, words: str) -> None:
    with messages.expect(words, error=ConfigError):
        parse_call(text)
