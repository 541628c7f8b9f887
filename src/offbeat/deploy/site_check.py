"""Check a site without joining: load its data, train one step and read its certificates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from offbeat.core.errors import ConfigError, DataError, describe_error
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import one_thread
from offbeat.core.vector import flatten
from offbeat.deploy import rule_codec
from offbeat.deploy.site_data import SiteSource
from offbeat.experiment.spec import Experiment

RENEWAL_DAYS = 30  # a certificate that expires sooner causes a warning
CLIENT = 0


@dataclass(frozen=True)
class SiteCheck:
    """The results of a site check."""

    examples: int
    tested: int
    inputs: tuple[int, ...]
    parameters: int
    layout: str  # digest, equal at all sites
    update_bytes: int
    load_seconds: float
    step_seconds: float
    loss: float | None  # of the untrained model on the site's test examples
    memory_bytes: int | None  # peak of this process
    certificates: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        shape = "x".join(map(str, self.inputs)) or "a number"
        tested = f"{self.tested} to test" if self.tested else "no test examples: this site evaluates no models"
        memory = "" if self.memory_bytes is None else f", {_format_size(self.memory_bytes)} of memory in total"
        loss = "" if self.loss is None else f", loss {self.loss:.3g} before training"
        size = f"{self.parameters} parameters, {_format_size(self.update_bytes)} per update"
        return [
            f"data: {self.examples} examples to train on ({shape} each), {tested}; loaded in {self.load_seconds:.1f} s",
            f"model: {size}, layout {self.layout[:12]}{loss}",
            f"one step: {self.step_seconds:.2f} s{memory}",
            *self.certificates,
        ]


def check_site(
    source: SiteSource, experiment: Experiment | None = None, certificates: Sequence[Path] = ()
) -> SiteCheck:
    """Check a site without sending or writing anything; raise an error with one line for anything unusable."""
    # certificates first, because loading data may take long
    certificate_lines = tuple(certificate_line(path) for path in certificates)
    experiment = experiment or Experiment()
    began = time.perf_counter()
    ground = source.load(experiment)
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
            raise DataError(f"one step of training failed: {describe_error(error)}") from error
        stepped = time.perf_counter()
        _check_finite(local)
        tested, scores = ground.scores(base)
    return SiteCheck(
        examples=examples,
        tested=tested,
        inputs=trainer.data.input_shape,
        parameters=ground.layout.num_params,
        layout=rule_codec.layout_digest(ground.layout, ground.dtype),
        update_bytes=base.nbytes,
        load_seconds=loaded - began,
        step_seconds=stepped - loaded,
        loss=scores.get("loss"),
        memory_bytes=_peak_memory(),
        certificates=certificate_lines,
    )


def certificate_line(path: Path, now: datetime | None = None) -> str:
    """Describe until when a certificate is valid; raise ConfigError for an invalid one."""
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        raise ConfigError("certificates need the extra 'flower': pip install 'offbeat[flower]'") from None
    now = now or datetime.now(UTC)
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path} is not a PEM certificate") from None
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise ConfigError(f"{path} expired on {last:%Y-%m-%d}: ask the operator of the server for a new one")
    if now < first:
        raise ConfigError(f"{path} is not valid before {first:%Y-%m-%d %H:%M} UTC: check the clock of this machine")
    days = (last - now).days
    hint = ": renew it soon" if days < RENEWAL_DAYS else ""
    return f"certificate: {path} is valid until {last:%Y-%m-%d}, {days} days{hint}"


def _check_finite(local: Tensor) -> None:
    """Raise DataError if training made the model infinite."""
    if not bool(torch.isfinite(local).all()):
        raise DataError("the model is not finite after one step: check the labels and the scale of the inputs")


def _peak_memory() -> int | None:
    """Return the largest memory use of this process in bytes; None if it is not known."""
    try:
        import resource
        import sys
    except ModuleNotFoundError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _format_size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
