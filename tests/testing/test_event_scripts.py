"""Event scripts: their text, their meaning, and how they shrink."""

import pytest

from offbeat.core.draws import below
from offbeat.core.errors import ConfigError
from offbeat.core.protocol import ClientLost, ClientReady, UpdateArrived
from offbeat.core.strategies import REGISTRY
from offbeat.testing import PATTERNS, Step, check, format_script, parse_script, play, random_script, shrink, tiny_world
from testing import messages

FEDASYNC = REGISTRY["fedasync"]()


def heard(script: str, clients: int = 3) -> list[tuple[float, int]]:
    """(time, client) of every update."""
    engine = play(FEDASYNC, script, tiny_world(clients))
    return [(entry.event.now, entry.event.client) for entry in engine.log if isinstance(entry.event, UpdateArrived)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_text_of_a_script_reads_back(pattern: str) -> None:
    script = random_script(pattern, seed=5)
    assert parse_script(format_script(script)) == script


def test_comments_and_blank_lines_do_not_count() -> None:
    assert parse_script("\n# at first\nwait 1.5   # seconds\n\n  join\n") == (Step("wait", seconds=1.5), Step("join"))


@pytest.mark.parametrize("line", ["arive 0", "wait", "wait soon", "wait -1", "wait 0", "arrive one"])
def test_a_step_that_makes_no_sense_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        parse_script(line)


def test_an_unknown_step_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=messages.UNKNOWN_STEP):
        parse_script("arive 0")


def test_every_mood_adds_up_to_a_hundred() -> None:
    assert {pattern: sum(parts.values()) for pattern, parts in PATTERNS.items()} == dict.fromkeys(PATTERNS, 100)


def test_scripts_of_one_seed_are_the_same_and_of_two_are_not() -> None:
    assert random_script("losses", 1) == random_script("losses", 1)
    assert random_script("losses", 1) != random_script("losses", 2)


def test_an_arrival_is_the_ith_in_flight_counted_round() -> None:
    # tickets 0, 1, 2 belong to clients 0, 1, 2; after client 1 answered, its next ticket is the newest
    assert heard("arrive 1\nwait 2\narrive 1\nwait 1\narrive 5") == [(1.0, 1), (3.0, 2), (4.0, 2)]


def test_steps_between_waits_share_an_instant_and_keep_its_order() -> None:
    assert heard("wait 2\narrive 2\narrive 0") == [(2.0, 0), (2.0, 2)]


def test_within_an_instant_updates_come_before_losses_and_both_before_newcomers() -> None:
    engine = play(FEDASYNC, "wait 1\njoin\nlose 0\narrive 1", tiny_world(3))
    kinds = [(type(entry.event), entry.event.client) for entry in engine.log[3:]]
    assert kinds == [(UpdateArrived, 2), (ClientReady, 2), (ClientLost, 0), (ClientReady, 0), (ClientReady, 3)]


def test_steps_without_a_candidate_have_no_effect() -> None:
    # the first instant is at 1 s; then all three arrive, and there is no fourth
    assert heard("back 0\nleave 3\nwait 1\narrive 0\narrive 0\narrive 0\narrive 0") == [(2.0, 0), (2.0, 1), (2.0, 2)]


def test_a_client_that_is_gone_answers_no_more_until_it_is_back() -> None:
    assert heard("lose+leave 0\nwait 1\narrive 0\nwait 1\nback 0\nwait 1\narrive 0", clients=1) == [(4.0, 0)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", REGISTRY)
def test_any_part_of_a_script_is_again_a_script(pattern: str, name: str) -> None:
    script = random_script(pattern, seed=2)
    for n in range(12):
        part = tuple(step for i, step in enumerate(script) if below(2, n, "part", i))
        play(REGISTRY[name](), part)


def test_shrinking_keeps_only_the_steps_that_matter() -> None:
    script = random_script("losses", seed=3, length=40)
    small = shrink(script, lambda candidate: sum(step.kind == "back" for step in candidate) >= 2)
    assert format_script(small) == "back 0\nback 0"


def test_shrinking_keeps_steps_that_matter_together() -> None:
    def fails(script: tuple[Step, ...]) -> bool:
        kinds = [step.kind for step in script]
        return "join" in kinds and "leave" in kinds[kinds.index("join") :]

    small = shrink(random_script("newcomers", seed=1, length=60), fails)
    assert [step.kind for step in small] == ["join", "leave"]


def test_shrinking_makes_steps_plainer() -> None:
    script = parse_script("wait 8\nrefuse 5\nwait 2\nlose 3")
    assert format_script(shrink(script, lambda candidate: len(candidate) == 4)) == "wait 1\narrive 0\nwait 1\narrive 0"


def test_a_check_that_always_fails_shrinks_to_an_empty_script() -> None:
    assert shrink(random_script("calm", 0), lambda candidate: True) == ()


def test_shrinking_gives_up_in_time_with_the_best_so_far() -> None:
    script = random_script("calm", 0)
    assert shrink(script, lambda candidate: len(candidate) >= 5, tries=3) != ()


def test_checking_one_strategy_gives_one_finding_a_law() -> None:
    findings = check(FEDASYNC, scripts=2)
    assert all(finding.passed for finding in findings)
    assert str(findings[0]) == messages.PASSED_LAW
