"""A site tried out without joining: its data is loaded, one step is trained, its certificates are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from offbeat.core.errors import ConfigError, DataError, in_words
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import one_thread
from offbeat.core.vector import flatten
from offbeat.deploy import rule_codec
from offbeat.deploy.site_data import Source
from offbeat.experiment.spec.config import Experiment

SOON = 30  # days before its end from which on a certificate is worth a word
CLIENT = 0


@dataclass(frozen=True)
class Check:
    """What was found."""

    examples: int
    tested: int
    inputs: tuple[int, ...]
    parameters: int
    layout: str  # digest: the same at every site
    update_bytes: int
    load_seconds: float
    step_seconds: float
    loss: float | None  # on the site's test examples, of the model as it was made
    memory_bytes: int | None  # at most so far, of this process
    certificates: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        shape = "x".join(map(str, self.inputs)) or "a number"
        tested = f"{self.tested} to test" if self.tested else "none to test: it will not be asked how good models are"
        memory = "" if self.memory_bytes is None else f", {_size(self.memory_bytes)} of memory in all"
        loss = "" if self.loss is None else f", loss {self.loss:.3g} before training"
        size = f"{self.parameters} parameters, {_size(self.update_bytes)} an update"
        return [
            f"data: {self.examples} examples to train on ({shape} each), {tested}; loaded in {self.load_seconds:.1f} s",
            f"model: {size}, layout {self.layout[:12]}{loss}",
            f"one step: {self.step_seconds:.2f} s{memory}",
            *self.certificates,
        ]


def check_site(source: Source, experiment: Experiment | None = None, certificates: Sequence[Path] = ()) -> Check:
    """Raises one line for what cannot be used; nothing is sent, nothing is written."""
    # a certificate that is no good is known before the data is loaded
    told = tuple(certificate_line(path) for path in certificates)
    experiment = experiment or Experiment()
    began = time.perf_counter()
    ground = source.ground(experiment)
    examples = ground.num_examples(0, 0.0)
    loaded = time.perf_counter()
    with one_thread():
        trainer = ground.trainer(CLIENT)
        base = flatten(trainer.binding.module)
        work = LocalWork(steps=1)
        job = Job(0, CLIENT, 0, base, 0, work, examples, {}, experiment.seed)
        try:
            local = trainer(job).local
        except Exception as error:
            raise DataError(f"one step of training failed: {in_words(error)}") from error
        stepped = time.perf_counter()
        _check_moved(local)
        tested, scores = ground.scores(base)
    return Check(
        examples=examples,
        tested=tested,
        inputs=trainer.data.shape,
        parameters=ground.layout.num_params,
        layout=rule_codec.layout_digest(ground.layout, ground.dtype),
        update_bytes=base.nbytes,
        load_seconds=loaded - began,
        step_seconds=stepped - loaded,
        loss=scores.get("loss"),
        memory_bytes=_peak(),
        certificates=told,
    )


def certificate_line(path: Path, now: datetime | None = None) -> str:
    """Until when a certificate holds; an error for one that does not."""
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        raise ConfigError("certificates need the extra flower: pip install 'offbeat[flower]'") from None
    now = now or datetime.now(UTC)
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path} is no certificate (PEM)") from None
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise ConfigError(f"{path} expired on {last:%Y-%m-%d}: ask the server's keeper for a new one")
    if now < first:
        raise ConfigError(f"{path} is valid from {first:%Y-%m-%d %H:%M} UTC on: is this machine's clock right?")
    days = (last - now).days
    return f"certificate: {path} is valid until {last:%Y-%m-%d}, {days} days{': renew it soon' if days < SOON else ''}"


def _check_moved(local: Tensor) -> None:
    if not bool(torch.isfinite(local).all()):
        raise DataError("after one step of training the model is not finite: are the inputs scaled, the labels right?")


def _peak() -> int | None:
    try:
        import resource
        import sys
    except ModuleNotFoundError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
