"""Actors on the nodes of a Ray cluster: processes with the run's trainer and one thread each."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import ray
import torch

from offbeat.core.errors import describe_error
from offbeat.core.threads import one_thread
from offbeat.workers.inline import Train, train_or_fail
from offbeat.workers.job_queue import job_from_fields
from offbeat.workers.process_pool import ANSWER, NO_MEMORY, UNFIT, UNSENDABLE
from offbeat.workers.ray_codec import TensorBytes, pack, tensor_bytes, unpack, unpack_trainer
from offbeat.workers.shared_memory_codec import Unsendable

ActorAnswer = tuple[int, bytes, list[TensorBytes]]  # kind, body, large tensors


@dataclass(frozen=True)
class NumericEnvironment:
    """The properties of a machine that affect the last bits of results."""

    torch: str
    cpu: str
    offbeat: str

    @classmethod
    def current(cls) -> NumericEnvironment:
        """Return the properties of this machine."""
        cpu = f"{_cpu_model()} ({platform.machine()} {torch.backends.cpu.get_cpu_capability()})"
        try:
            version = metadata.version("offbeat")
        except metadata.PackageNotFoundError:
            version = "not installed"
        return cls(torch.__version__, cpu, version)

    def difference(self, other: NumericEnvironment) -> str | None:
        """Describe the differences of the other environment, or return None."""
        names = [name for name in ("torch", "cpu", "offbeat") if getattr(self, name) != getattr(other, name)]
        text = "; ".join(f"{name} {getattr(other, name)}, not {getattr(self, name)}" for name in names)
        return text or None


def _cpu_model() -> str:
    """Return the CPU model, which libraries beneath PyTorch also use to select algorithms."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


@dataclass(frozen=True)
class TorchSettings:
    """Global settings of torch that a script may have changed; forks inherit them, actors apply them."""

    dtype: torch.dtype
    matmul: str
    mkldnn: bool
    deterministic: bool

    @classmethod
    def current(cls) -> TorchSettings:
        """Return the settings of this process."""
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            bool(torch.backends.mkldnn.enabled),
            torch.are_deterministic_algorithms_enabled(),
        )

    def apply(self) -> None:
        """Change the settings of this process."""
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]


@dataclass(frozen=True)
class ActorReport:
    """The first answer of an actor; `unfit` is the reason if it cannot train."""

    node: str
    pid: int
    environment: NumericEnvironment | None = None
    unfit: str | None = None


class TrainingActor:
    """Trains jobs one after the other; it returns errors as answers, because Ray would wrap raised errors."""

    def __init__(self) -> None:
        self._train: Train | None = None  # None until `load` succeeded
        self._packed: object = None  # keeps the memory of the data alive
        self._threads = ExitStack()

    def load(self, settings: TorchSettings, packed: tuple[bytes, TensorBytes]) -> ActorReport:
        """Load the trainer; large data stays in memory that the actors of a node share."""
        node = ray.util.get_node_ip_address()
        try:
            settings.apply()
            self._threads.enter_context(one_thread())
            self._packed = packed
            self._train = unpack_trainer(*packed)
        except Exception as error:
            return ActorReport(node, os.getpid(), unfit=describe_error(error))
        return ActorReport(node, os.getpid(), NumericEnvironment.current())

    def train(self, body: bytes, *blocks: TensorBytes) -> ActorAnswer:
        """Train the job that `body` and its tensor `blocks` encode, and return the encoded result."""
        if self._train is None:
            return UNFIT, b"the actor has no trainer", []
        try:
            job = job_from_fields(unpack(body, blocks))
            answer, large = pack(train_or_fail(self._train, job), exact=False)
            return ANSWER, answer, [tensor_bytes(tensor) for tensor in large]
        except MemoryError as error:
            return NO_MEMORY, str(error).encode(errors="replace"), []
        except Unsendable as reason:
            return UNSENDABLE, str(reason).encode(errors="replace"), []
        except Exception as error:  # the job cannot be decoded, for example because a class does not exist here
            return UNSENDABLE, describe_error(error).encode(errors="replace"), []
