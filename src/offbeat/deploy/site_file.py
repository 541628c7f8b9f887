"""A site's own Python file: its model and its data, and nothing else. `offbeat new site` writes one.

    model() -> nn.Module                        the same layers, with the same names, as everybody's
    load_data() -> (x, y)                       or {"train": (x, y), "test": (x, y)}: tensors, one label an example
    loss(outputs, y) -> a scalar                optional; else the experiment's, for the task that goes with the labels
    num_examples() -> int                       optional, for data that grows: more than before, and it is loaded again

What is wrong with it is one line that says where.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategy_contract import contract_of
from offbeat.core.threads import one_thread
from offbeat.core.vector import Layout, flatten
from offbeat.experiment.spec.config import Experiment
from offbeat.training.client_data import ClientData, Pair, checked
from offbeat.training.evaluation import Evaluator
from offbeat.training.model_check import rehearse
from offbeat.training.sensitivity import Probe, make_probe
from offbeat.training.tasks import Classification, Loss, Task, as_task
from offbeat.training.trainer import Trainer

NUMBER = 0  # of the site while it is tried out: the server has given it none


class OwnCodeError(DataError):
    """The site's own code raised. What it said may be of its data: others are told the kind and the place only."""

    def __init__(self, where: str, error: BaseException) -> None:
        said = error.msg if isinstance(error, SyntaxError) else error
        super().__init__(f"{where}: {type(error).__name__}: {' '.join(str(said).split())}")
        self.outward = f"{where}: {type(error).__name__} (what it said is in the site's own log)"


@dataclass(frozen=True)
class SiteFile:
    path: Path

    @one_thread()
    def ground(self, experiment: Experiment) -> OwnGround:
        return OwnGround(Opened(self.path), experiment)


def starting_text(name: str, file: str) -> str:
    """A file to start from, which works as it stands."""
    text = Path(__file__).with_name("starting_site.py").read_text(encoding="utf-8")
    return text.replace("NAME:", f"{name}:", 1).replace("FILE", file)


class Opened:
    """The file, run once; its functions are called when they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.suffix != ".py" or not path.is_file():
            raise ConfigError(f"{path} is not a Python file: 'offbeat new site NAME' writes one")
        name = f"offbeat_site_{path.stem}"  # a name of its own: a file may well be called random.py
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        loader = spec.loader
        self._module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self._module  # rules it defines are found by it
        sys.path.append(str(path.absolute().parent))  # it may import its neighbours, but not hide libraries from us
        self._guarded(partial(loader.exec_module, self._module))
        for needed in ("model", "load_data"):
            if not callable(getattr(self._module, needed, None)):
                raise ConfigError(f"{path} has no function {needed}(): 'offbeat new site NAME' shows what is needed")

    def model(self) -> nn.Module:
        made = self._guarded(self._module.model)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{self._path}: model() gave a {type(made).__name__}, not an nn.Module")
        return made

    def loss(self) -> Loss | None:
        given = getattr(self._module, "loss", None)
        if given is not None and not callable(given):
            raise ConfigError(f"{self._path}: loss is a {type(given).__name__}, not a function (outputs, y) -> scalar")
        return given

    def data(self) -> tuple[Pair, Pair | None]:
        """What is trained on, and what is not."""
        given = self._guarded(self._module.load_data)
        if isinstance(given, Mapping):
            if "train" not in given or not given.keys() <= {"train", "test"}:
                named = ", ".join(map(str, given))
                raise DataError(
                    f"{self._path}: load_data() gave {named or 'nothing'}: 'train' is needed, 'test' may be"
                )
            test = given.get("test")
            return self._pair(given["train"], "train"), None if test is None else self._pair(test, "test")
        return self._pair(given, "load_data()"), None

    def grown_to(self) -> int | None:
        """How many examples there are now, if the file can tell without loading them."""
        ask = getattr(self._module, "num_examples", None)
        if not callable(ask):
            return None
        count = self._guarded(ask)
        if type(count) is not int or count < 1:
            raise DataError(f"{self._path}: num_examples() gave {count!r}, not a whole number of at least 1")
        return count

    def _pair(self, given: Any, what: str) -> Pair:
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise DataError(f"{self._path}: {what} is a {type(given).__name__}, not (inputs, labels)")
        for tensor in given:
            if not isinstance(tensor, Tensor):
                raise DataError(f"{self._path}: {what} holds a {type(tensor).__name__}: torch.as_tensor makes tensors")
        return checked(given[0], given[1], where=f"{self._path}: {what}: ")

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:
            line = _line_in(error, str(self._path.absolute()))
            where = f"{self._path}:{line}" if line else str(self._path)
            raise OwnCodeError(where, error) from None


def _line_in(error: BaseException, here: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == here:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
    return lines[-1] if lines else None


class OwnGround:
    """A site's own model and data in somebody's experiment."""

    def __init__(self, opened: Opened, experiment: Experiment) -> None:
        self._opened, self._experiment = opened, experiment
        self._module = opened.model()
        self._pair, test = opened.data()
        self._evaluated_on = test
        task = as_task(opened.loss(), self._pair[1].dtype)
        classes = _outputs(self._module, self._pair, task)
        self._task = task if opened.loss() is not None else experiment.loss.of(task, classes)
        self._evaluator = Evaluator(self._module, *(test or self._pair), self._task)
        own = ClientData.own({NUMBER: self._pair})
        rehearse(self._module, own, self._evaluator, self._task)
        self.probe = self._made_probe(classes)
        self._client = NUMBER
        self._trainer = self._trained_on(NUMBER)

    @property
    def layout(self) -> Layout:
        return Layout.of(self._module)

    @property
    def dtype(self) -> torch.dtype:
        return flatten(self._module).dtype

    @property
    def tested(self) -> Evaluator | None:
        """What evaluates on the file's test examples, if it has such."""
        return None if self._evaluated_on is None else self._evaluator

    def num_examples(self, index: int, seconds: float) -> int:
        self._reload()
        return len(self._pair[1])

    def trainer(self, client: int) -> Trainer:
        grown = self._reload()
        if grown or self._client != client:
            self._trainer, self._client = self._trained_on(client), client
        return self._trainer

    def scores(self, model: Tensor) -> tuple[int, dict[str, float]]:
        if self._evaluated_on is None:
            return 0, {}
        return len(self._evaluated_on[1]), self._evaluator(model)

    def _trained_on(self, client: int) -> Trainer:
        data = ClientData.own({client: self._pair})
        return Trainer(self._module, data, self._experiment.training, self._task, self.probe)

    def _reload(self) -> bool:
        """Data that has grown is loaded again; what was there must come first, as before."""
        held, now = len(self._pair[1]), self._opened.grown_to()
        if now is None or now <= held:
            return False
        pair, _ = self._opened.data()
        if len(pair[1]) < held:
            raise DataError(f"load_data() gave {len(pair[1])} examples, fewer than the {held} before: data only grows")
        self._pair, self._client = pair, -1  # whoever trains next trains on these
        return True

    def _made_probe(self, classes: int | None) -> Probe | None:
        """The same at every site and at the server: nobody's examples, as many classes as the model has outputs."""
        sketcher = contract_of(self._experiment.strategy).sketcher
        if sketcher is None:
            return None
        if sketcher.signal != "parameters" and sketcher.calibration == "real":
            raise ConfigError(
                "calibration = 'real' needs everybody's examples in one place: sites with data of their own need "
                "strategy.calibration=gaussian"
            )
        x, y = self._pair
        like = y[:1] if classes is None else torch.full_like(y[:1], classes - 1)
        return make_probe(
            sketcher,
            self._module,
            ClientData.own({NUMBER: (x[:1], like)}),
            self._task,
            self._experiment.seed_of("batches"),
        )


def _outputs(module: nn.Module, pair: Pair, task: Task) -> int | None:
    """How many classes the model tells apart; None where there are none."""
    if not isinstance(task, Classification):
        return None
    was = module.training
    try:
        with torch.no_grad():
            outputs = module.eval()(pair[0][:2])
    except Exception as error:
        shape = tuple(pair[0].shape[1:])
        raise DataError(f"the model cannot take inputs of shape {shape}: {type(error).__name__}: {error}") from None
    finally:
        module.train(was)
    return int(outputs.shape[1]) if isinstance(outputs, Tensor) and outputs.dim() > 1 else None
