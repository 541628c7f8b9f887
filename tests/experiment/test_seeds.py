"""Tests of separate seeds for parts of the random draws."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from experiment import messages
from offbeat.core.draws import batch_keys
from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import flatten
from offbeat.experiment import build, data_assignment
from offbeat.experiment.run import execution
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment, SeedPurpose, Seeds
from offbeat.scenario.data import load

ONE = experiment_files.parse_experiment("{clients: 4, model: linear, until: 30s}")


def drawn(experiment: Experiment) -> dict[str, object]:
    """What each part amounts to."""
    made = build.setup(experiment)
    job = Job(0, 1, 0, made.world.model, 0, LocalWork(), 20, {}, made.world.seed)
    return {
        "partition": [rows.tolist() for rows in data_assignment.training_rows(experiment, load(experiment.data))],
        "delays": [made.simulated_world.time_job(client, 0, LocalWork(), 20, 0.0).duration for client in range(4)],
        "model": flatten(made.module).tolist(),
        "batches": int(batch_keys([(job.seed, job.client, job.index)])[0]),
    }


@pytest.mark.parametrize("part", get_args(SeedPurpose))
def test_a_separate_seed_changes_only_its_part(part: SeedPurpose) -> None:
    before, now = drawn(ONE), drawn(replace(ONE, seeds=Seeds(**{part: 7})))
    assert [key for key in before if before[key] != now[key]] == [part]


@pytest.mark.parametrize("part", get_args(SeedPurpose))
def test_a_fixed_seed_keeps_its_part(part: SeedPurpose) -> None:
    before, now = drawn(ONE), drawn(replace(ONE, seed=7, seeds=Seeds(**{part: 0})))
    assert [key for key in before if before[key] == now[key]] == [part]


def test_one_seed_applies_to_all_parts() -> None:
    assert drawn(replace(ONE, seed=7)) == drawn(replace(ONE, seeds=Seeds(partition=7, delays=7, model=7, batches=7)))


def test_separate_seeds_in_files_and_changes() -> None:
    changed = experiment_files.with_changes(ONE, ["seeds.partition=3"])
    assert changed.seeds == Seeds(partition=3)
    assert experiment_files.parse_experiment(experiment_files.to_yaml(changed)) == changed
    assert experiment_files.parse_experiment("seeds: {delays: 2, model: 0}").seeds == Seeds(delays=2, model=0)
    for text, words in (("partition: -1", messages.NEGATIVE_SEED), ("batch: 1", messages.UNKNOWN_SEED)):
        with messages.expect(words, error=ConfigError):
            experiment_files.parse_experiment(f"seeds: {{{text}}}")


def test_a_run_of_before_there_were_several_is_the_same_run(tmp_path) -> None:
    made = execution.create_run(tmp_path / "r", ONE)
    text = made.experiment_file.read_text()
    assert text.count("seeds:") == 1
    made.experiment_file.write_text("".join(line for line in text.splitlines(keepends=True) if "seeds:" not in line))
    assert made.experiment() == ONE
