"""Expected wording of messages: tables of (input, part of the message), and patterns of messages of single tests."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import offbeat
from experiment.user_objects import METHODS, Endless, Halves, Net, Rows, Versioned, net, pair, smoothed
from offbeat.core.errors import OffbeatError
from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.scenario.availability import Always
from offbeat.scenario.delays import Uniform

Table = list[tuple[Any, ...]]
X, Y = pair(examples=20)
ITEMS = TensorDataset(X, Y)


@contextmanager
def expect(*words: str, error: type[Exception] = OffbeatError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error of one line that contains each of these words; those written after ^ are at its beginning."""
    with pytest.raises(error) as refused:
        yield refused
    message = str(refused.value)
    assert "\n" not in message
    for part in words:
        assert message.startswith(part[1:]) if part.startswith("^") else part in message


# ---------------------------------------------------------------- experiment files and user code

TOO_FEW_EXAMPLES = "client 7 has 2 examples: too few for a test part of 0.2"
INVALID_SPLIT = "split train = 0.8, validation = 0.3: must be shares"
NO_CLIENT_TESTS = "evaluate = 'clients': not every client has its own test examples; set split"
UNKNOWN_EVALUATE = "unknown evaluate 'client': did you mean 'clients'"
INVALID_SIZE = r"client memory '.*': (write a size with its unit, such as 8GB|.*:half)"
ZERO_SIZE = "must be more than 0"
STORES_16_BITS = "the run stores 16 bits"
STORES_FULL_PRECISION = "the run stores full precision"
NO_FILE = "nothing.yaml: No such file"
IS_A_FOLDER = ": Is a directory"
NOT_STORABLE = r"contains objects that a file cannot store: .*offbeat\.simulate"

CHANGED_RECORDING = r"^{}the recording speeds.csv changed since the run was made: restore"
CHANGED_DATA = r"^x: the data, or its partition, changed"
DAMAGED_IDENTITY, MISSING_IDENTITY = r"x/world.json is damaged", r"x/world.json is missing"
MISSING_RECORDING = r"cannot read the recording speeds.csv: No such file"
DUPLICATE_METHODS = [
    "fedbuff(k=5) has the same settings as fedbuff: it is run once, as fedbuff",
    "fedbuff is named twice: it is run once",
]
SHADOWED = "fedbuff is a built-in strategy: the one from offbeat-cos 1.2 is not used"
BROKEN_PACKAGE = "^'{}' from the package offbeat-cos 1.2 is broken: {}"
UNKNOWN_STRATEGY = "unknown strategy 'fedbuf': did you mean 'fedbuff'"
UNKNOWN_PRESET = "unknown preset 'quikstart': did you mean 'quickstart'"
DAMAGED_DIRECTIONS = "fact higher_is_better is damaged"
NO_RUN_FOLDER, NO_TRACE = "is not a run folder", "run.sqlite is not a readable trace"
DAMAGED_MANIFEST = r"compare\.json is damaged"
NEGATIVE_SEED, UNKNOWN_SEED = "seeds: partition = -1: must be 0 or more", "did you mean 'batches'"

ALL_TRAINING_FAILS = "the first 10 local trainings all failed: RuntimeError: it does not fit"

CREATED_BY_A_SCRIPT = "was created by a script, which has its model and data: run '"
OTHER_CALL_HINT = "; make the call as it was, or choose another out="
OTHER_ARGUMENT = {
    "model": "another call: model.by was 1.0, is 2.0 now; make",
    "delays": "another call: delays.mean was 1.0, is 2.0 now; make",
}
OTHER_LOSS = "another call: the loss is different; make"
CHANGED_CODE = "the code of the model changed, the code of the strategy changed; make"
DAMAGED_RECORD = "simulation.json is damaged: its SHA-256 does not match"
OWN_OBJECTS = (
    "has a loss of its own, smoothed: give loss=",
    "has a strategy of its own, Halves: give strategy=Halves(…)",
)
ONLY_DIGESTS = "stores only digests of its data: give clients="
OTHER_LAYERS = "start.safetensors: "
NO_SIMULATION = "holds no simulation: it has no simulation.json"

SEQUENTIAL = "forked processes cannot train here (autograd has threads): executing runs one after the other"

UNAVAILABLE = "worker elsewhere: there is no elsewhere here; inline is used"
NO_PROCESSES = "worker processes:2: it needs Linux, and this is darwin; inline is used"
NO_JOBS = "--jobs 2: with the worker several:2 runs go one after the other"
NO_RAY = "^worker ray: Ray is not installed; install it: pip install 'offbeat[ray]'"
INVALID_ADDRESS = "^worker {!r}: write ray, or ray:HOST:PORT with the address of a cluster"
NO_SERVER = "^worker 'ray:{0}': no server answers at {0} (Connection refused)"

CALLS: Table = [
    ("", "no name is given"),
    ("(k=2)", "has no name before its brackets"),
    ("fedbuff(k=2", "')' is missing at the end"),
    (
        "fedbuff(k=[2)",
        "the ')' at position 13 has no opening bracket",
    ),  # f is the first, the 13th letter is the bracket
    ("fedbuff)", "has no opening bracket"),
    ("fedbuff(k='2)", '"\'" is missing at the end'),
    ("fedbuff(2)", "'2' is invalid: write setting=value"),
    ("fedbuff(k=)", "'k=' is invalid"),
    ("fedbuff(k=2,)", "'' is invalid"),
    ("fedbuff(k=2,k=3)", "k is given twice"),
    ("fedbuff(a b=2)", "is invalid"),
]
EXPERIMENT_FILES: Table = [
    ("clints: 4", "experiment: unknown setting 'clints': did you mean 'clients'?"),
    ("1: 4", "experiment: unknown setting '1'"),
    ("strategy: {k: 3}", "names no strategy; known: "),
    ("strategy: {name: [fedavg]}", "names no strategy"),
    ("strategy: {name: fedavg, k: 3}", "strategy: unknown setting 'k'"),
    ("strategy: {name: fedavg, work: {rule: x}}", "strategy.work: unknown setting 'rule'"),
    ("strategy: {name: fedasync, staleness: sometimes}", "unknown staleness 'sometimes'"),
    ("strategy: {name: fedbuff, exclude_buffered: 5}", "strategy.exclude_buffered = 5: expected true or false"),
    ("strategy: {name: fedbuff, k: .inf}", "strategy.k = inf: expected a whole number"),
    ("strategy: {name: fedavg, sample: yes}", "strategy.sample = true: expected a number or null"),
    ("data: 5", "data: 5 names no data set; known: 20news"),
    ("model: {name: cnn, channels: []}", "model: Cnn: channels = ()"),
    ("model: {name: cnn, channels: [[1]]}", "model.channels = [[1]]: expected a list, each entry a whole number"),
    ("until: [1, 2]", "cannot be parsed"),
    ("until: null", "until 'None' cannot be parsed"),
    ("training: {lr: .nan}", "training.lr = nan: must be positive and finite"),
    ("evaluate_every: .inf", "evaluate_every = inf"),
    ("timeout: .inf", "timeout = inf: must be more than 1 times the expected duration, and finite"),
    ("clients: 99999999999999999999999999999999999999999999999999999999999999999999x", "clients = '9999"),
]
METHODS_SECTIONS: Table = [
    ("methods:", "methods is empty: write methods: [fedbuff(k=2), orthofl]"),
    ("methods: []", "no name is given"),
    ("methods: 5", "methods is a list such as"),
    ("methods: [5]", "methods is a list such as"),
    ("methods: [{small: fedbuff}]", "or a mapping from labels to strategies"),
    ("methods: [fedbuff, fedbuff]", "methods: fedbuff occurs twice"),
    ("methods: [fedbuff, fedbuff(k=10)]", "methods: fedbuff and fedbuff(k=10) have the same settings"),
    ("methods: [fedbuf]", "methods, fedbuf: unknown strategy 'fedbuf': did you mean 'fedbuff'?"),
    ("methods: [fedbuff(q=2)]", "methods, fedbuff(q=2): strategy: unknown setting 'q'"),
    ("methods: [fedbuff(k=0)]", "k = 0: the buffer holds at least 1 update"),
    ("methods: {a: 5}", "methods, a: strategy: 5 names no strategy"),
    ("methods: {a: }", "methods, a: strategy: null names no strategy"),
    ('methods: {"": fedbuff}', "'' is no valid label"),
    ("methods: [fedbuff(k=2]", "')' is missing"),
    ("method: [fedbuff]", "unknown setting 'method'"),
]
YAML: Table = [
    ("clients: 2\nname: !!timestamp x\n", "given.yaml line 2: invalid YAML ('x' cannot be read as timestamp)"),
    ("clients: !!bool x\n", "given.yaml line 1: invalid YAML ('x' cannot be read as bool)"),
    ("faults: &a [*a]\n", "given.yaml line 1: invalid YAML (aliases such as *a are not allowed: write the value out)"),
    ("clients: " + "9" * 5000, f"given.yaml line 1: invalid YAML ('{'9' * 37}...' cannot be read as int)"),
    ("name: " + "[" * 5000, "given.yaml: invalid YAML (brackets are nested too deeply)"),
    ("clients: '" + "9" * 4000 + "'", "given.yaml: clients = '" + "9" * 56 + "...: expected a whole number"),
]
DATA_CHANGES: Table = [
    ("data=digit", "unknown data set 'digit': did you mean 'digits'"),
    ("data={name: npz}", "data: folder must be given"),
    ("data.vocabulary=9", "unknown setting 'vocabulary'"),
    ("data={name: synthetic, alpha: -1}", "data: Synthetic: alpha = -1.0"),
    ("data={name: fitrec, target: pulse}", "data.target: unknown value 'pulse'"),
]
SCENARIOS: Table = [
    ({"model": {"name": "resnet", "depth": 50}}, "model.depth = 50: expected 18 or 34"),
    ({"model": {"name": "cnn", "pool": "lost"}}, "model.pool: unknown value 'lost': did you mean 'last'"),
    ({"model": "resnet50"}, "unknown model 'resnet50': did you mean 'resnet'"),
    ({"model": {"name": "mlp", "hidden": [8, 0]}}, "model: Mlp: hidden = (8, 0)"),
    ({"partition": "piece"}, "unknown partition 'piece': did you mean 'pieces'"),
    ({"partition": {"name": "pieces", "sizes": [1, "big"]}}, "partition.sizes"),
    ({"partition": {"name": "main-class", "share": 95}}, "partition: MainClass: share = 95"),
]
WORKERS: Table = [
    ("inlin", "unknown worker 'inlin': did you mean 'inline'?"),
    ("", "unknown worker '': known: "),
    ("Inline", "did you mean 'inline'?"),
    ("inline:3", "worker 'inline:3': inline takes no number; write inline"),
    ("inline:", "inline takes no number"),
    ("several:0", "worker 'several:0': from 1 to 1024 hands, not 0"),
    ("several:9999", "from 1 to 1024 hands, not 9999"),
    ("several:-1", "worker 'several:-1': write several, or several:N with a whole number of hands"),
    ("several:two", "whole number of hands"),
    ("several:", "whole number of hands"),
    ("several:1:2", "whole number of hands"),
    ("several:²", "whole number of hands"),
    ("proceses", "unknown worker 'proceses': did you mean 'processes'?"),
    ("rya", "unknown worker 'rya': did you mean 'ray'?"),
    ("Ray:10.0.0.1:6399", "unknown worker 'Ray': did you mean 'ray'?"),
    ("processes:0", "worker 'processes:0': from 1 to 1024 processes, not 0"),
    ("processes:x", "write processes, or processes:N with a whole number of processes"),
]
SWEPT_SETTINGS: Table = [
    (["strategy.k"], "--over 'strategy.k' is invalid: write setting=value,value"),
    (["strategy.k="], "--over strategy.k=: a value is missing"),
    (["strategy.k=2,,3"], "a value is missing"),
    (["strategy.k=2,3,2"], "2 occurs twice"),
    (["strategy.k=2", "strategy.k=3"], "strategy.k is given twice"),
    (["strategy=fedavg,fedbuff"], "--strategies"),
    (["strategy.name=fedavg,fedbuff"], "--strategies"),
    (["seed=1,2"], "--seeds"),
    (["name=a,b"], "does not change what is run"),
]
USER_CODE: Table = [
    ("strategy", "mime.py:Mine", "^mime.py does not exist"),
    ("strategy", "mine.py", "^mine.py names a file but no object in it: write mine.py:Mine"),
    ("strategy", "mine.py:", "write mine.py:Mine"),
    ("strategy", "mine.py:Mune", "^mine.py: unknown name 'Mune': did you mean 'Mine'?"),
    ("strategy", "others.py:Net", "others.py:Net has no init and no on_event: a strategy is a frozen dataclass"),
    ("strategy", "others.py:sites", "others.py:sites is a function: a strategy is a frozen dataclass"),
    ("strategy", "others.py:NUMBER", "others.py:NUMBER is a int, no class or function"),
    ("partition", "others.py:sites", "is a function: it must be a frozen dataclass with split"),
    ("model", "mine.py:Mine", "has no build: a model is an nn.Module class"),
    ("loss", "others.py:broken", "takes 0 arguments: a loss takes outputs and labels"),
    ("strategy", "minr", "unknown strategy 'minr'"),
]
USER_SETTINGS: Table = [
    ({"strategy": {"name": "mine.py:Mine", "rats": 1}}, "^strategy: unknown setting 'rats': did you mean 'rate'?"),
    ({"strategy": {"name": "mine.py:Mine", "rate": "a"}}, "^strategy.rate = 'a': expected a number"),
    ({"data": {"name": "others.py:sites", "count": 0.5}}, "^data.count = 0.5: expected a whole number"),
]
BROKEN_FILES = {
    "syntax": "mine.py line 1: SyntaxError",
    "error": "mine.py line 2: ZeroDivisionError: division by zero",
    "import": "mine.py line 1: ModuleNotFoundError",
    "exit": "mine.py line 2: SystemExit",
    "no dataclass": "mine.py:Mine is no dataclass: decorate it with @data",
    "not frozen": "mine.py:Mine is not frozen: decorate it with @dataclass",
    "invalid default": "Mine: ValueError: no",
    "required setting": "strategy: rate must be given",
}
USER_ERROR = r"^others.py line \d+: KeyError: 'x'"
TWO_NEIGHBOURS = "^b/it.py imports twin_of_mine, but another twin_of_mine is loaded from a/"

# methods, a swept setting that does not suit them, and the message
COMBINATIONS = {
    "unknown": "strategy: unknown setting 'kk': did you mean 'k'",
    "without section": "--over lr=0.1: unknown setting 'lr': did you mean 'training.lr'",
    "wrong type": "partition.alpha = 'x': expected a number",
    "out of range": "the buffer holds at least 1 update",
    "equal values": "fedbuff clients=4.0 has the same settings as fedbuff clients=4",
    "fixed by the method": "--over strategy.k: fedbuff(k=2) sets it already",
    "equal methods": "b(k=2) has the same settings as a(k=2)",
}


# ---------------------------------------------------------------- arguments of simulate and compare

ARGUMENTS: Table = [
    ({"clients": []}, "no clients: data for at least one is needed"),
    ({"clients": {}}, "no clients"),
    (
        {"clients": [pair(0), pair(1), (torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))]},
        "client 2 has no examples",
    ),
    ({"clients": [(torch.zeros(4, 5), torch.zeros(3, dtype=torch.int64))]}, "client 0: 4 inputs but 3 labels"),
    (
        {"clients": [(torch.full((4, 5), torch.nan), torch.zeros(4, dtype=torch.int64))]},
        "client 0: 4 of 4 inputs are not finite",
    ),
    ({"clients": [torch.zeros(4, 5)]}, "client 0: give (inputs, labels), or a data set of such pairs, not Tensor"),
    ({"clients": [([0.0], [1])]}, "client 0: inputs are a list: give a tensor or an array"),
    ({"clients": {-1: pair()}}, "client -1: clients have numbers, 0 or more, or names"),
    ({"test": torch.zeros(4, 5)}, "test: give (inputs, labels)"),
    ({"test": (torch.zeros(2, 5), torch.zeros(1, dtype=torch.int64))}, "evaluation data: 2 inputs but 1 labels"),
    ({"strategy": "fedbuf"}, "unknown strategy 'fedbuf': did you mean 'fedbuff'"),
    ({"strategy": offbeat.FedBuff}, "is not a strategy: write FedBuff()"),
    ({"strategy": 5}, "strategy = 5 is not a strategy"),
    ({"delays": [1.0, 2.0, 3.0]}, "3 delays for 2 clients"),
    ({"delays": 0.0}, "mean = 0.0: must be positive"),
    ({"delays": [1.0, -3.0]}, "needs at least one value, each positive and finite"),
    ({"delays": "60"}, "delays = '60': give seconds"),
    (
        {"delays": [1.0, 2.0], "clients": dict(zip((5, 6), (pair(0), pair(1)), strict=True))},
        "a list of delays needs a list of clients",
    ),
    ({"until": "soon"}, "'soon' cannot be parsed"),
    ({"until": "acc=0.9"}, "alone may never be reached"),
    ({"until": "accuracy=0.9,50s"}, "unknown metric 'accuracy': did you mean 'acc'"),
    ({"seed": -1}, "seed = -1"),
    ({"evaluate_every": 0.0}, "evaluate_every = 0.0"),
    ({"model": nn.ReLU()}, "ReLU has no trainable parameters"),
    ({"training": {"lr": 0.1}}, "training = {'lr': 0.1}: write Training(lr=0.1)"),
    ({"training": {"lrr": 0.1}}, "training = {'lrr': 0.1}: unknown setting 'lrr': did you mean 'lr'?"),
    ({"training": 0.1}, "training = 0.1: write Training(lr=0.1, batch=32), or omit it"),
    ({"model": nn.Linear}, "model = Linear is a class: write Linear(…), or lambda seed: Linear(…)"),
    ({"model": None}, "model = None: give a torch.nn.Module, or a function of the seed"),
    ({"model": lambda: net()}, "model: the function is called with the seed only, and raised: "),
    ({"model": lambda seed: 3}, "model: the function returned 3 for seed 0, not a torch.nn.Module"),
    ({"strategy": ["fedavg", "fedbuff"]}, "is not a strategy: use offbeat.compare for several"),
    ({"clients": (pair() for _ in range(3))}, "clients = generator: it can be iterated only once; write list("),
    ({"clients": X}, "clients = Tensor: give one pair or data set per client"),
    ({"clients": ITEMS}, "clients = TensorDataset: give one pair or data set per client"),
    ({"clients": None}, "clients = NoneType: give a list of (inputs, labels)"),
    ({"clients": [{"x": X}]}, "client 0: give (inputs, labels), or a data set of such pairs, not a dict of 1"),
    ({"clients": [DataLoader(ITEMS)]}, "client 0: a DataLoader draws its own batches: give its data set"),
    ({"clients": [Endless()]}, "client 0: the data set Endless has no length"),
    ({"clients": [Rows([])]}, "client 0: Rows has no examples"),
    ({"clients": [Rows([{"x": 1}])]}, "client 0: an item of Rows is not (input, label), but dict"),
    ({"clients": [Rows([(object(), 1)])]}, "client 0: the items of Rows do not make tensors (TypeError: "),
    ({"clients": [Rows([(torch.ones(1), 0), (torch.ones(2), 0)])]}, "client 0: the items of Rows do not make"),
    ({"clients": [(X.numpy(), np.array(["a"] * 20))]}, "client 0: labels are <U1: give numbers"),
    ({"clients": [(X, None)]}, "client 0: labels are a NoneType: give a tensor or an array"),
    ({"clients": [(X, torch.tensor(1))]}, "client 0: labels are a single number: give one for each example"),
    ({"clients": [(X, Y[:, None])]}, "the training examples have inputs (5,) float32 and labels (1,) int64, and"),
    ({"clients": {"bern": (X, Y), "basel": (X, Y[:3])}}, "client 'basel': 20 inputs but 3 labels"),
    ({"clients": {"bern": (X, Y), "basel": (X[:, :2], Y)}}, "client 'basel' has inputs (2,) torch.float32"),
    ({"clients": {"bern": (X, Y), 3: (X, Y)}}, "clients: 'bern' has a name and others have numbers"),
    ({"clients": {"": (X, Y)}}, "client '': clients have numbers, 0 or more, or names"),
    ({"tests": [(X, Y)]}, "tests: client 1 has none: give one for each client"),
    ({"tests": {"bern": (X, Y)}}, "tests: client 0 has none"),
    ({"tests": [(X, Y)] * 3}, "tests: there is no client 2"),
    ({"tests": [(X, Y), (X, Y[:3])]}, "tests: client 1: 20 inputs but 3 labels"),
    ({"until": datetime.timedelta(hours=1)}, "until = datetime.timedelta(seconds=3600): write '3600s', "),
    ({"until": None}, "until = None: write '3600s', "),
    ({"target": 0.9}, "target = 0.9: write 'acc=0.9'"),
    ({"target": "accuracy=0.9"}, "target accuracy=0.9: unknown metric 'accuracy': did you mean 'acc'?"),
    ({"seed": 1.5}, "seed = 1.5: give a whole number, 0 or more"),
    ({"evaluate_every": "10"}, "evaluate_every = '10': must be a positive number"),
    ({"delays": None}, "delays = None: give seconds, a list of them, or a law such as "),
    ({"delays": [1.0, None]}, "delays[1] = None: must be a number of seconds"),
    ({"delays": {"bern": 1.0}}, "delays: unknown client 'bern': known: 0, 1"),
    ({"delays": {0: 1.0}}, "delays: client 1 has none: give one for each client"),
    ({"network": "instant"}, "network = 'instant': write Instant(…), from offbeat.scenario.network"),
    ({"availability": Always}, "availability = Always: write Always(…), from offbeat.scenario.availability"),
    ({"availability": "alway"}, "availability = 'alway': unknown availability 'alway': did you mean 'always'?"),
    ({"faults": "crash"}, "faults = 'crash': write Crash(…), from offbeat.scenario.faults"),
    ({"faults": 5}, "faults = 5: give one of Crash, "),
    ({"streaming": 5}, "streaming = 5: give one of Static, "),
    ({"loss": nn.CrossEntropyLoss}, "loss = CrossEntropyLoss is a class: write CrossEntropyLoss()"),
    ({"loss": "ce"}, "loss = 'ce': give a function (outputs, labels) -> scalar"),
    ({"worker": 4}, "worker = 4: write 'processes:4'"),
    ({"client_memory": 8}, "client_memory = 8: write '8GB'"),
    ({"progress": 5}, "progress = 5: pass True, or a function"),
    ({"out": 5}, "out = 5: give the path of a folder"),
    ({"out": __file__}, "it is a file; give the path of a folder"),
    ({"out": "a\0b"}, "embedded null byte; give the path of a folder"),
    ({"out": "a" * 300}, "File name too long; give the path of a folder"),
    ({"out": "~nobody of that name/run"}, "give the path of a folder"),
    ({"model": nn.LazyLinear(2)}, "model = LazyLinear: it has layers without weights: call it on a batch"),
    ({"model": Versioned(5, 2)}, "model = Versioned: _extra_state of its state_dict is a dict, not a tensor"),
]
COMPARE: Table = [
    ({"strategies": "fedavg"}, "strategies = 'fedavg': pass a list of strategies"),
    ({"strategies": []}, "a comparison needs at least one strategy"),
    ({"strategies": ["fedavg", "fedbuf"]}, "unknown strategy 'fedbuf': did you mean 'fedbuff'?"),
    ({"strategies": [offbeat.FedBuff]}, "is not a strategy: write FedBuff()"),
    ({"strategies": ["fedavg", "fedavg"]}, "strategies: fedavg occurs twice: pass a dict"),
    ({"strategies": {"a/b": "fedavg"}}, "strategies: 'a/b' is no valid label"),
    ({"strategies": {"": "fedavg"}}, "strategies: '' is no valid label"),
    ({"strategies": {3: "fedavg"}}, "strategies: 3 is no valid label"),
    ({"seeds": 0}, "seeds = 0: must be 1 or more"),
    ({"seeds": []}, "a comparison needs at least one seed"),
    ({"seeds": [1, 1]}, "seeds = [1, 1]: a seed occurs twice"),
    ({"seeds": "3"}, "seeds = '3': give a whole number, 1 or more"),
    ({"reference": "fedprox"}, "unknown method of this comparison 'fedprox'"),
    ({"jobs": 0}, "jobs = 0: must be 1 or more"),
    ({"model": nn.Linear}, "model = Linear is a class"),
    ({"model": nn.Linear(4, 2)}, "the model cannot take them"),
    ({"training": {"lr": 0.1}}, "write Training(lr=0.1)"),
]
# changed arguments of a call, and the difference that its message states
DIFFERENT_SIMULATIONS: Table = [
    ({"until": "400s"}, "until was 300s, is 400s now"),
    ({"seed": 4}, "seed was 3, is 4 now"),
    ({"strategy": offbeat.FedBuff(k=3)}, "strategy.k was 2, is 3 now"),
    ({"strategy": "fedavg"}, "strategy was fedbuff, is fedavg now"),
    ({"training": offbeat.Training(lr=0.1)}, "training.lr was 0.05, is 0.1 now"),
    ({"delays": Uniform(low=5.0, high=20.0)}, "delays was per_client, is uniform now"),
    ({"model": Net(seed=1)}, "its initial weights are different"),
    ({"model": nn.Linear(5, 2)}, "the model is different"),
    ({"loss": smoothed}, "the loss is different"),
    ({"clients": {"bern": pair(0), "basel": pair(7), "biel": pair(2)}}, "the data of client 'basel' changed"),
    ({"clients": {"bern": pair(0), "basel": pair(1), "bex": pair(2)}}, "the clients were bern, basel, biel, are "),
    ({"test": pair(5)}, "the data of test changed"),
]
DIFFERENT_COMPARISONS: Table = [
    ({"seeds": 3}, "the seeds were 0, 1, are 0, 1, 2 now"),
    ({"strategies": ["fedavg"]}, "the methods were fedavg, small, mine, are fedavg now"),
    ({"strategies": {**METHODS, "small": offbeat.FedBuff(k=3)}}, "strategy.k was 2, is 3 now"),
    ({"strategies": {**METHODS, "mine": Halves(alpha=0.4)}}, "strategy.alpha was 0.5, is 0.4 now"),
    ({"until": "300s"}, "until was 200s, is 300s now"),
    ({"model": net(0)}, "its initial weights are different"),
    ({"test": pair(8)}, "the data of test changed"),
]
SETTING_WARNINGS: Table = [
    (FedBuff(), 4, "strategy.k = 10 (the default) exceeds the 4 clients that can work at once"),
    (FedBuff(k=5), 4, "strategy.k = 5 exceeds the 4 clients"),
    (FedBuff(concurrency=3), 20, "strategy.k = 10 (the default) exceeds the 3 clients"),
    (CA2FL(concurrency=30), 9, "exceeds the 9 clients"),
    (FedPSA(), 1, "strategy.buffer = 5 (the default) exceeds the 1 client that"),
]
KEYWORDS: Table = [
    ("simulate", "delay", "did you mean 'delays'?"),
    ("simulate", "seeds", "did you mean 'seed'?"),
    ("compare", "evaluate_evry", "did you mean 'evaluate_every'?"),
]
