"""Expected wording of the scenario's messages: tables of (input, part of the message), and patterns of single tests."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from offbeat.scenario import data, delays, partition
from offbeat.scenario.availability import Churn, Diurnal, Dropout, JoinAndLeave, Periodic
from offbeat.scenario.data.air_quality import BeijingAir
from offbeat.scenario.data.built_in import StandIn, Synthetic
from offbeat.scenario.data.clinical import Ixi
from offbeat.scenario.data.fitrec import FitRec
from offbeat.scenario.data.images import Isic2019
from offbeat.scenario.data.texts import AgNews, TwentyNews
from offbeat.scenario.delays import Changing, ConstantDelays, Devices, Lognormal, LongTail, RecordedDelays
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.faults import Corrupted, Crash, DuplicateUpload, Scaled
from offbeat.scenario.models import (
    Cnn,
    DistilBert,
    EfficientNet,
    LeNet5,
    Linear,
    Lstm,
    Mlp,
    ResNet,
    ResNet1d,
    TextCnn,
    UNet3d,
    Vgg11,
)
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST
from offbeat.scenario.network import Bandwidth, Offset
from offbeat.scenario.partition import ClassSubsets, Dirichlet, Draws, MainClass, Natural
from offbeat.scenario.streaming import Drifting, Growing

# class, settings, words of the message after the class
SETTINGS: list[tuple[type, dict[str, Any], str]] = [
    (ConstantDelays, {"mean": 0.0}, "mean = 0.0: must be positive"),
    (ConstantDelays, {"jitter": -0.1}, "jitter = -0.1"),
    (ConstantDelays, {"unit": "epoch"}, "unit = 'epoch': 'job', 'step' or 'response'"),
    (delays.Uniform, {"low": -1.0}, "low = -1.0"),
    (delays.Uniform, {"low": 3.0, "high": 2.0}, "low = 3.0 is above high = 2.0"),
    (delays.Normal, {"mean": -1.0}, "mean = -1.0"),
    (delays.HalfNormal, {"mean": 0.0}, "mean = 0.0"),
    (delays.HalfNormal, {"mean": 1.0, "least": -0.1}, "least = -0.1"),
    (delays.ExponentialDelays, {"mean": nan}, "mean = nan"),
    (delays.ExponentialDelays, {"mean": 1.0, "least": 2.0}, "least = 2.0: must be from 0 to the mean, 1.0"),
    (Lognormal, {"median": 0.0}, "median = 0.0"),
    (Lognormal, {"sigma": -0.5}, "sigma = -0.5"),
    (Lognormal, {"sigma": 1000.0}, "sigma = 1000.0: must be positive and at most 20"),
    (Lognormal, {"mean": 3.0}, "give both mean and std"),
    (Lognormal, {"mean": 3.0, "std": 0.0}, "std = 0.0"),
    (Lognormal, {"mean": 1.0, "std": 1e300}, "mean = 1.0, std = 1e.300: too far"),
    (Lognormal, {"mean": 1e-300, "std": 1.0}, "mean = 1e-300, std = 1.0: too far"),
    (LongTail, {"low": 5.0, "high": 1.0}, "low = 5.0 is above high = 1.0"),
    (LongTail, {"a": 1e-300}, "a = 1e-300: must be at least 1e-6"),
    (delays.Groups, {"period": 0.0}, "period = 0.0"),
    (delays.Groups, {"shares": (0.5, 0.5)}, "3 factors and 2 shares"),
    (delays.Groups, {"shares": (0.5, 0.4, 0.2)}, ".*add up to 1"),
    (delays.PerClient, {"means": ()}, r"means = \(\): needs at least one"),
    (delays.PerClient, {"means": (1.0, 0.0)}, r"means = \(1.0, 0.0\): .*each positive"),
    (Devices, {"means": (1.0,), "stds": ()}, "1 means and 0 stds"),
    (Devices, {"means": (1.0, -2.0), "stds": (1.0, 1.0)}, r"means = \(1.0, -2.0\)"),
    (Devices, {"means": (1.0,), "stds": (-1.0,)}, r"stds = \(-1.0,\)"),
    (Changing, {"at": (5.0, 2.0), "factors": (1.0, 2.0)}, ".*and increase"),
    (Changing, {"at": (-1.0,), "factors": (2.0,)}, r"at = \(-1.0,\)"),
    (Changing, {"at": (5.0,), "factors": (0.0,)}, r"factors = \(0.0,\)"),
    (Changing, {"at": (), "factors": ()}, r"factors = \(\)"),
    (Changing, {"at": (1.0, 2.0), "factors": (2.0,)}, "2 times and 1 factors"),
    (Changing, {"delays": Changing(at=(1.0,), factors=(2.0,)), "at": (5.0,), "factors": (3.0,)}, "Changing already"),
    (Changing, {"delays": RecordedDelays(path="x.csv"), "at": (5.0,), "factors": (3.0,)}, ".* already changes"),
    (Dropout, {"share": 1.5}, "share = 1.5"),
    (Dropout, {"at": -5.0}, "at = -5.0"),
    (Dropout, {"at": (5.0, 1.0)}, r"at = \(5.0, 1.0\)"),
    (JoinAndLeave, {"stay": (1.0,)}, "stay"),
    (Periodic, {"share": 1.0}, "share = 1.0: must be 0, or from 0.0001 to 0.9999"),
    (Periodic, {"share": 1e-7}, "share = 1e-07"),
    (Periodic, {"period": 1e-9}, "period = 1e-09: must be finite and at least 0.001 seconds"),
    (Diurnal, {"day": 1e-4}, "day = 0.0001"),
    (Diurnal, {"hours": 1e-9}, "hours = 1e-09 are 3.6e-06 s of a day of 86400 s: must be at least 0.001 s"),
    (Diurnal, {"hours": 24.0}, "hours"),
    (Diurnal, {"hours": 0.0}, "hours"),
    (Churn, {"up": 0.0}, "up = 0.0"),
    (Churn, {"down": inf}, "down = inf"),
    (Crash, {"probability": 1.5}, "probability = 1.5"),
    (Scaled, {"share": -0.1}, "share = -0.1"),
    (Scaled, {"factor": inf}, "factor = inf"),
    (Corrupted, {"entries": 0}, "entries = 0"),
    (DuplicateUpload, {"within": -1.0}, "within = -1.0"),
    (Offset, {"low": -1.0}, "low = -1.0: must be 0 or more"),
    (Offset, {"low": 9.0, "high": 1.0}, "low = 9.0 is above high = 1.0"),
    (Bandwidth, {"low": 0.0}, "low = 0.0"),
    (Bandwidth, {"latency": -1.0}, "latency = -1.0"),
    (Bandwidth, {"upload": 0.0}, "upload = 0.0"),
    (Growing, {"start": (0.5, 0.2)}, r"start = \(0.5, 0.2\): must be a share"),
    (Growing, {"start": (-0.1, 0.2)}, "start"),
    (Growing, {"start": (0.1, 1.5)}, "start .*at most 1"),
    (Growing, {"start": (0.1, 0.2, 0.3)}, "start"),
    (Growing, {"rate": -0.001}, "rate = -0.001"),
    (Growing, {"rate": inf}, "rate"),
    (Growing, {"per": "hour"}, "per = 'hour': 'round' or 'second'"),
    (Growing, {"min_examples": 0}, "min_examples = 0"),
    (Drifting, {"strength": 1.5}, "strength = 1.5"),
    (partition.Dirichlet, {"alpha": 0.0}, r"alpha = 0\.0"),
    (partition.Dirichlet, {"min_examples": 0}, "min_examples = 0"),
    (partition.DirichletEqual, {"alpha": 0.0}, r"alpha = 0\.0"),
    (partition.DualDirichlet, {"sizes": -1.0}, r"sizes = -1\.0"),
    (partition.DualDirichlet, {"classes": inf}, "classes = inf"),
    (ClassSubsets, {"fewest": 4, "most": 3}, "fewest = 4, most = 3"),
    (ClassSubsets, {"mean": 0.0}, r"mean = 0\.0"),
    (ClassSubsets, {"deviation": -1.0}, r"deviation = -1\.0"),
    (MainClass, {"share": 1.1}, r"share = 1\.1"),
    (MainClass, {"main": 0}, "main = 0"),
    (MainClass, {"size": 0}, "size = 0"),
    (partition.Pieces, {"sizes": ()}, r"sizes = \(\)"),
    (partition.Pieces, {"sizes": (1, -1)}, r"sizes = \(1, -1\)"),
    (Natural, {"min_examples": 0}, "min_examples = 0"),
    *((Draws, {"size": size}, "size = ") for size in (0, -1, 2.5, True, (1, 2, 3), (5, 4), (0, 3), (1.0, 2), ())),
    *((Draws, {"alpha": alpha}, "alpha = ") for alpha in (0.0, -1.0, inf, nan)),
    (Mlp, {"hidden": ()}, r"hidden = \(\): needs at least one"),
    (Mlp, {"hidden": (4, 0)}, r"hidden = \(4, 0\)"),
    (Cnn, {"channels": ()}, r"channels = \(\)"),
    (Cnn, {"hidden": (0,)}, r"hidden = \(0,\)"),
    (Cnn, {"kernel": 4}, "kernel = 4: must be odd"),
    (Cnn, {"padding": "sane"}, "padding = 'sane': 'same' or 'valid'"),
    (Cnn, {"pool": "all"}, "pool = 'all'"),
    (ResNet, {"depth": 50}, "depth = 50: 18 or 34"),
    (ResNet1d, {"width": 0}, "width = 0"),
    (TextCnn, {"vocabulary": 1}, "vocabulary = 1"),
    (TextCnn, {"widths": ()}, r"widths = \(\)"),
    (TextCnn, {"dropout": 1.0}, r"dropout = 1\.0"),
    (Lstm, {"hidden": 0}, "hidden = 0"),
    (UNet3d, {"levels": 0}, "levels = 0"),
    (EfficientNet, {"dropout": -0.1}, r"dropout = -0\.1"),
    (DistilBert, {"rank": 0}, "rank = 0"),
    (DistilBert, {"alpha": 0.0}, r"alpha = 0\.0"),
    (DistilBert, {"dropout": 1.0}, r"dropout = 1\.0"),
    (Synthetic, {"alpha": -1.0}, "alpha"),
    (Synthetic, {"beta": inf}, "beta"),
    (Synthetic, {"users": 0}, "users = 0"),
    (Synthetic, {"inputs": 0}, "inputs = 0"),
    (TwentyNews, {"vocabulary": 2}, "vocabulary = 2"),
    (AgNews, {"length": 0}, "length = 0"),
    (BeijingAir, {"hours": 0}, "hours = 0"),
    (BeijingAir, {"carry": -1}, "carry = -1"),
    (FitRec, {"min_workouts": 1}, "min_workouts = 1"),
    (FitRec, {"target": "power"}, "target = 'power'"),
    (Isic2019, {"size": 0}, "size = 0"),
    (Ixi, {"shape": (1, 2)}, r"shape = \(1, 2\)"),
]

# call, words of the message
CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: BeijingAir(train=0.9), r"air train = 0.9, test = 0.2"),
    (lambda: StandIn(of="minst"), "did you mean 'mnist'"),
    (lambda: data.source("digit"), "unknown data set 'digit': did you mean 'digits'"),
    (lambda: data.source("npz"), "data set 'npz' needs settings"),
    (lambda: delays.PerClient(means=(1.0, 2.0)).mean_of(0, 2), "no delay for client 2, there are 2"),
    (lambda: Natural().split(torch.zeros(3), 0, 1, torch.zeros(3)), "clients = 0"),
    (lambda: partition.Iid().split(torch.zeros(10), 0, seed=1), "clients = 0"),
    *((lambda n=n: Draws(size=2).split(torch.zeros(10), n, seed=0), "must be from 1 to 10000000") for n in (0, 10**24)),  # type: ignore[misc]
    (lambda: Linear().build((4,), 0, 1), "num_outputs = 0"),
    (lambda: Linear().build((), 2, 1), r"input shape \(\) is empty"),
    (lambda: Cnn().build((64,), 10, 1), r"cnn needs inputs \(channels, height, width\), got shape \(64,\): use mlp"),
    (lambda: Cnn(channels=(4, 4, 4, 4)).build((1, 8, 8), 10, 1), "4 poolings leave nothing of 8×8 inputs"),
    (lambda: FEDCOMPASS_MNIST.build((1, 8, 8), 10, 1), "2 poolings leave nothing of 8×8 inputs"),
    (lambda: LeNet5().build((1, 15, 28), 10, 1), "lenet5 needs images of at least 16×16, got 15×28"),
    (lambda: Vgg11().build((1, 28, 28), 10, 1), "vgg11 .* needs at least 32×32, got 28×28"),
    (lambda: ResNet1d().build((9, 6), 6, 1), "series of length 7 or more, got 6"),
    (lambda: ResNet1d().build((1, 8, 8), 6, 1), r"resnet1d needs inputs \(channels, length\), .*: use resnet"),
    (lambda: TextCnn().build((4,), 4, 1), "texts of 4 words are shorter than the widest filter, 5"),
    (lambda: Lstm().build((1, 8, 8), 4, 1), r"lstm needs inputs \(length, features\)"),
    (lambda: UNet3d().build((1, 3, 8, 8), 2, 1), "2 poolings leave nothing of 3×8×8 volumes"),
    (lambda: DistilBert().build((3, 32, 32), 10, 1), r"distilbert needs inputs \(length\), got shape \(3, 32, 32\)"),
]

# ---------------------------------------------------------------- tables of one test each

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
THREE_OWNERS = torch.tensor([0, 0, 1, 1, 2])


def labels(examples: int, classes: int = 5) -> Tensor:
    """Return labels of examples whose classes take turns."""
    return torch.arange(examples) % classes


HAR_FILES = [
    ("train/y_train.txt", "1\n7\n2\n", "label 7 is out of range: 1 to 6"),
    ("train/y_train.txt", "1\n6\n", r"has 3 × 128 numbers, expected 2 × 128"),
    ("train/subject_train.txt", "1\n", "has 1 subjects for 3 windows"),
    ("train/subject_train.txt", "1.5\n2\n3\n", "each line must have one integer"),
    ("train/subject_train.txt", "1\ninf\n3\n", "each line must have one integer"),
    ("train/y_train.txt", "1\ninf\n2\n", "each line must have one integer"),
    ("test/Inertial Signals/body_acc_x_test.txt", "1 2 three\n", "not a table of numbers"),
    ("test/Inertial Signals/body_acc_x_test.txt", "1 2\n1\n", "not a table of numbers"),
]
HAR_NOT_FINITE = r"body_acc_x_test.txt row 2 has values that are not finite"
EXTRASENSORY_COPY = r"AA-1.features_labels.csv.gz and .*AA-1.features_labels.csv belong to the same user: remove one"
# settings of the files, another content of one of them, part of the message
EXTRASENSORY_FILES: list[tuple[dict[str, int], bytes | None, str]] = [
    ({"label": 3}, None, "labels must be 0, 1 or nan"),
    ({"rows": 3}, None, "has 3 rows: too few"),
    ({}, gzip.compress(b"timestamp" * 50, mtime=0)[:-20], "AA-1.* is truncated or damaged"),
    ({}, b"timestamp,a,b\n1,2,3\n", "expected the columns timestamp, features, label:"),
    ({}, b"timestamp,raw_acc:mean,label:WALKING,label_source\n" + b"1,x,1,2\n" * 9, "not a table of numbers"),
]
BEIJING_CELLS = [
    ({(2, 11): "warm"}, "TEMP = 'warm' in row 4 is not a number"),
    ({(2, 11): "inf"}, "TEMP = 'inf' in row 4 is not a number"),
    ({(2, 15): '"UP"'}, "wind direction 'UP' is none of N, NNE"),
    ({(2, 2): "13"}, "year, month, day and hour"),
    ({(2, 3): "1.5"}, "year, month, day and hour must be integers in every row"),
    ({(2, 1): "99999"}, "year 99999 is out of range: 1900 to 2100"),
    ({(2, 1): "1e18"}, r"year 1e\+18 is out of range"),
    ({(2, 17): '"B"'}, "has 2 stations"),
    ({(2, 17): '"A",1'}, "row 4 has 19 cells, the header 18"),
]
BEIJING_WINDOW = "no window of 48 hours is complete"
KDD_HEAD = "stationId,utc_time,PM2.5,PM10,NO2,CO,O3,SO2\n"
KDD_FILES = [
    (f"{KDD_HEAD}dongsi_aq,2017-01-01 00:00:00,1,1,1,1,1,1\n", "have no area in common"),
    (f"{KDD_HEAD}shunyi_aq,yesterday,1,1,1,1,1,1\n", "utc_time must have the form"),
    (f"{KDD_HEAD}shunyi_aq,NaT,1,1,1,1,1,1\n", "utc_time 'NaT' is out of range: years from 1900 to 2100"),
    (f"{KDD_HEAD}shunyi_aq,9999-01-01 00:00:00,1,1,1,1,1,1\n", "utc_time '9999-01-01 00:00:00' is out of range"),
    ("station,utc_time\nshunyi,1\n", "has no column 'stationId'; its columns: station, utc_time"),
]
CIFAR_BATCHES = [
    (b"", "has 0 bytes, not a multiple of the record size 3073"),
    (bytes(3072), "has 3072 bytes, not a multiple of the record size"),
    (bytes([10]) + bytes(3072), "each image needs one label from 0 to 9"),
]
HEART_LINES = [
    ("40,1,1,130,200,0,0,150,0,1.5,?,?,?,9", "the diagnosis \\(last column\\) must be 0 to 4"),
    ("40,1,1,130", "line 1 has 4 values, expected 14"),
    ("old,1,1,130,200,0,0,150,0,1.5,?,?,?,0", "column 1 = 'old'"),
]
TCGA_CELLS = [
    ({"E": 2}, "E must be 0 or 1"),
    ({"T": -1}, "T must be 0 days or more"),
    ({"f3": "x"}, "f3 = 'x' in row 3 is not a number"),
]
TCGA_SPLIT_ROWS = [
    ("P9,train,train_0", "has the patient P9, who is not in"),
    ("P2,train,train_6", "'train_6' of P2 is out of range"),
]
IXI_LABEL = r"voxels must be 1 \(brain\) or 0"
# address, published checksum, reason
DOWNLOADS = [
    ("{address}/gone", "0" * 32, "answers 404"),
    ("{address}/short", "0" * 32, "IncompleteRead|3 of 5 bytes arrived"),
    ("{address}/whole", "0" * 32, "the download has MD5 5d41402abc4b2a76b9719d911017c592"),  # the MD5 of "hello"
    ("{address}/whole", "0" * 64, "the download has SHA256 2cf24dba.*, the published file has 0{64}"),
    ("{address}/whole", None, "it is not downloaded automatically"),
    ("http://127.0.0.1:9/file", "0" * 32, "download failed: http://127.0.0.1:9/file: Connection refused"),
    ("file:///etc/passwd", "0" * 32, "only http and https"),
]
SHA256_DIFFERS = "set/file is damaged: its SHA256 is 2cf24dba.*, the published file has 0{64}"
DOWNLOAD_TOO_LARGE = "more than 4 bytes arrive"
MISSING = "is missing"
DOWNLOAD_FORBIDDEN = "OFFBEAT_DOWNLOAD forbids downloads"
ARCHIVE_DAMAGED = r"all.tar.gz is damaged: its MD5 is"
ARCHIVE_OTHER = r"was unpacked and .*a.txt is still missing: it is not the published archive"
ARCHIVE_FOLDER = r"inner/b.txt is missing, .*: remove .*set/inner so that it can be unpacked"
ZIP_ENCRYPTED = r"all.zip is encrypted"
TAR_LINK = "'inside', which is not a file or folder: refused"
ZIP_LINK = "contains the link 'inside': refused"
ARCHIVE_CUT = r"cut.tar.gz is not a complete archive"
MEMBER_OUTSIDE = "which would be written outside the data root: refused"
DATASETS = [
    ({"y_train": torch.tensor([0, 1, 2, 0, 1, 3])}, "training label 3 is out of range: 0 to 2"),
    ({"y_test": torch.tensor([0, -1, 2, 0, 1, 2])}, "test label -1 is out of range"),
    ({"x_test": torch.full((6, 2), torch.inf)}, "test inputs: 6 of 6 are not finite, the first is number 0"),
    ({"groups": torch.zeros(5, dtype=torch.int64), "group_names": ("a",)}, "training inputs: 6, but owners of 5"),
    ({"groups": torch.tensor([0, 0, 0, 0, 0, 1]), "group_names": ("a",)}, "training owner 1 is out of range: 0 to 0"),
    ({"num_classes": None, "task": "multilabel", "y_train": Y[:, None], "y_test": Y[:, None]}, "must be 0 or 1"),
    ({"num_classes": None, "task": "multilabel"}, r"targets have shape \(\) for each example: multilabel needs 0 or 1"),
    (
        {"x_test": X.double()},
        r"training inputs are \(2,\) float32, test inputs \(2,\) float64: both must have the same shape and dtype",
    ),
    ({"x_test": X[:, :1]}, r"training inputs are \(2,\) float32, test inputs \(1,\) float32"),
    ({"y_test": Y.int()}, r"training targets are \(\) int64, test targets \(\) int32"),
    ({"y_train": Y.float(), "y_test": Y.float()}, "are torch.float32: classes are integers"),
    ({"y_train": Y[:, None], "y_test": Y[:, None]}, "classification needs one class"),
    ({"task": "segmentation"}, "segmentation needs a class for each pixel"),
    ({"num_classes": None}, "are torch.int64: regression needs real numbers"),
    ({"num_classes": None, "task": "classification"}, "classification needs num_classes"),
    ({"num_classes": None, "task": "survival", "y_train": X[:, 0], "y_test": X[:, 0]}, "survival needs time and event"),
    ({"num_classes": None, "task": "survival", "y_train": X, "y_test": X}, "events must be 0 or 1"),
    ({"x_test": X[:0], "y_test": Y[:0]}, "0 test inputs, 0 labels"),
    ({"task": "guessing"}, "task 'guessing' is none of classification"),
]
WORKOUTS = [
    ({"altitude": [1.0]}, "must be lists of equal length"),
    ({"heart_rate": "fast"}, "line 1 is not a workout"),
    ({"altitude": None}, "lists of equal length|is not a workout|not finite"),
    ({"heart_rate": [float("1e400")] * 61}, "line 1 is not a workout|not finite"),
    ({"heart_rate": [10**400] * 61}, "line 1 is not a workout"),
]
FITREC_LONG = r"no window of 10 steps .*2 of 2 workouts left out: longer than two days"
FITREC_LINE = "line 1 is not a workout"
FITREC_USER = "line 1 has no userId and sport"
FITREC_USERS = "2 users have at least 2 workouts of one sport, 30 are needed"
ISIC_ROWS = [
    (("a,8,0,train", "b,1,0,test"), "target must be an integer from 0 to 7"),
    (("a,1,0,train", "b,1,0,val"), "fold must be train or test, and both must occur, not 'val'"),
    (("../../a,1,0,train", "b,1,0,test"), "image must be a bare name"),
    (("a,1,nan,train", "b,1,0,test"), "center nan must be an integer from 0 up"),
    (("a,1,1.5,train", "b,1,0,test"), "center 1.5 must be an integer"),
    (("z,1,0,train", "b,1,0,test"), "z.jpg is missing"),
    (("a,1,0",), "row 2 has 3 cells, the header 4"),
]
TINY_IMAGE = r"n01_0.JPEG is not a complete image"
TINY_LABEL = r"line 1: 'n99' is not a class of wnids.txt"
OWNERS = [
    ({"groups": [0] * 5}, "6 training inputs, but owners of 5"),
    ({"groups": [0] * 6, "test_groups": [0] * 2}, "3 test inputs, but owners of 2"),
    ({"groups": [0] * 6, "test_groups": []}, "3 test inputs, but owners of 0"),
    ({"test_groups": [0] * 3}, "test_groups needs test and groups"),
]
PAIRS = [
    ([], "mine: training: no examples"),
    ([3], "example 0 is not a pair"),
    (
        [(torch.ones(2), 0), (torch.ones(3), 0)],
        r"input 1 has shape \(3,\), the first \(2,\): all must have the same shape",
    ),
    ([("text", 0)], "input 0 is a str, not numbers"),
]
NPZ_NONE = r"has no .npz files"
NPZ_OBJECTS = "has objects that are not numbers: refused"
NPZ_NAMES = "must have x and y"
NPZ_ROWS = "both need the same number of rows"
NPZ_CUT = r"is not a complete .npz file"
NPZ_PICKLE = r"is not a complete .npz file|refused"
NPZ_SHAPES = r"b.npz has .* all clients must be the same"
# partition, labels, clients, owners of the examples, part of the message
PARTITIONS: list[tuple[Any, Tensor, int | None, Tensor | None, str]] = [
    (partition.Iid(), labels(4), 5, None, "5 clients of at least 1 example need 5, there are 4"),
    (Dirichlet(min_examples=10), labels(300), 40, None, "40 clients of at least 10 examples need 400, there are 300"),
    (
        Dirichlet(alpha=0.001), labels(1000, classes=2), 20, None,
        "alpha=0.001 left a client with fewer than 2 examples in 100 tries .*raise alpha, lower min_examples or use",
    ),
    (partition.DirichletEqual(), labels(4), 5, None, "5 clients of at least 1 example need 5, there are 4"),
    (
        partition.DualDirichlet(sizes=0.001), labels(1000), 20, None,
        "dual-dirichlet left a client with fewer than 2 examples in 100 tries .*raise sizes",
    ),
    (ClassSubsets(most=6), labels(1000), 5, None, "most = 6, but the data has 5 classes: lower most"),
    (ClassSubsets(fewest=1, most=1), labels(1000), 4, None, "4 clients .* 1 classes cannot have all 5: raise most"),
    # every one of 12 clients would have to draw another of 12 classes: 12! / 12^12 = 5e-5 a try
    (
        ClassSubsets(fewest=1, most=1), labels(120, classes=12), 12, None,
        "in 100 tries no draw gave each of 12 classes a client .*raise fewest and most",
    ),
    # 200 * 5 // 7 = 142 each, 134 of the main class: clients 0 and 5 share class 0, the other five take 8 // 4 = 2
    (MainClass(), labels(1000), 7, None, "7 clients need 278 .* class 0, there are 200: use a multiple of 5 clients"),
    # 13 clients have class 0, 37 another: 13 × 2280 + 37 × 40 = 31,120
    (
        MainClass(main=1, size=2400), labels(120_000, classes=4), 50, None,
        "50 clients need 31120 examples of class 0, there are 30000: .* or give a smaller size",
    ),
    (MainClass(main=5), labels(1000), 5, None, "5 main classes of 5: there are no other classes"),
    (MainClass(share=0.1), labels(25), 5, None, "5 examples for each client are too few for 1 main classes"),
    (
        partition.Pieces(), labels(1000), 6, None,
        "5 classes in 4 pieces make 20, which 6 clients cannot share evenly: use 1, 2, 4, 5, 10, 20 clients",
    ),
    (partition.Pieces(sizes=(1, 1000)), labels(50), 10, None, "with 50 examples in 10 pieces a client has none"),
    (partition.Disjoint(), labels(100), 6, None, "disjoint: 6 clients, but only 5 classes"),
    (Natural(), labels(100), 5, None, "natural needs data whose examples have owners"),
    (Natural(), torch.zeros(5), 4, THREE_OWNERS, "4 clients, but the data has 3 owners: set clients to 3 or fewer"),
    (
        Natural(min_examples=2), torch.zeros(5), 3, THREE_OWNERS,
        "natural: 3 clients, but the data has 2 owners with 2 examples or more: set clients to 2 or fewer",
    ),
    (
        Natural(min_examples=9), torch.zeros(5), None, THREE_OWNERS,
        "natural: all clients, but the data has 0 owners with 9 examples or more: lower min_examples",
    ),
    (Natural(), torch.zeros(4), 2, THREE_OWNERS, r"natural: owners of shape \(5,\) for 4 examples"),
    (Draws(size=(1, 20)), labels(10), 5, None, "draws: 20 examples for each client, there are 10: lower size"),
    (Draws(size=2, alpha=1.0), torch.rand(10), 5, None, "draws with alpha needs one class label for each example"),
    *(
        (cls(), torch.rand(100), 5, None, f"{name} needs one class label for each example, got torch.float32.*use iid")
        for name, cls in partition.PARTITIONS.items()
        if cls not in (partition.Iid, Natural, Draws)
    ),
]  # fmt: skip
RECORDINGS = [
    ("client,t,seconds_per_step\n0,5,1\n", r"row 2: client 0 begins at t = 5: begin at 0"),
    ("client,t,seconds_per_step\n0,0,1\n0,9,\n", r"row 3: seconds_per_step is empty"),
    ("client,t,seconds_per_step\n0,0,1\n0,9\n", r"row 3: seconds_per_step is empty"),
    ("client,t,seconds_per_step\n0,0,1\n1,0,1\n0,9,1\n0,8,1\n", r"row 5: client 0 has t = 8 after 9: sort"),
    ("client,t,seconds_per_step\n0,0,1\n0,0,2\n", r"row 3: client 0 has t = 0 after 0: sort"),
    ("client,t,seconds_per_step\n0,-1,1\n", r"row 2: t = -1: times must be 0 or more"),
    ("client,t,seconds_per_step\n0,0,-3\n", r"row 2: seconds_per_step = -3: must be positive"),
    ("client,t,seconds_per_step\n0,0,0\n", r"row 2: seconds_per_step = 0: must be positive"),
    ("client,t,seconds_per_step\n0,0,fast\n", r"row 2: seconds_per_step = 'fast' is not a number"),
    ("client,t,seconds_per_step\n0,0,inf\n", r"row 2: seconds_per_step = inf: must be finite"),
    ("client,t,seconds_per_step\n-1,0,1\n", r"row 2: client = -1: clients must be integers"),
    ("client,t,seconds_per_step\n0.5,0,1\n", r"row 2: client = 0.5: clients must be integers"),
    ("client,t,seconds_per_step\n0,0,1,7\n", r"row 2: more cells than columns"),
    ("client,t,seconds_per_step,speed\n0,0,1,7\n", r"unknown column 'speed'"),
    ("client,t,seconds_per_step,t\n0,0,1,0\n", r"column 't' occurs 2 times"),
    ("client,t,seconds_per_step\n0,0,1_0\n", r"row 2: seconds_per_step = '1_0' is not a number"),
    ("client,t,seconds_per_step\n", r"no rows"),
    ("", r"no column 'client'; it has none"),
    ("client,t,seconds_per_step\n0,0,1\n", r"no rows for client 1: it has 1 clients"),
]
PARQUET = [
    (
        1,
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        "cannot read the recording .*parquet: .*invalid start byte",
    ),
    (1, RuntimeError("unknown codec\nmore"), "cannot read the recording .*trace.parquet: unknown codec$"),
    (10**12, None, "trace.parquet has more than 20,000,000 rows: refused"),
]
RECORDING_COLUMN = "no column 'seconds_per_step'; it has 'client', 't', 'mbps'"
RECORDING_AVAILABLE = r"row 2: available = maybe: must be 0 or 1"
RECORDING_MISSING = r"cannot read the recording .*missing\.csv: No such file"
RECORDING_BINARY = r"cannot read the recording .*binary\.csv"
RECORDING_PYARROW = "needs pyarrow: pip install pyarrow, or save it as CSV"
COUNTS = [
    (lambda: ExampleCounts([]), "no clients"),
    (lambda: ExampleCounts([4, -2]), "client 1 has -2 examples"),
    (lambda: ExampleCounts.constant(0, 5), "0 clients: at least one"),
]
STEPS_NEEDED = "delays per step need the steps"
NO_CLIENT = "no data for client 2: there are 2 clients"
READ_ONLY = "read-only"
AG_NEWS_TEXTS = [
    ('"5","a","b"\n', r"row 1: class '5' is out of range: 1 to 4"),
    ('"1","a"\n', r"row 1 has 2 cells, expected class, title, description"),
    ('"1","a","b', "is not a complete CSV file"),
    ("", "is empty"),
]
NEWSGROUP_MISSING = r"20news-bydate-test/sci.space is missing"
TOKENIZER_PADDING = "pads with 9: the padding number must be 0"
TOKENIZER_EXTRA = "needs the extra 'text'"
TOKENIZER_FOLDER = r"nothing is not a folder: put a pretrained tokenizer there"
AG_NEWS_DAMAGED = r"train.csv is damaged"
RECORDING_CLIENT = "no rows for client 2: it has 2 clients"
DISTILBERT_EXTRA = r"distilbert needs the extra 'text' .*pip install 'offbeat\[text\]'"
DISTILBERT_FILES = r"nowhere.config.json is missing: put config.json and model.safetensors"
DISTILBERT_TOKENS = "texts of 13 tokens, this encoder takes at most 12"
DISTILBERT_ENCODER = "does not have an encoder that transformers can read"
FAULT_NAME = "unknown faults 'crsh': did you mean 'crash'"
FAULT_PROBABILITY = r"faults\[1\].*probability = 7"
FAULT_SETTING = "unknown setting 'hours_a_day'"
MNIST_DAMAGED = "is damaged: its MD5 is"
MNIST_LABEL = "each image needs one label from 0 to 9"
CLIENT_DATA = "no data for client 12: there are 12 clients, 0, 1, 2, 3, 4, …"
SPLIT_SIZE = r"client \d+ has 1 examples: too few for a test part of 0.2 of them"
ROWS_COUNT = "client 1 has 1 rows, but its count is 2"
PARTITION_NAME = "unknown partition 'dirchlet': did you mean 'dirichlet'"
STREAM_NAME = r"unknown streaming 'growin': did you mean 'growing'\?"
STREAM_PER = r"streaming\.per"
TOO_MANY_EXAMPLES = "cannot train on 1000000 examples"
CLASS_LABELS = "need one class label for each example"

# ---------------------------------------------------------------- by a key, for inputs that a test makes

PRETRAINED_FILES = {
    "other": "has the weights of another model: it lacks 'bn1.weight'",
    "torn": "cannot be read as safetensors",
    "none": "is missing: put the pretrained weights there",
}
NPZ_HEADERS = {"(1000000000000000,)": "more values than fit in memory", "(1000,)": "is not a complete .npz file"}
CIFAR_PICKLES = {
    "function": "it names posix.system, which arrays do not need: refused",
    "no arrays": "is not a batch of CIFAR",
    "two images": "has 2 images and 1 labels",
    "label 11": "each image needs one label from 0 to 9",
    "huge label": "each image needs one label from 0 to 9",
    "cut": "is not a complete pickle",
    "text": "is not a complete pickle",
}
NIFTI_FILES = {
    "text": "is not a NIfTI-1 file",
    "short": "has 7 bytes of values, its header says 8",
    "type": "NIfTI type 1792 is not supported",
    "cut": "is truncated or damaged",
    "offset nan": "offset nan",
    "offset inf": "offset inf",
    "intercept": "intercept nan",
}
IDX_FILES = {
    "empty": "not an IDX file",
    "text": "not an IDX file",
    "header": "truncated: its header says 3 dimensions",
    "short": "has 2 bytes of data, its header says 3",
    "long": "has 4 bytes of data, its header says 3",
    "cut": "truncated or damaged",
    "dimensions": "is damaged: its header says 255 dimensions",
}
