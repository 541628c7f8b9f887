"""Train a stack as one program with fixed memory: a step is captured as a CUDA graph and replayed.

The inputs of many steps (examples, sizes, rates, dropout keys) are copied to the device at once, and a counter on the
device selects the step, so a replay needs nothing from the host. Shorter batches are padded with weight zero. This
requires a loss that is a mean over examples, and a model in which only BatchNorm combines examples. Finished clients
have rate zero. On other devices the step is called directly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from offbeat.core.draws import step_keys
from offbeat.core.jobs import to_column
from offbeat.core.local_rules import RuleCarry
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.core.vector import Layout
from offbeat.training.gradient import device_generators, get_states, set_states
from offbeat.training.stacked.batch_order import BatchOrder
from offbeat.training.stacked.layers import Forward
from offbeat.training.stacked.masked_batch_norm import BatchMask
from offbeat.training.trainer import Training

SEGMENT = 64  # steps whose examples are put in place at once

Losses = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) of single examples -> the loss of each


class GraphProgram:
    """A recorded program for one number of clients, batch size and rule; `run` trains up to that many jobs."""

    def __init__(
        self,
        forward: Forward,
        losses: Losses,
        pair: tuple[Tensor, Tensor],  # all examples there are, on the device
        layout: Layout,
        training: Training,
        rule: LocalRule,
        clients: int,
        batch: int,
        dtype: torch.dtype,
        pool: Any = None,  # memory that programs share, since no two are played at once
    ) -> None:
        self._pool = pool
        self._forward, self._losses, self._layout, self._rule = forward, losses, layout, rule
        self._x, self._y = pair
        self._training, self.clients, self.batch = training, clients, batch
        device = self._x.device

        def counts(*shape: int) -> Tensor:
            """Return a tensor of zeros for integers on the device."""
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self._rows = counts(SEGMENT, clients, batch).int()  # half of what is sent for every step
        self._sizes = counts(SEGMENT, clients)
        self._noise, self._places = counts(clients), torch.arange(batch, device=device)
        self._at, self._step = counts(1), counts(1)  # of this segment, of the job
        self._lr = torch.zeros((clients, 1), dtype=dtype, device=device)
        self._graph: Any = None
        self._job: LocalJob | None = None  # stacked, in fixed places
        self._carry: RuleCarry = None
        self.w = torch.zeros((clients, layout.num_params), dtype=dtype, device=device)
        self._moments = [torch.zeros_like(self.w) for _ in range(_count_moments(training))]
        self._statistics = {  # of BatchNorm
            # a server's mean of counters need not be whole; a module's counter is
            s.name: self.w.new_zeros((clients, *s.shape), dtype=torch.int64 if s.kind == "counter" else None)
            for s in layout.slices
            if s.kind != "param"
        }

    def run(
        self, job: LocalJob, carry: RuleCarry, rates: Sequence[float], noise: Sequence[int], orders: BatchOrder
    ) -> tuple[Tensor, RuleCarry]:
        """Return final vectors and carry; inputs are padded to `self.clients`, and padded rows take no steps."""
        self._load_inputs(job, carry, rates)
        if noise:
            self._noise.copy_(torch.tensor(noise), non_blocking=True)
        for first in range(0, orders.most, SEGMENT):
            some = min(SEGMENT, orders.most - first)
            batches = orders.batch_rows(first, some, self.batch)
            self._rows[:some].copy_(batches.rows)
            self._sizes[:some].copy_(batches.sizes)
            self._at.zero_()
            if self._graph is None:
                self._record()
            for _ in range(some):
                self._graph()
        return self._final_vectors(), self._carry

    def _final_vectors(self) -> Tensor:
        """Return the vectors of all clients with their statistics."""
        if not self._statistics:
            return self.w
        assert self._job is not None
        ends = self._layout.with_trainable(self._job.base, self.w)
        for s in self._layout.slices:
            if s.kind != "param":
                ends[:, s.start : s.stop] = self._statistics[s.name].view(self.clients, -1)
        return ends

    def _load_inputs(self, job: LocalJob, carry: RuleCarry, rates: Sequence[float]) -> None:
        """Copy the inputs of a stack into the fixed tensors that the graph reads."""
        if self._job is None:
            self._job, self._carry = job, carry
        else:
            places, new = _tensors(self._job), _tensors(job)
            for place, value in zip(places, new, strict=True):
                place.copy_(value)
            self._carry = _copy_values(self._carry, carry)
        self.w.copy_(self._job.start)
        for s in self._layout.slices:
            if s.kind != "param":
                self._statistics[s.name].copy_(self._job.base[:, s.start : s.stop].view(-1, *s.shape))
        self._lr.copy_(to_column(rates, self.w))
        self._step.zero_()
        for moment in self._moments:
            moment.zero_()

    # ------------------------------------------------------------ one step

    def _run_step(self) -> None:
        """Take one step with all clients; this function is captured."""
        assert self._job is not None
        job, rule = self._job, self._rule
        chosen = self._rows.index_select(0, self._at).view(-1)
        sizes = self._sizes.index_select(0, self._at).view(-1, 1)
        active = (sizes > 0).to(self.w.dtype)
        x = self._x.index_select(0, chosen).view(self.clients, self.batch, *self._x.shape[1:])
        y = self._y.index_select(0, chosen).view(self.clients, self.batch, *self._y.shape[1:])
        weights = (self._places < sizes) / sizes.clamp(min=1).to(self.w.dtype)  # none for what fills a batch up
        keys, seen = step_keys(self._noise, self._step), False

        def gradient(point: Tensor) -> Tensor:
            """Return the gradients at points, and update the statistics at the first evaluation at w."""
            nonlocal seen
            batch = BatchMask(sizes, self.batch, self._statistics)
            # a leaf for each: the gradient of a part of one vector would be as long as the whole
            params = {
                s.name: point[:, s.start : s.stop].detach().view(-1, *s.shape).requires_grad_()
                for s in self._layout.of_kind("param")
            }
            with torch.enable_grad():
                outputs = self._forward(params, x, keys, batch)
                each = self._losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(self.clients, self.batch)
                grads = torch.autograd.grad((each * weights).sum(), list(params.values()), materialize_grads=True)
            if not seen and point.data_ptr() == self.w.data_ptr() and point.shape == self.w.shape:
                seen = True  # the step's own: statistics move, as in training/gradient.py
                _copy_values(self._statistics, batch.statistics, active)
            return torch.cat([grad.flatten(1) for grad in grads], 1)

        d, after = rule.direction(job, self.w, gradient, self._carry)
        self._apply_direction(
            torch.where(active > 0, d, 0.0), self._lr * active
        )  # nothing, where a rule divides it by nothing
        self._carry = _copy_values(self._carry, after, active)
        self._at.add_(1)
        self._step.add_(1)

    def _apply_direction(self, d: Tensor, lr: Tensor) -> None:
        """Apply the optimizers of training/descent.py, with rate zero for finished clients."""
        training, w = self._training, self.w
        decay = training.weight_decay
        if training.optimizer == "sgd":
            if decay:
                d = d.add(w, alpha=decay)
            if self._moments:
                d = self._moments[0].mul_(training.momentum).add_(d)
            w.addcmul_(d, lr, value=-1)
            return
        mean, square = self._moments
        if decay and training.optimizer == "adamw":
            w.mul_(1 - lr * decay)
        elif decay:
            d = d.add(w, alpha=decay)
        mean.lerp_(d, 1 - BETA1)
        square.mul_(BETA2).addcmul_(d, d, value=1 - BETA2)
        number = (self._step + 1).double()
        unbias, unbias_square = 1 - BETA1**number, (1 - BETA2**number).sqrt()
        deviation = square.sqrt().div_(unbias_square.to(w.dtype)).add_(EPS)
        w.addcdiv_(mean * (lr / unbias.to(w.dtype)), deviation, value=-1)

    def _record(self) -> None:
        """Capture the step if the device supports it, after a warm-up run whose effects are undone."""
        saved, sources = [tensor.clone() for tensor in self._changed_tensors()], device_generators(self.w.device)
        before = get_states(sources)
        if self.w.device.type != "cuda":
            self._run_step()
            self._restore(saved)
            self._same(sources, before)
            self._graph = self._run_step
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run_step()  # whatever is made once is made
            self._unrecorded()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self._run_step()
        except Exception as error:
            _end_failed_capture()
            if is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from None
            raise CannotRecord(f"its step cannot be captured ({str(error).splitlines()[0]})") from None
        self._restore(saved)
        self._same(sources, before)
        self._graph = graph.replay

    def _unrecorded(self) -> None:
        """Check that a step does not synchronize with the host: a failed capture would break torch's generators."""
        before = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it does not notice everything
                torch.cuda.set_sync_debug_mode("error")
            self._run_step()
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            raise CannotRecord("the host looks at its values") from None
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def _same(self, sources: list[torch.Generator], before: list[Tensor]) -> None:
        """Raise CannotRecord if the generators were used since `before`."""
        if not all(map(torch.equal, before, get_states(sources))):
            set_states(sources, before)
            raise CannotRecord("its rule draws at every step")

    def _restore(self, saved: list[Tensor]) -> None:
        """Restore the tensors that a step changes."""
        for tensor, value in zip(self._changed_tensors(), saved, strict=True):
            tensor.copy_(value)

    def _changed_tensors(self) -> list[Tensor]:
        """Return the tensors that a step changes."""
        carried = [leaf for leaf in tree_flatten(self._carry)[0] if isinstance(leaf, Tensor)]
        return [self.w, self._at, self._step, *self._moments, *self._statistics.values(), *carried]


BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def _count_moments(training: Training) -> int:
    """Return the number of state vectors of the optimizer."""
    if training.optimizer == "sgd":
        return 1 if training.momentum else 0
    return 2


def _tensors(job: LocalJob) -> list[Tensor]:
    """Return the tensors of a job in a fixed order."""
    lr = [job.lr] if isinstance(job.lr, Tensor) else []
    return [job.base, job.start, *lr, *job.extras.values(), *job.memory.values()]


def _copy_values(into: RuleCarry, values: RuleCarry, active: Tensor | None = None) -> RuleCarry:
    """Copy values into existing tensors, for active rows only; other values must stay equal."""
    places, shape = tree_flatten(into)
    new, other = tree_flatten(values)
    if shape != other:
        raise CannotRecord("its rule's carry changes its form")
    moved = []  # all of it before any place is written: a value may be what stands in another
    for place, value in zip(places, new, strict=True):
        if not isinstance(place, Tensor):
            if place != value:
                raise CannotRecord("its rule counts in plain numbers")
        elif active is None:
            moved.append((place, value))
        elif place is not value:
            moved.append((place, torch.where(active.view(-1, *(1,) * (place.dim() - 1)) > 0, value, place)))
    for place, value in moved:
        place.copy_(value)
    return tree_unflatten(places, shape)


def _end_failed_capture() -> None:
    """Repair torch's generators after a failed capture with another, empty capture."""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether lack of memory caused the error; a failed capture reports it as a cause."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


class CannotRecord(Exception):
    """Raised with the reason if a step cannot be captured."""
