"""What lives on the nodes of a Ray cluster: actors, each a process with the run's trainer and one thread."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
import torch

from offbeat.core.errors import in_words
from offbeat.core.threads import one_thread
from offbeat.workers.forked_process import ANSWER, NO_MEMORY, STAYS, UNFIT, Train, job_of
from offbeat.workers.inline import computed
from offbeat.workers.ray_codec import Block, as_block, pack, unpack, unpack_trainer
from offbeat.workers.shared_memory_codec import Unsendable

Answered = tuple[int, bytes, list[Block]]  # kind, body, large tensors


@dataclass(frozen=True)
class Place:
    """What decides about the last bits, of the machine a process runs on."""

    torch: str
    cpu: str
    offbeat: str

    @classmethod
    def here(cls) -> Place:
        cpu = f"{_model_of_cpu()} ({platform.machine()} {torch.backends.cpu.get_cpu_capability()})"
        return cls(torch.__version__, cpu, _version())

    def difference(self, other: Place) -> str | None:
        """In words, how the other is not like this one."""
        names = [name for name in ("torch", "cpu", "offbeat") if getattr(self, name) != getattr(other, name)]
        told = "; ".join(f"{name} {getattr(other, name)}, not {getattr(self, name)}" for name in names)
        return told or None


def _version() -> str:
    try:
        return metadata.version("offbeat")
    except metadata.PackageNotFoundError:
        return "not installed"


def _model_of_cpu() -> str:
    """Libraries beneath PyTorch choose by it, too."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


@dataclass(frozen=True)
class Settings:
    """Of torch, which a script may have changed before its run: a fork would have them, an actor is told."""

    dtype: torch.dtype
    matmul: str
    mkldnn: bool
    deterministic: bool

    @classmethod
    def here(cls) -> Settings:
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            bool(torch.backends.mkldnn.enabled),
            torch.are_deterministic_algorithms_enabled(),
        )

    def apply(self) -> None:
        """To this process, which has no other purpose."""
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]


@dataclass(frozen=True)
class Greeting:
    """What an actor says first; `unfit`: why it cannot train."""

    node: str
    pid: int
    place: Place | None = None
    unfit: str | None = None


class Actor:
    """Asked for one thing at a time, in order. It answers whatever happens: what it raised would be wrapped by Ray."""

    def __init__(self) -> None:
        self._train: Train | None = None
        self._held: Any = None  # what the data lies in
        self._threads = ExitStack()

    def greet(self, settings: Settings, placed: tuple[bytes, Block]) -> Greeting:
        """Load the trainer: large data stays where it lies, in memory that the node's actors share."""
        node = ray.util.get_node_ip_address()
        try:
            settings.apply()
            self._threads.enter_context(one_thread())
            self._held = placed
            self._train = unpack_trainer(*placed)
        except Exception as error:
            return Greeting(node, os.getpid(), unfit=in_words(error))
        return Greeting(node, os.getpid(), Place.here())

    def train(self, body: bytes, *blocks: Block) -> Answered:
        try:
            return self._answer(body, blocks)
        except Unsendable as reason:
            return STAYS, str(reason).encode(errors="replace"), []
        except MemoryError as error:
            return NO_MEMORY, str(error).encode(errors="replace"), []

    def _answer(self, body: bytes, blocks: tuple[Block, ...]) -> Answered:
        if self._train is None:
            return UNFIT, b"it has no trainer", []
        try:
            job = job_of(unpack(body, blocks))
        except MemoryError:
            raise
        except Exception as error:  # a class that is not to be had here
            raise Unsendable(in_words(error)) from None
        answer, large = pack(computed(self._train, job), exact=False)
        return ANSWER, answer, [as_block(tensor) for tensor in large]
