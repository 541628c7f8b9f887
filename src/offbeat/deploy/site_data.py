"""The model and the examples of a site, from its own Python file or from a part of the experiment's data.

`offbeat new site` writes such a file. It defines:

    model() -> nn.Module                        the same layers, with the same names, as at all sites
    load_data() -> (x, y)                       or {"train": (x, y), "test": (x, y)}: tensors with one label per example
    loss(outputs, y) -> a scalar                optional; by default the experiment's loss for the type of the labels
    num_examples() -> int                       optional, for growing data: if the number grows, data is loaded again

Errors in the file are reported in one line with the place.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategy_contract import contract_of
from offbeat.core.threads import one_thread
from offbeat.core.vector import Layout, flatten
from offbeat.experiment import ON_TEST, setup
from offbeat.experiment.spec import Experiment, is_pooled
from offbeat.training import (
    Classification,
    ClientData,
    Evaluator,
    Loss,
    Pair,
    Probe,
    Survey,
    Task,
    Trainer,
    as_task,
    check_model,
    make_probe,
    validate_examples,
)

T = TypeVar("T")


class LocalTraining(Protocol):
    """The model, data and trainer of a site in one experiment."""

    @property
    def layout(self) -> Layout: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def num_examples(self, index: int, seconds: float) -> int:
        """Return the number of training examples before the n-th job, `seconds` after the first greeting."""
        ...

    def trainer(self, client: int) -> Trainer:
        """Return a trainer on the current examples for the client number that the server uses."""
        ...

    def scores(self, model: Tensor) -> tuple[int, dict[str, float]]:
        """Return the number of the site's test examples and the scores on them; 0 and none without such examples."""
        ...


class SiteSource(Protocol):
    """A source of a site's model and data."""

    def load(self, experiment: Experiment) -> LocalTraining:
        """Load model and data for this experiment; raise an error with one line if they cannot be used."""
        ...


@dataclass(frozen=True)
class PartitionSource:
    """The experiment's data, of which this site holds the part of client `number`."""

    number: int

    def load(self, experiment: Experiment) -> LocalTraining:
        """Load model and data for this experiment; raise an error with one line if they cannot be used."""
        if is_pooled(experiment.strategy):
            raise ConfigError("this strategy trains on pooled data: a site cannot take part")
        if not 0 <= self.number < experiment.clients:
            raise ConfigError(
                f"partition {self.number}: the experiment's data is divided among {experiment.clients} clients, "
                f"0 to {experiment.clients - 1}"
            )
        return PartitionTraining(self.number, experiment)


class PartitionTraining:
    """Train on a part of the experiment's data with the bit-identical results of a simulation."""

    def __init__(self, number: int, experiment: Experiment) -> None:
        # a survey finds the test examples of each client
        self._setup = setup(replace(experiment, survey=Survey(clients=1, examples=1)))
        self._number, self._experiment = number, experiment
        data = self._setup.trainer.data.index
        (self._x, self._y), self._rows = data.pair, data.rows_of(number)
        self._trainer: tuple[int, Trainer] | None = None

    @property
    def layout(self) -> Layout:
        return self._setup.layout

    @property
    def dtype(self) -> torch.dtype:
        return self._setup.world.model.dtype

    def num_examples(self, index: int, seconds: float) -> int:
        """Return the number of training examples before the n-th job, `seconds` after the first greeting."""
        experiment = self._experiment
        return experiment.streaming.arrived(experiment.seed_of("delays"), self._number, len(self._rows), index, seconds)

    def trainer(self, client: int) -> Trainer:
        """Return a trainer on the current examples for the client number that the server uses."""
        if self._trainer is None or self._trainer[0] != client:
            data, template = ClientData.shared(self._x, self._y, {client: self._rows}), self._setup.trainer
            self._trainer = client, Trainer(self._setup.module, data, template.training, template.task, template.probe)
        return self._trainer[1]

    def scores(self, model: Tensor) -> tuple[int, dict[str, float]]:
        """Return the number of the site's test examples and the scores on them; 0 and none without such examples."""
        surveyor = self._setup.surveyor
        if surveyor is None or surveyor.facts["surveyed"] != ON_TEST:
            return 0, {}
        examples = surveyor.data.size(self._number)
        pair = surveyor.data.take(self._number, torch.arange(examples))
        evaluator = self._setup.evaluator
        return examples, evaluator.values(evaluator.rows(model, *pair))


TRIAL_CLIENT = 0  # client number during a check, when no server has assigned one


class SiteCodeError(DataError):
    """The site's own code raised an error; only its type and place are sent, since the message may contain data."""

    def __init__(self, where: str, error: BaseException) -> None:
        message = error.msg if isinstance(error, SyntaxError) else error
        super().__init__(f"{where}: {type(error).__name__}: {' '.join(str(message).split())}")
        self.outward = f"{where}: {type(error).__name__} (the message is in the log of the site)"


@dataclass(frozen=True)
class SiteFile:
    """A site's own Python file as a source of model and data."""

    path: Path

    @one_thread()
    def load(self, experiment: Experiment) -> SiteFileTraining:
        """Load model and data for this experiment; raise an error with one line if they cannot be used."""
        return SiteFileTraining(LoadedSiteFile(self.path), experiment)


class LoadedSiteFile:
    """A site's file that was run once; its functions are called when they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.suffix != ".py" or not path.is_file():
            raise ConfigError(f"{path} is not a Python file: 'offbeat new site NAME' writes one")
        name = f"offbeat_site_{path.stem}"  # a unique name: a file may be called random.py
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        loader = spec.loader
        self._module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self._module  # needed to find rules that the file defines
        sys.path.append(str(path.absolute().parent))  # last, so that neighbours of the file do not hide libraries
        self._call_site_code(partial(loader.exec_module, self._module))
        for needed in ("model", "load_data"):
            if not callable(getattr(self._module, needed, None)):
                raise ConfigError(
                    f"{path} has no function {needed}(); see the file that 'offbeat new site NAME' writes"
                )

    def model(self) -> nn.Module:
        """Return the module that the file's model() makes."""
        module = self._call_site_code(self._module.model)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{self._path}: model() returned {type(module).__name__}, expected nn.Module")
        return module

    def loss(self) -> Loss | None:
        """Return the loss that the file defines, if any."""
        loss = getattr(self._module, "loss", None)
        if loss is not None and not callable(loss):
            raise ConfigError(
                f"{self._path}: loss is of type {type(loss).__name__}, expected a function (outputs, y) -> scalar"
            )
        return loss

    def data(self) -> tuple[Pair, Pair | None]:
        """Load the training examples, and the test examples if there are any."""
        data = self._call_site_code(self._module.load_data)
        if isinstance(data, Mapping):
            if "train" not in data or not data.keys() <= {"train", "test"}:
                named = ", ".join(map(str, data))
                raise DataError(f"{self._path}: load_data() returned {named or 'an empty dict'}; 'train' is required")
            test = data.get("test")
            return self._validate_pair(data["train"], "train"), None if test is None else self._validate_pair(
                test, "test"
            )
        return self._validate_pair(data, "load_data()"), None

    def current_examples(self) -> int | None:
        """Return the current number of examples without loading them, or None if the file cannot tell."""
        ask = getattr(self._module, "num_examples", None)
        if not callable(ask):
            return None
        count = self._call_site_code(ask)
        if type(count) is not int or count < 1:
            raise DataError(f"{self._path}: num_examples() returned {count!r}, expected a whole number of at least 1")
        return count

    def _validate_pair(self, pair: object, what: str) -> Pair:
        """Return inputs and labels as tensors that training accepts."""
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DataError(f"{self._path}: {what} is of type {type(pair).__name__}, expected (inputs, labels)")
        for tensor in pair:
            if not isinstance(tensor, Tensor):
                raise DataError(
                    f"{self._path}: {what} contains {type(tensor).__name__}; convert it with torch.as_tensor"
                )
        return validate_examples(pair[0], pair[1], where=f"{self._path}: {what}: ")

    def _call_site_code(self, call: Callable[[], T]) -> T:
        """Call a function of the file; an error in it becomes a SiteCodeError."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            line = _line_in(error, str(self._path.absolute()))
            where = f"{self._path}:{line}" if line else str(self._path)
            raise SiteCodeError(where, error) from None


def _line_in(error: BaseException, here: str) -> int | None:
    """Return the line of a file in which an error occurred."""
    if isinstance(error, SyntaxError) and error.filename == here:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
    return lines[-1] if lines else None


class SiteFileTraining:
    """Train a site's own model and data in the server's experiment."""

    def __init__(self, opened: LoadedSiteFile, experiment: Experiment) -> None:
        self._opened, self._experiment = opened, experiment
        self._module = opened.model()
        self._pair, test = opened.data()
        self._evaluated_on = test
        task = as_task(opened.loss(), self._pair[1].dtype)
        classes = _count_outputs(self._module, self._pair, task)
        self._task = task if opened.loss() is not None else experiment.loss.of(task, classes)
        self._evaluator = Evaluator(self._module, *(test or self._pair), self._task)
        data = ClientData.separate({TRIAL_CLIENT: self._pair})
        check_model(self._module, data, self._evaluator, self._task)
        self.probe = self._make_probe(classes)
        self._client = TRIAL_CLIENT
        self._trainer = self._make_trainer(TRIAL_CLIENT)

    @property
    def layout(self) -> Layout:
        return Layout.of(self._module)

    @property
    def dtype(self) -> torch.dtype:
        return flatten(self._module).dtype

    @property
    def test_evaluator(self) -> Evaluator | None:
        """The evaluator on the file's test examples, or None without them."""
        return None if self._evaluated_on is None else self._evaluator

    def num_examples(self, index: int, seconds: float) -> int:
        """Return the number of training examples before the n-th job, `seconds` after the first greeting."""
        self._reload()
        return len(self._pair[1])

    def trainer(self, client: int) -> Trainer:
        """Return a trainer on the current examples for the client number that the server uses."""
        grown = self._reload()
        if grown or self._client != client:
            self._trainer, self._client = self._make_trainer(client), client
        return self._trainer

    def scores(self, model: Tensor) -> tuple[int, dict[str, float]]:
        """Return the number of the site's test examples and the scores on them; 0 and none without such examples."""
        if self._evaluated_on is None:
            return 0, {}
        return len(self._evaluated_on[1]), self._evaluator(model)

    def _make_trainer(self, client: int) -> Trainer:
        """Make a trainer on the loaded examples."""
        data = ClientData.separate({client: self._pair})
        return Trainer(self._module, data, self._experiment.training, self._task, self.probe)

    def _reload(self) -> bool:
        """Load data again if it has grown; the earlier examples must come first and unchanged."""
        loaded, now = len(self._pair[1]), self._opened.current_examples()
        if now is None or now <= loaded:
            return False
        pair, _ = self._opened.data()
        if len(pair[1]) < loaded:
            raise DataError(
                f"load_data() returned {len(pair[1])} examples, fewer than the {loaded} before: data may only grow"
            )
        self._pair, self._client = pair, -1  # the next trainer uses the new examples
        return True

    def _make_probe(self, classes: int | None) -> Probe | None:
        """Make the probe from shapes and classes only, so that it is equal at the server and all sites."""
        sketcher = contract_of(self._experiment.strategy).sketcher
        if sketcher is None:
            return None
        if sketcher.signal != "parameters" and sketcher.calibration == "real":
            raise ConfigError(
                "calibration = 'real' needs the examples of all clients in one place: for sites with own data use "
                "strategy.calibration=gaussian"
            )
        x, y = self._pair
        like = y[:1] if classes is None else torch.full_like(y[:1], classes - 1)
        data = ClientData.separate({TRIAL_CLIENT: (x[:1], like)})
        return make_probe(sketcher, self._module, data, self._task, self._experiment.seed_of("batches"))


def _count_outputs(module: nn.Module, pair: Pair, task: Task) -> int | None:
    """Return the number of classes of the model, or None if the task is not classification."""
    if not isinstance(task, Classification):
        return None
    was = module.training
    try:
        with torch.no_grad():
            outputs = module.eval()(pair[0][:2])
    except Exception as error:
        shape = tuple(pair[0].shape[1:])
        raise DataError(f"the model does not accept inputs of shape {shape}: {type(error).__name__}: {error}") from None
    finally:
        module.train(was)
    return int(outputs.shape[1]) if isinstance(outputs, Tensor) and outputs.dim() > 1 else None
