"""Property tests: any file and any change is an experiment or one line with the error."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiment import messages
from offbeat.core.errors import ConfigError, OffbeatError
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import CHOICES, Experiment

names = sorted({name for registry in CHOICES.values() for name in registry})
fields = sorted(Experiment.__dataclass_fields__)
scalars = st.sampled_from(
    [*names, "*a", "&a x", "!!bool x", "!!timestamp x", "!!float ''", "!!int 'x'", "!!binary x", "!!set {a}",
    "!!omap [a]", "~", "~nouser",
     "0x" + "f" * 5000, "9" * 5000, "-" + "9" * 60, "1e999", ".nan", "-.inf", "yes", "2020-01-01", "2020-99-99",
     "1:59:59", "<<", "=",
     '"\\0"', '"\\ud800"', '"\\e[2J"', "{{", "[", "", "null", "1e-3", "0b1", "0o7", "@", "%", "acc=0.9", "5updates",
     "1d"]
)  # fmt: skip
scalars |= st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda v: f"[{', '.join(v)}]")
        | st.lists(
            st.tuples(st.sampled_from(["name", "<<", "k", "means", "path", "hidden", *fields]), inner), max_size=4
        ).map(lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}")
    ),
    max_leaves=8,
)
keys = st.sampled_from(
    [*fields, "training.lr", "strategy.k", "strategy.staleness.a", "delays.means", "model.hidden", "faults.x", "..", ""]
)
lines = st.tuples(st.sampled_from(fields), values).map(lambda pair: f"{pair[0]}: {pair[1]}\n")


@given(st.lists(lines, max_size=4).map("".join) | st.text(max_size=60))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_file_is_an_experiment_or_a_config_error(text):
    with suppress(ConfigError):
        assert isinstance(experiment_files.parse_experiment(text, "given.yaml"), Experiment)


@given(st.lists(st.tuples(keys, values).map("=".join), max_size=3))
@example(["faults=[{name: crash}]", "faults.0=1"])
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_change_is_applied_or_a_config_error(changes):
    with suppress(OffbeatError):
        assert isinstance(experiment_files.with_changes(Experiment(), changes), Experiment)


@pytest.mark.parametrize(("text", "message"), messages.YAML)
def test_yaml_errors_name_the_line(text, message):
    with messages.expect(f"^{message}", error=ConfigError) as refused:
        experiment_files.parse_experiment(text, "given.yaml")
    assert len(str(refused.value)) == len(message)


def test_nested_aliases_are_rejected_quickly():
    """Ten to the fifteenth values in 15 lines are rejected at the first alias, before anything is created."""
    nest = "name: &a0 [x, x]\n" + "".join(f"k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 16))
    began = time.process_time()
    with messages.expect("line 2: invalid YAML", error=ConfigError):
        experiment_files.parse_experiment(nest)
    assert time.process_time() - began < 1.0
