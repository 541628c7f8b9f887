"""A site's own file: the one we write works, what is wrong with one is a line that says where, and it is tried out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import site_harness
import torch
from site_harness import RUN

from deploy import messages
from offbeat import presets
from offbeat.cli.new import render_template
from offbeat.core.errors import OffbeatError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.core.vector import flatten
from offbeat.deploy import message_codec, rule_codec
from offbeat.deploy.site_check import certificate_line, check_site
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import PartitionSource, SiteFile
from offbeat.engine.live.transport import JobAnswer, JobMessage, Question, Scores
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training

OWN = """
    import torch
    from torch import nn

    def model():
        return nn.Sequential(nn.Linear(3, 2))

    def load_data():
        x = torch.arange(12.0).view(4, 3) / 12
        return {"train": (x, torch.tensor([0, 1, 0, 1])), "test": (x[:2], torch.tensor([0, 1]))}
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("offbeat_site_"):
            del sys.modules[name]


def written(folder: Path, text: str, name: str = "mine.py") -> SiteFile:
    (folder / name).write_text(dedent(text))
    return SiteFile(folder / name)


def starting(folder: Path) -> SiteFile:
    return written(folder, render_template("site.py.txt", NAME="hospital", FILE="hospital.py"), "hospital.py")


def quickstart() -> Experiment:
    return presets.load("quickstart").experiment


def test_the_file_we_write_fits_the_quickstart(tmp_path: Path) -> None:
    ground, made = starting(tmp_path).load(quickstart()), build.setup(quickstart())
    ours = rule_codec.layout_digest(made.layout, made.world.model.dtype)
    assert rule_codec.layout_digest(ground.layout, ground.dtype) == ours
    found = check_site(starting(tmp_path), quickstart())
    assert (found.examples, found.tested, found.inputs, found.parameters) == (480, 119, (1, 8, 8), 4810)
    # 1797 digits, each third of them: 599, a fifth of which is 119; 64 * 64 + 64 + 64 * 10 + 10 parameters
    assert found.update_bytes == 4 * 4810
    assert all("\n" not in line for line in found.lines())
    assert "480 examples to train on (1x8x8 each), 119 to test" in found.lines()[0]


def test_a_site_with_a_file_of_its_own_trains_on_its_own_data(tmp_path: Path) -> None:
    of = site_harness.experiment()
    site = Site(tmp_path / "home", "mine", written(tmp_path, OWN))
    told = site_harness.hello(site.handle(site_harness.greeting(of)))
    assert told.num_examples == 4
    base, work = torch.zeros(8), LocalWork(steps=3)
    order = JobMessage(1, 6, 0, 0, base, work, 4, 5, None)
    got = site_harness.result(site.handle(message_codec.encode(order, RUN)))
    # the same by hand: this module, this data, as client 6
    module = torch.nn.Sequential(torch.nn.Linear(3, 2))
    x = torch.arange(12.0).view(4, 3) / 12
    data = ClientData.separate({6: (x, torch.tensor([0, 1, 0, 1]))})
    expected = Trainer(module, data, of.training)(Job(1, 6, 0, base, 0, work, 4, {}, 5))
    assert torch.equal(got.local, expected.local)
    scores = message_codec.decode(site.handle(message_codec.encode(Question(0.0, 0, base), RUN)), 3)
    assert isinstance(scores, Scores)
    # a model of zeros: both classes are as likely, so the loss is log 2, and the first class is guessed
    assert scores.num_examples == 2
    assert scores.values["loss"] == pytest.approx(0.6931472)
    assert scores.values["acc"] == 0.5


def test_a_loss_of_its_own_is_descended(tmp_path: Path) -> None:
    text = dedent(OWN) + "\ndef loss(outputs, y):\n    return outputs.sum()\n"
    site = Site(tmp_path / "home", "mine", written(tmp_path, text))
    site.handle(site_harness.greeting(site_harness.experiment()))
    order = JobMessage(1, 0, 0, 0, torch.zeros(8), LocalWork(steps=1, lr=1.0), 4, 5, None)
    got = site_harness.result(site.handle(message_codec.encode(order, RUN)))
    # d/db of the sum over a batch of all 4 examples is 4 for both outputs
    assert got.local[6:].tolist() == [-4.0, -4.0]


def test_data_that_grows_is_loaded_again_when_there_is_more(tmp_path: Path) -> None:
    text = """
        from pathlib import Path
        import torch
        from torch import nn

        HERE = Path(__file__).parent

        def num_examples():
            return int((HERE / "count").read_text())

        def model():
            return nn.Sequential(nn.Linear(3, 2))

        def load_data():
            with open(HERE / "loads", "a") as file:
                file.write("x")
            x = torch.arange(60.0).view(20, 3) / 60
            return x[:num_examples()], (torch.arange(20) % 2)[:num_examples()]
    """
    (tmp_path / "count").write_text("4")
    site = Site(tmp_path / "home", "mine", written(tmp_path, text))
    assert site_harness.hello(site.handle(site_harness.greeting(site_harness.experiment()))).num_examples == 4
    for ticket, there in ((1, 4), (2, 4), (3, 9), (4, 9)):
        (tmp_path / "count").write_text(str(there))
        order = JobMessage(ticket, 0, ticket, 0, torch.zeros(8), LocalWork(epochs=1), 4, 5, None)
        reply = site.handle(message_codec.encode(order, RUN))
        assert site_harness.returned(reply).num_examples == there
        assert site_harness.result(reply).num_examples == 4  # what it was told to train on
    assert (tmp_path / "loads").read_text() == "xx"
    (tmp_path / "count").write_text("2")  # it never becomes less
    order = JobMessage(5, 0, 5, 0, torch.zeros(8), LocalWork(epochs=1), 9, 5, None)
    assert site_harness.returned(site.handle(message_codec.encode(order, RUN))).num_examples == 9


def test_fedpsas_sketches_can_be_compared_between_sites_and_with_the_servers(tmp_path: Path) -> None:
    """A site holds digits 0 to 4 only, and still calibrates with ten classes, as the server does."""
    of = replace(quickstart(), strategy=FedPSA(sketch=4))
    text = (
        render_template("site.py.txt", NAME="a", FILE="a.py")
        + "\n_all = load_data\n\n\ndef load_data():\n    x, y = _all()['train']\n"
    )
    ground = written(tmp_path, text + "    return x[y < 5], y[y < 5]\n").load(of)
    probe = ground.trainer(0).probe
    made = build.setup(of)
    assert probe is not None
    assert made.world.probe is not None
    assert torch.equal(probe(made.world.model), made.world.probe(made.world.model))
    with pytest.raises(OffbeatError, match=messages.REAL_CALIBRATION):
        starting(tmp_path).load(replace(of, strategy=FedPSA(calibration="real")))


# ---------------------------------------------------------------- what is wrong is one line


HEAD = "import torch\nfrom torch import nn\n"
MODEL = "def model():\n    return nn.Linear(3, 2)\n"
DATA = HEAD + MODEL + "def load_data():\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nosuchthing\n", "mine.py:1: ModuleNotFoundError: No module named 'nosuchthing'"),
        ("x = (\n", "mine.py:1: SyntaxError: '(' was never closed"),
        ("\n\n1 / 0\n", "mine.py:3: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "mine.py:1: SystemExit: 3"),
        (HEAD + MODEL, "mine.py has no function load_data()"),
        (HEAD + "def load_data():\n    pass\n", "mine.py has no function model()"),
        (HEAD + "def model():\n    return 3\ndef load_data():\n    pass\n", "model() returned int, expected nn.Module"),
        (DATA + "    open('/none/x.csv')\n", "mine.py:6: FileNotFoundError: [Errno 2]"),
        (DATA + "    return 3\n", "load_data() is of type int, expected (inputs, labels)"),
        (DATA + "    return [1], [2]\n", "contains list; convert it with torch.as_tensor"),
        (DATA + "    return {'test': 3}\n", "returned test; 'train' is required"),
        (DATA + "    return torch.ones(4, 3), torch.ones(3).long()\n", "4 inputs but 3 labels"),
        (DATA + "    return torch.ones(0, 3), torch.ones(0).long()\n", "load_data(): no examples"),
        (DATA + "    return torch.ones(2, 3) / 0, torch.zeros(2).long()\n", "2 of 2 inputs are not finite"),
        (DATA + "    return torch.ones(4, 7), torch.zeros(4).long()\n", "does not accept inputs of shape (7,)"),
        (
            DATA + "    return torch.ones(4, 3), torch.full((4,), 9)\n",
            "the largest label is 9, so 10 outputs are needed and there are 2",
        ),
        (
            HEAD + MODEL + "loss = 3\ndef load_data():\n    return torch.ones(4, 3), torch.zeros(4).long()\n",
            "loss is of type int",
        ),
        (dedent(OWN) + "\ndef num_examples():\n    return 'many'\n", "returned 'many', expected a whole number"),
        (
            dedent(OWN) + "\ndef loss(outputs, y):\n    return (outputs * 1e38 * 1e38).sum()\n",
            "the model is not finite",
        ),
        (dedent(OWN) + "\ndef loss(outputs, y):\n    raise KeyError('a\\nb')\n", "KeyError"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_is_wrong_with_a_file_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OffbeatError) as caught:
        check_site(written(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nothing.py", "folder.py", "data.csv"])
def test_what_is_no_python_file_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(OffbeatError, match=messages.NO_PYTHON_FILE):
        check_site(SiteFile(tmp_path / name))


def test_a_part_of_the_experiments_data_is_tried_out_too() -> None:
    of = site_harness.experiment()
    found = check_site(PartitionSource(1), of)
    assert found.examples == build.setup(of).trainer.data.size(1)
    assert found.tested == 0


# ---------------------------------------------------------------- certificates


def certificate(folder: Path, first: datetime, last: datetime) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")])
    builder: Any = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = builder.serial_number(1).not_valid_before(first).not_valid_after(last).sign(key, hashes.SHA256())
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "ca.pem"


NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_certificate_says_until_when_it_holds(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = certificate(tmp_path, NOW - timedelta(days=1), NOW + timedelta(days=100, hours=1))
    assert certificate_line(path, NOW) == f"certificate: {path} is valid until 2026-06-09, 100 days"
    assert certificate_line(path, NOW + timedelta(days=80)).endswith("20 days: renew it soon")
    with pytest.raises(OffbeatError, match=messages.EXPIRED):
        certificate_line(path, NOW + timedelta(days=101))
    with pytest.raises(OffbeatError, match=messages.NOT_VALID_YET):
        certificate_line(path, NOW - timedelta(days=2))


def test_what_is_no_certificate_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    (tmp_path / "ca.pem").write_text("-----BEGIN NOTHING-----")
    with pytest.raises(OffbeatError, match=messages.NO_PEM):
        certificate_line(tmp_path / "ca.pem")
    with pytest.raises(OffbeatError, match=messages.CANNOT_READ):
        check_site(PartitionSource(0), certificates=[tmp_path / "none.pem"])


# ---------------------------------------------------------------- statistics


NORMED = """
    import torch
    from torch import nn

    def model():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    def load_data():
        x = torch.arange(60.0).view(20, 3).sin()
        return x, torch.arange(20) % 2
"""


@pytest.mark.parametrize("how", ["none", "8bit", "topk:0.5"])
def test_statistics_that_stay_at_the_site_do_and_counters_are_exact_when_compressed(how: str, tmp_path: Path) -> None:
    """training.bn = local: the site's own statistics are memory, and go on from its last accepted job; what it sends
    has those it was sent. With shared ones, what is compressed is the trainable part alone: counters count steps."""
    local = site_harness.experiment(training=Training(batch=10, steps=2, bn="local"))
    shared = site_harness.experiment(training=Training(batch=10, steps=2))
    source = written(tmp_path, NORMED)
    for of, counted in ((local, 0.0), (shared, 2.0)):
        ground = source.load(of)
        base = flatten(ground.trainer(0).binding.module)
        run = f"{RUN}-{of.training.bn}"
        site = Site(tmp_path / of.training.bn, "mine", source)
        site.handle(site_harness.greeting(of, how, run))
        memory: dict[str, torch.Tensor] = {}
        for ticket, accepted in ((1, None), (2, 1)):
            order = JobMessage(ticket, 0, ticket - 1, 0, base, LocalWork(), 20, 5, accepted)
            message = message_codec.decode(
                site.handle(message_codec.encode(order, run)), 1, run=run, find_base=lambda _, b=base: b
            )
            assert isinstance(message, JobAnswer)
            assert isinstance(message.answer, Result)
            expected = ground.trainer(0)(Job(ticket, 0, ticket - 1, base, 0, LocalWork(), 20, memory, 5))
            size = ground.layout.num_params
            assert torch.equal(message.answer.local[size:], expected.local[size:])
            assert float(message.answer.local[-1]) == counted  # num_batches_tracked is the last entry
            if how == "none":
                assert torch.equal(message.answer.local, expected.local)
            memory = dict(expected.memory)


def test_what_the_own_code_says_stays_at_the_site(tmp_path: Path) -> None:
    """It may be of the data: the server is told the kind and the line, sent.log has that, and the trainer ends."""
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\ndef model():\n    return torch.nn.Linear(3, 2)\n"
        "def load_data():\n    return float('Mueller, Anna')\n"
    )
    site = Site(tmp_path / "home", "basel", SiteFile(own))
    with pytest.raises(OffbeatError) as raised:
        site.handle(site_harness.greeting(site_harness.experiment()))
    assert str(raised.value) == f"{own}:5: ValueError (the message is in the log of the site)"
    assert "Mueller" in str(site.cannot_join)
    assert site.ended.is_set()
    assert (tmp_path / "home" / "sent.log").read_text().split()[1:] == ["error", f"bytes={len(str(raised.value))}"]
