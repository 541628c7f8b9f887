"""Tests of user code that is written FILE.py:Name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiment import messages
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment import build
from offbeat.experiment.spec import choices, experiment_files, user_code
from offbeat.experiment.spec.config import Experiment, strategy_name
from offbeat.experiment.spec.serialization import FileContext, experiment_from_values, to_values
from offbeat.scenario.data import DATASETS
from offbeat.scenario.delays import ConstantDelays

STRATEGY = '''
"""A strategy of one's own."""
from dataclasses import dataclass
from torch import Tensor
from offbeat.core.parts.selection import ServerState
from offbeat.core.parts.staleness import Polynomial, Staleness
from offbeat.core.protocol import ClientReady, Commit, Dispatch, UpdateArrived

@dataclass(frozen=True, kw_only=True)
class Mine:
    """Adds every update, damped."""
    rate: float = 0.5
    staleness: Staleness = Polynomial(a=0.5)

    def init(self, world):
        return ServerState.of(world)

    def on_event(self, state, event):
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, state.model)]
        if isinstance(event, UpdateArrived):
            s = self.rate * self.staleness(state.version - event.base_version)
            state.model = state.model + s * (event.local - event.base)
            state.version += 1
            return [Commit(state.model)]
        return []
'''
OTHERS = '''
import torch
from torch import nn
from dataclasses import dataclass

class Net(nn.Module):
    """Two layers."""
    def __init__(self, input_shape, num_outputs, hidden: int = 8, act=nn.ReLU, sizes=[1, 2]):
        super().__init__()
        assert isinstance(sizes, list)
        inputs = torch.Size(input_shape).numel()
        self.all = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), act(), nn.Linear(hidden, num_outputs))

    def forward(self, x):
        return self.all(x)

def linear(num_outputs: int, inputs: int = 64):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, num_outputs))

def sites(count=3, shift: float = 0.0):
    """Sites that name themselves."""
    made = {}
    for site in range(count):
        g = torch.Generator().manual_seed(site)
        x = torch.randn(20, 4, generator=g) + shift
        made[f"site-{site}"] = (x, (x.sum(1) > 0).long())
    return made

def smooth(outputs, labels, amount: float = 0.1):
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=amount)

class Weighted(nn.Module):
    def __init__(self, first: float = 2.0):
        super().__init__()
        self.inner = nn.CrossEntropyLoss(weight=torch.tensor([first, 1.0, 1.0]))

    def forward(self, outputs, labels):
        return self.inner(outputs, labels)

def halving(u, base=2.0):
    return base ** -u

@dataclass(frozen=True, kw_only=True)
class Halves:
    """The first half of the clients gets the first half of the examples, and so on."""
    def split(self, labels, clients, seed, groups=None):
        return list(torch.arange(len(labels)).tensor_split(clients))

def broken():
    raise KeyError("x")

NUMBER = 3
'''


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine.py").write_text(STRATEGY)
    Path("others.py").write_text(OTHERS)


def made(**settings: Any) -> Experiment:
    return experiment_from_values(settings)


# ---------------------------------------------------------------- from a name to a class


def test_a_user_strategy_gets_its_settings() -> None:
    strategy = made(strategy={"name": "mine.py:Mine", "rate": 0.25}).strategy
    assert (type(strategy).__name__, strategy.rate) == ("Mine", 0.25)  # type: ignore[attr-defined]
    assert type(strategy) is choices.find_choice("strategy", "mine.py:Mine")  # loaded once, however it is written
    assert type(strategy) is choices.find_choice("strategy", str(Path("mine.py").resolve()) + ":Mine")
    assert type(strategy) is choices.find_choice("strategy", "../mine.py:Mine", Path("sub"))


def test_built_in_names_are_unaffected() -> None:
    assert choices.find_choice("strategy", "fedbuff") is FedBuff
    assert choices.find_choice("data", "digits") is DATASETS["digits"]
    assert choices.name_of("delays", ConstantDelays(mean=1.0)) == "constant"


def test_it_is_stored_by_path_and_labelled_by_name() -> None:
    experiment = made(strategy={"name": "mine.py:Mine", "rate": 0.25, "staleness": {"name": "hinge", "a": 1, "b": 2}})
    plain = to_values(experiment)
    assert plain["strategy"]["name"] == f"{Path('mine.py').resolve()}:Mine"
    assert strategy_name(experiment) == "Mine"
    assert experiment_from_values(plain) == experiment
    assert hash(experiment_from_values(plain).strategy) == hash(experiment.strategy)
    assert experiment != made(strategy="mine.py:Mine")
    assert repr(made(strategy="mine.py:Mine").strategy) == "Mine(rate=0.5, staleness=Polynomial(a=0.5))"


def test_paths_start_at_the_file_and_changes_at_the_working_folder() -> None:
    Path("sub").mkdir()
    Path("sub/near.py").write_text(STRATEGY)
    Path("sub/it.yaml").write_text("strategy: {name: near.py:Mine, rate: 0.1}\n")
    experiment = experiment_files.read_experiment(Path("sub/it.yaml"))
    assert to_values(experiment)["strategy"]["name"] == f"{Path('sub/near.py').resolve()}:Mine"
    changed = experiment_files.with_changes(
        experiment, ["strategy=mine.py:Mine", "strategy.rate=0.3", "strategy.staleness.a=2"]
    )
    assert to_values(changed)["strategy"] == {
        "name": f"{Path('mine.py').resolve()}:Mine", "rate": 0.3, "staleness": {"name": "polynomial", "a": 2.0},
    }  # fmt: skip
    assert experiment_files.with_changes(experiment, ["strategy.rate=0.3"]).strategy.rate == 0.3  # type: ignore[attr-defined]


def test_user_code_can_be_read_back_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = made(strategy="mine.py:Mine", model="others.py:Net", data={"name": "others.py:sites", "count": 2})
    Path("deep/er").mkdir(parents=True)
    experiment_files.write_experiment(Path("deep/er/experiment.yaml"), experiment)
    monkeypatch.chdir("deep")
    assert experiment_files.read_experiment(Path("er/experiment.yaml")) == experiment


def test_equal_file_names_do_not_collide() -> None:
    Path("sub").mkdir()
    Path("sub/mine.py").write_text(STRATEGY.replace("0.5\n", "0.125\n", 1))
    first, second = (choices.default_choice("strategy", f"{folder}mine.py:Mine") for folder in ("", "sub/"))
    assert (first.rate, second.rate) == (0.5, 0.125)
    assert first != second


def test_an_edited_file_is_loaded_again() -> None:
    before = choices.default_choice("strategy", "mine.py:Mine")
    Path("mine.py").write_text(STRATEGY.replace("0.5\n", "0.7\n", 1))  # as long as before, within the same second
    assert (before.rate, choices.default_choice("strategy", "mine.py:Mine").rate) == (0.5, 0.7)


def test_an_edited_indirect_neighbour_is_loaded_again() -> None:
    Path("stable.py").write_text(
        "from nearby import rate\n" + STRATEGY.replace("rate: float = 0.5", "rate: float = rate")
    )
    Path("nearby.py").write_text("from farther import rate\n")
    Path("farther.py").write_text("rate = 0.5\n")
    assert choices.default_choice("strategy", "stable.py:Mine").rate == 0.5
    Path("farther.py").write_text("rate = 0.125\n")  # of another length: Python's own cache goes by seconds
    assert choices.default_choice("strategy", "stable.py:Mine").rate == 0.125


def test_a_file_may_import_its_neighbours_and_be_called_like_a_library() -> None:
    Path("rates_of_mine.py").write_text("RATE = 0.9\n")
    Path("random.py").write_text("from rates_of_mine import RATE\n" + STRATEGY.replace("0.5\n", "RATE\n", 1))
    assert choices.default_choice("strategy", "random.py:Mine").rate == 0.9
    import random

    assert hasattr(random, "Random")  # still Python's own


def test_equal_neighbour_names_from_two_folders_are_rejected() -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "twin_of_mine.py").write_text(f"RATE = 0.{len(folder)}  # {folder}\n")
        Path(folder, "it.py").write_text("import twin_of_mine\n" + STRATEGY)
    choices.find_choice("strategy", "a/it.py:Mine")
    with messages.expect(messages.TWO_NEIGHBOURS, error=ConfigError):
        choices.find_choice("strategy", "b/it.py:Mine")


# ---------------------------------------------------------------- what else there can be


def test_module_classes_and_functions_are_models_whose_settings_are_their_arguments() -> None:
    cls = choices.find_choice("model", "others.py:Net")
    net, again, other = (choices.make_choice(cls, hidden=5).build((1, 8, 8), 10, seed) for seed in (0, 0, 1))
    assert [tuple(p.shape) for p in net.parameters()] == [(5, 64), (5,), (10, 5), (10,)]
    weights = [next(iter(module.parameters())) for module in (net, again, other)]
    assert torch.equal(weights[0], weights[1])  # they depend on the seed only
    assert not torch.equal(weights[0], weights[2])
    # act has a default that no file can hold, so it is not a setting
    settings = {"name": f"{Path('others.py').resolve()}:Net", "hidden": 8, "sizes": [1, 2]}
    assert to_values(made(model="others.py:Net").model, "model") == settings
    linear = made(model="others.py:linear").model.build((1, 8, 8), 10, 0)
    assert [tuple(p.shape) for p in linear.parameters()] == [(10, 64), (10,)]


def test_a_function_that_returns_sites_is_data_with_owners() -> None:
    data = made(data={"name": "others.py:sites", "count": 2}).data.load()  # type: ignore[union-attr]
    assert data.group_names == ("site-0", "site-1")
    # every fifth of 20 examples of each is for the test
    assert (len(data.x_train), len(data.x_test), data.num_classes) == (32, 8, 2)
    assert data.name == "others:sites"


def test_functions_are_losses_and_stalenesses() -> None:
    from offbeat.training.tasks import Classification

    loss = made(loss={"name": "others.py:smooth", "amount": 0.5}).loss
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    wanted = torch.nn.functional.cross_entropy(outputs, labels, label_smoothing=0.5)
    assert torch.equal(loss.of(Classification(), 3).loss(outputs, labels), wanted)
    weighted = made(loss={"name": "others.py:Weighted", "first": 3.0}).loss.of(Classification(), 3)
    wanted = torch.nn.functional.cross_entropy(outputs, labels, weight=torch.tensor([3.0, 1.0, 1.0]))
    assert torch.equal(weighted.loss(outputs, labels), wanted)
    plain = {"strategy": {"name": "fedbuff", "staleness": {"name": "others.py:halving", "base": 4}}}
    assert experiment_from_values(plain).strategy.staleness(2) == 1 / 16  # type: ignore[attr-defined]
    assert strategy_name(experiment_from_values(plain, FileContext(runs_code=False))) == "fedbuff"


@pytest.mark.ray
def test_user_code_is_pickled_by_value_for_ray() -> None:
    pytest.importorskip("ray")
    from offbeat.workers.ray_codec import pack_trainer, unpack_trainer

    experiment = made(model={"name": "others.py:Net", "hidden": 3}, loss="others.py:smooth", clients=2)
    trainer = build.setup(experiment).trainer
    packed = pack_trainer(trainer, [])
    for name in [name for name in sys.modules if name.startswith("offbeat_own_others")]:
        del sys.modules[name]  # as in another process
    again = unpack_trainer(*packed)
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(again.task.loss(outputs, labels), trainer.task.loss(outputs, labels))


def test_other_choices_are_dataclasses_with_required_methods() -> None:
    parts = made(partition="others.py:Halves").partition.split(torch.zeros(4), 2, 0)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("value", "train", "test"),
    [
        ("(x, y)", 8, 2),
        ("(x.numpy(), y.numpy())", 8, 2),
        ("(x.tolist(), y.tolist())", 8, 2),
        ("(x, y, x[:3], y[:3])", 10, 3),
        ("torch.utils.data.TensorDataset(x, y)", 8, 2),
        ("(torch.utils.data.TensorDataset(x, y), torch.utils.data.TensorDataset(x[:4], y[:4]))", 10, 4),
        ("[(x, y), (x, y)]", 16, 4),
        ("{'a': (x, y, x[:1], y[:1]), 'b': (x, y, x[:2], y[:2])}", 20, 3),
        ("{'a': {'train': (x, y), 'test': (x[:1], y[:1])}}", 10, 1),
        ("{'a': {'x': x, 'y': y}}", 8, 2),
        ("from_dataset(torch.utils.data.TensorDataset(x, y), num_classes=7)", 8, 2),
    ],
)
def test_data_functions_may_return_several_forms(value: str, train: int, test: int) -> None:
    start = "import torch\nfrom offbeat.scenario.data import from_dataset\n"
    body = f"def load():\n    x, y = torch.randn(10, 3), torch.zeros(10, dtype=torch.int64)\n    return {value}\n"
    Path("data_of_mine.py").write_text(start + body)
    data = choices.default_choice("data", "data_of_mine.py:load").load()
    assert (len(data.x_train), len(data.x_test)) == (train, test)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("setting", "name", "words"), messages.USER_CODE)
def test_invalid_user_code_is_one_line(setting: str, name: str, words: str) -> None:
    with messages.expect(words, error=ConfigError):
        choices.find_choice(setting, name)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("syntax", "x = (\n"),
        ("error", "x = 1\ny = x / 0\n"),
        ("import", "import nothing_of_this_name\n"),
        ("exit", "import sys\nsys.exit(0)\n"),
        ("no dataclass", STRATEGY.replace("@dataclass(frozen=True, kw_only=True)", "")),
        ("not frozen", STRATEGY.replace("frozen=True, ", "")),
        ("invalid default", STRATEGY + "    def __post_init__(self): raise ValueError('no')\n"),
        ("required setting", STRATEGY.replace("float = 0.5\n", "float\n")),
    ],
)
def test_a_broken_file_is_one_line(case: str, text: str) -> None:
    Path("mine.py").write_text(text)
    for _ in range(2):  # a file that failed is executed again
        with messages.expect(messages.BROKEN_FILES[case], error=ConfigError):
            made(strategy="mine.py:Mine")


@pytest.mark.parametrize(("settings", "words"), messages.USER_SETTINGS)
def test_settings_of_user_code_are_validated(settings: dict[str, Any], words: str) -> None:
    with messages.expect(words, error=ConfigError):
        made(**settings)


def test_an_argument_without_annotation_accepts_a_list() -> None:
    Path("loose.py").write_text("def sites(sizes):\n    return [1.0]\n")
    chosen = made(data={"name": "loose.py:sites", "sizes": [1, [2, 3]]}).data
    assert hash(chosen) == hash(made(data={"name": "loose.py:sites", "sizes": [1, [2, 3]]}).data)
    assert to_values(chosen, "data")["sizes"] == [1, [2, 3]]


def test_an_error_of_user_code_names_its_line() -> None:
    with pytest.raises(ConfigError, match=messages.USER_ERROR):
        choices.default_choice("data", "others.py:broken").load()
    with pytest.raises(ConfigError, match=messages.USER_ERROR):
        choices.default_choice("model", "others.py:broken").build((1,), 2, 0)
    Path("others.py").write_text("def load():\n    return 3\ndef each(outputs, labels):\n    return outputs[:, 0]\n")
    with messages.expect("^others.py:load gave a int: (x, y), (x_train", error=DataError):
        choices.default_choice("data", "others.py:load").load()
    with messages.expect("others.py:each returned shape (2,): a loss is one number", error=DataError):
        build.setup(made(model="linear", loss="others.py:each"))


@pytest.mark.parametrize(
    "name", [".py:A", "\0.py:A", "a.py:A:b", "~nobody_here/x.py:A", "x" * 5000 + ".py:A", "a.py:", "a.py: A",
             "folder.py:A", "bytes.py:A", "nul.py:A", "loop.py:A", "mine.py:__builtins__", "mine.py:dataclass"]
)  # fmt: skip
def test_any_reference_is_valid_or_one_line(name: str) -> None:
    Path("folder.py").mkdir()
    Path("bytes.py").write_bytes(b"A = '\xff'\n")
    Path("nul.py").write_bytes(b"A = 1\0\n")
    Path("loop.py").symlink_to("loop.py")
    for runs_code in (True, False):
        try:
            experiment_from_values({"strategy": name}, FileContext(runs_code=runs_code))
        except ConfigError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert not runs_code


# ---------------------------------------------------------------- looking without running


def test_reading_an_experiment_executes_no_user_code() -> None:
    experiment = made(strategy={"name": "mine.py:Mine", "rate": 0.25}, model="others.py:Net", data="others.py:sites")
    plain = to_values(experiment)
    Path("mine.py").write_text("raise SystemExit('it was run')\n")
    Path("others.py").unlink()
    looked = experiment_from_values(plain, FileContext(runs_code=False))
    assert to_values(looked) == plain
    assert strategy_name(looked) == "Mine"
    assert looked == experiment_from_values(plain, FileContext(runs_code=False))
    assert hash(looked.strategy) == hash(experiment_from_values(plain, FileContext(runs_code=False)).strategy)


@pytest.mark.parametrize("name", ["evil.py", "evil.py:", "evil.py:no name"])
def test_a_reference_without_name_does_not_execute_the_file(name: str) -> None:
    Path("evil.py").write_text("from pathlib import Path\nPath('it was run').touch()\n")
    with messages.expect("names a file but no object in it", error=ConfigError):
        experiment_from_values({"strategy": name}, FileContext(runs_code=False))
    assert not Path("it was run").exists()


# ---------------------------------------------------------------- what belongs to it


def test_files_with_imports_lists_neighbours() -> None:
    Path("near.py").write_text("import far.deep\n")
    Path("far").mkdir()
    Path("far/__init__.py").touch()
    Path("unused.py").touch()
    Path("far/deep.py").write_text("from . import deeper\nfrom .deepest import x\nfrom ..beyond import y\n")
    Path("far/deeper.py").touch()
    Path("far/deepest.py").touch()
    Path("it.py").write_text("import torch\nfrom near import x\ndef later():\n    import math, near\n")
    found = [path.relative_to(Path.cwd()).as_posix() for path in user_code.files_with_imports(Path("it.py").resolve())]
    assert found == [
        "it.py", "far/__init__.py", "far/deep.py", "far/deeper.py", "far/deepest.py", "near.py",
    ]  # fmt: skip
