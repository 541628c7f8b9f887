"""What a GPU gives: the worker `cuda` checked against training one by one, and measured against an eager loop there.

    python bench/gpu.py check             kernels, programs and every strategy agree with one-by-one training
    python bench/gpu.py rows              steps a second of stacks and of an eager PyTorch loop on the same GPU
    python bench/gpu.py table NAMES [S]   all methods and seeds of a paper's presets (NAME,NAME) side by side, S host
                                          seconds at most (OFFBEAT_DATA says where their data lies); accuracies, steps a
                                          second

Needs torch with CUDA and numpy. Float32 is exact: TF32 is switched off for both sides.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import offbeat
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY, FedBuff
from offbeat.core.vector import flatten
from offbeat.engine.process_memory import infrequent_garbage_collection
from offbeat.engine.progress import Outcome
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.run.pooled_runs import SharedWorker, run_together
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import LeNet5, Linear, ResNet
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST
from offbeat.training.client_data import ClientData
from offbeat.training.cuda import linear_softmax
from offbeat.training.cuda.cuda_trainer import CudaTrainer
from offbeat.training.evaluation import Evaluator
from offbeat.training.stacked import batch_order, convolution, layers, masked_batch_norm
from offbeat.training.trainer import Trainer, Training
from offbeat.workers import registry

DEVICE = "cuda"
PICTURES = (1, 28, 28)


def group_norm(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(8, child.num_features))
        else:
            group_norm(child)
    return module


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Linear().build(PICTURES, 10, 0), PICTURES),
    "cnn": (lambda: FEDCOMPASS_MNIST.build(PICTURES, 10, 0), PICTURES),
    "lenet": (lambda: LeNet5().build(PICTURES, 10, 0), PICTURES),
    "resnet18": (lambda: ResNet().build((3, 32, 32), 10, 0), (3, 32, 32)),
    "resnet18-gn": (lambda: group_norm(ResNet().build((3, 32, 32), 10, 0)), (3, 32, 32)),
}


def trainer_of(model: str, clients: int, examples: int, training: Training, dtype: torch.dtype) -> Trainer:
    make, shape = MODELS[model]
    torch.manual_seed(0)
    x = torch.randn(clients * examples, *shape, device=DEVICE).to(dtype)
    y = torch.randint(0, 10, (clients * examples,), device=DEVICE)
    rows = [torch.arange(i * examples, (i + 1) * examples) for i in range(clients)]
    return Trainer(make().to(DEVICE, dtype), ClientData.shared(x, y, rows), training)


def jobs_of(trainer: Trainer, clients: int, examples: int, index: int = 0) -> list[Job]:
    base, work = flatten(trainer.binding.module), LocalWork()
    return [Job(i, i, index, base, 0, work, examples - i % 7, {}, seed=1) for i in range(clients)]


# ---------------------------------------------------------------- is it right?


def check() -> None:
    from offbeat.training.cuda import patches_triton

    for c, k, stride, padding, dilation in ((1, 5, 1, 0, 1), (3, 3, 1, 1, 1), (3, 3, 2, 1, 1), (2, 3, 1, 2, 2)):
        x = torch.randn(3, 4, 9, 9, c, device=DEVICE)
        g = convolution.Geometry((k, k), (stride,) * 2, (padding,) * 2, (dilation,) * 2)
        columns = convolution.patches(x, g)
        assert torch.equal(columns, patches_triton.patches(x, g))
        back = torch.randn_like(columns)
        torch.testing.assert_close(
            convolution.fold_patches(back, x.shape, g), patches_triton.fold_patches(back, x.shape, g)
        )
    x = torch.randint(0, 3, (2, 3, 7, 7, 2), device=DEVICE).float()
    best = convolution.max_of_windows(x, (2, 2))
    grad = torch.randn_like(best)
    assert torch.equal(best, patches_triton.max_of_windows(x, (2, 2)))
    assert torch.equal(
        convolution.max_pool_gradient(x, best, grad, (2, 2)), patches_triton.max_pool_gradient(x, best, grad, (2, 2))
    )
    print("kernels agree with their torch forms")
    orders_agree()
    pictures_agree()
    straight_agrees()
    for model in MODELS:
        for training in (Training(lr=0.01, batch=16, epochs=1), Training(optimizer="adam", lr=1e-3, batch=16, steps=3)):
            trainer = trainer_of(model, 5, 40, training, torch.float64)
            jobs = jobs_of(trainer, 5, 40)
            jobs[1] = replace(jobs[1], num_examples=33)  # where there is BatchNorm: batches of 16 and 17
            stacks = CudaTrainer([trainer])
            answers, worst = stacks.train_many(jobs), 0.0
            assert not stacks._others, f"{model} is not trained by a program"
            for job, answer in zip(jobs, answers, strict=True):
                assert isinstance(answer, Result), answer
                alone = trainer(job)
                worst = max(worst, float((answer.local - alone.local).norm() / (alone.local - job.base).norm()))
            assert worst < 1e-9, (model, worst)
            print(f"{model}, {training.optimizer}, float64: stacks agree with one by one within {worst:.1e}")
    every_strategy()


def orders_agree() -> None:
    """Orders that the GPU draws are those torch draws, whatever the numbers of examples and steps."""
    trainer = trainer_of("linear", 40, 300, Training(batch=16, steps=50), torch.float32)
    jobs = [replace(job, num_examples=1 + 7 * i) for i, job in enumerate(jobs_of(trainer, 40, 300))]
    taken, placed = [trainer.make_plan(job).steps for job in jobs], [trainer.data.as_index()] * len(jobs)
    drawn = batch_order.draw_batch_order(jobs, taken, placed, 44, batch=16, merge=False)
    told = batch_order.draw_orders_on_host(
        jobs, taken, torch.zeros_like(drawn.order, device="cpu"), batch=16, merge=False
    )
    alone = replace(drawn, order=told.to(DEVICE))
    for ours, theirs in zip(drawn.batch_rows(0, 50, 16), alone.batch_rows(0, 50, 16), strict=True):
        assert torch.equal(ours, theirs)
    print("orders drawn on the GPU are torch's")


def pictures_agree() -> None:
    """Convolutions without patches and GroupNorm, in float32, against float64; torch's own beside them."""
    for channels, to, side, kernel, stride, padding in (
        (64, 64, 9, 3, 1, 1), (64, 128, 16, 3, 2, 1), (64, 128, 16, 1, 2, 0), (128, 64, 12, 5, 1, 0),
        (6, 16, 12, 5, 1, 0),
    ):  # fmt: skip
        g = convolution.Geometry((kernel, kernel), (stride, stride), (padding, padding))
        given = [
            torch.randn(3, 8, side, side, channels, device=DEVICE, dtype=torch.float64),
            torch.randn(3, to, channels, kernel, kernel, device=DEVICE, dtype=torch.float64) / channels,
            torch.randn(3, to, device=DEVICE, dtype=torch.float64),
        ]
        found = both(lambda x, w, b, g=g: convolution.convolve(x, w, b, g), given)
        name = f"convolution {channels} to {to}, {kernel} x {kernel} / {stride}"
        print(f"{name}: float32 within {max(found):.1e} of float64")
        assert max(found) < 5e-6
    for channels, groups in ((64, 8), (96, 2), (512, 8)):
        given = [
            torch.randn(3, 4, channels, 7, 7, device=DEVICE, dtype=torch.float64) + 1,
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
        ]
        layer = nn.GroupNorm(groups, channels)
        found = both(lambda x, w, b, m=layer: layers.group_norm(x, w, b, m), given)
        also = [*given, torch.randn_like(given[0])]
        found += both(lambda x, w, b, a, m=layer: layers.group_norm(x, w, b, m, a, cut=True), also)
        print(f"GroupNorm of {channels} channels: float32 within {max(found):.1e} of float64")
        assert max(found) < 5e-6
    for channels, side in ((64, 32), (96, 7), (10, 1)):
        given = [
            torch.randn(3, 8, channels, side, side, device=DEVICE, dtype=torch.float64) + 1,
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
        ]
        norm = nn.BatchNorm2d(channels)
        found = both(partial(normal_of, norm), given)
        found += both(partial(normal_of, norm, cut=True), [*given, torch.randn_like(given[0])])
        print(f"BatchNorm of {channels} channels: float32 within {max(found):.1e} of float64")
        assert max(found) < 5e-6


def normal_of(layer: nn.BatchNorm2d, x: torch.Tensor, *rest: torch.Tensor, cut: bool = False) -> torch.Tensor:
    """Of clients of which 8, 5 and 2 examples count: what comes out, times what statistics move to; and times what went
    in, without which the gradient of the weights would be a sum of what is normal: next to nothing.
    """
    weight, bias, *added = rest
    sizes = torch.tensor([[8], [5], [2]], device=DEVICE)
    held = {
        "running_mean": torch.zeros_like(weight),
        "running_var": torch.ones_like(weight),
        "num_batches_tracked": torch.zeros(3, dtype=torch.int64, device=DEVICE),
    }
    batch = masked_batch_norm.BatchMask(sizes, x.shape[1], held)
    out = masked_batch_norm.batch_norm(x, weight, bias, "", layer, batch, *added, cut=cut)
    counted = batch.counts[:, :, None, None, None].to(x.dtype)  # of the others nobody asks
    moved = batch.statistics["running_mean"] + batch.statistics["running_var"]
    return out * counted * x.detach() * moved.detach()[:, None, :, None, None]


def straight_agrees() -> None:
    """All steps of a linear layer in one kernel, in float32, against the same called step by step in float64."""
    from offbeat.training.cuda import linear_softmax_triton

    counts, steps = torch.tensor([64, 1, 37, 200, 16, 65, 128]), torch.tensor([20, 20, 0, 20, 3, 20, 7])
    each = -(-counts // 64)
    order = torch.zeros(7, 20 * 200, dtype=torch.int32)
    for own, n in zip(order, counts.tolist(), strict=True):
        drawn = torch.cat([torch.randperm(n) for _ in range(20)])
        own[: len(drawn)] = drawn
    for classes, inputs, has_bias, scattered in ((10, 784, True, True), (3, 20, False, False), (62, 784, True, False)):
        length = classes * inputs + (classes if has_bias else 0)
        layer = (0, classes * inputs if has_bias else None, classes, inputs)
        w = torch.randn(7, length, device=DEVICE, dtype=torch.float64) / inputs
        x, y = torch.randn(500, inputs, device=DEVICE).double(), torch.randint(0, classes, (500,), device=DEVICE)
        rates = torch.linspace(0.01, 0.1, 7, device=DEVICE).double()
        starts, rows = torch.arange(0, 350, 50), torch.randperm(550)[:500].remainder(500) if scattered else None
        given = (part if part is None else part.to(DEVICE) for part in (order, counts, steps, starts, rows, each))
        drawn_by = batch_order.BatchOrder(*given, batch=64, most=20)
        begins = linear_softmax.copy_vectors(w.float().unbind(0))
        for pulls in (None, torch.tensor([0.0, 3.0, 0.5, 0.0, 1.0, 0.1, 2.0], device=DEVICE).double()):
            exact, told = w.clone(), None if pulls is None else pulls.tolist()
            linear_softmax.descend(exact, layer, x, y, drawn_by, rates, pulls)
            ours = linear_softmax_triton.train_jobs(begins, layer, x.float(), y, drawn_by, rates.tolist(), told)
            apart = float((torch.stack(ours) - exact).norm() / (exact - w).norm())
            how = "" if pulls is None else ", some pulled back"
            print(f"a linear layer of {classes} classes, 20 steps in one kernel{how}: float32 within {apart:.1e}")
            assert apart < 1e-5


def both(function: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[float]:
    """How far the outputs and all gradients in float32 are from those in float64, relatively."""
    ends = []
    for dtype in (torch.float64, torch.float32):
        leaves = [one.to(dtype).requires_grad_() for one in given]
        out = function(*leaves)
        along = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=dtype).view(out.shape)
        ends.append([out.detach(), *torch.autograd.grad((out * along).sum(), leaves)])
    return [float((a - b).norm() / a.norm()) for a, b in zip(*ends, strict=True)]


def every_strategy() -> None:
    """The whole engine on the GPU: strategies, gate and evaluation too. Float32 is for the kernel of a linear layer."""
    torch.manual_seed(0)
    pairs = [(torch.randn(30 + 3 * i, 12), torch.randint(0, 3, (30 + 3 * i,))) for i in range(6)]
    mlp, linear = (nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), (nn.Linear(12, 3),)
    heard, ear = list[str](), logging.Handler()
    ear.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("offbeat").addHandler(ear)
    for name in REGISTRY:
        apart = []
        models = (mlp, torch.float64, 1e-6), (linear, torch.float32, 1e-4)
        for links, dtype, most in models[:1] if name == "fedpac" else models:  # it needs a body and a head
            ends = []
            for worker in ("inline", "cuda"):
                module = nn.Sequential(*deepcopy(links)).to(dtype)
                with torch.no_grad():
                    for i, parameter in enumerate(module.parameters()):
                        parameter.copy_(torch.linspace(-0.4, 0.5, parameter.numel()).view(parameter.shape) * (1 + i))
                held = [(x.to(dtype), y) for x, y in pairs]
                ends.append(offbeat.simulate(module, held, name, until="60updates", worker=worker).outcome.model.cpu())
            apart.append(float((ends[0] - ends[1]).norm() / ends[0].norm()))
            assert apart[-1] < most, (name, apart)
        assert not any("a stack failed" in line for line in heard), heard  # it was trained otherwise
        told = " and, one layer in float32, ".join(f"{one:.1e}" for one in apart)
        print(f"{name}: cuda agrees with inline within {told}")


# ---------------------------------------------------------------- how fast is it?


def rows() -> None:
    sgd = Training(lr=0.01, batch=64, epochs=1)
    five = Training(lr=0.01, batch=128, epochs=5)
    row("cnn", 50, 200, sgd)
    row("cnn", 200, 200, sgd)
    row("linear", 500, 200, sgd)
    row("lenet", 70, 4800, five)
    row("lenet", 210, 4800, five)
    row("resnet18-gn", 20, 256, sgd)
    row("resnet18", 28, 104, Training(lr=0.01, momentum=0.1, batch=8, epochs=1))  # Fed-OGD's, with BatchNorm
    engine_row("cnn", 50)
    engine_row("linear", 500)


def row(model: str, at_work: int, examples: int, training: Training) -> None:
    """Stacks against the eager loop, in turn; and the recorded step alone."""
    trainer = trainer_of(model, at_work, examples, training, torch.float32)
    stacks = CudaTrainer([trainer])
    jobs = [jobs_of(trainer, at_work, examples, i) for i in range(6)]
    few = jobs[0][:10] if examples < 1000 else jobs[0][:1]
    steps, few_steps = (
        sum(trainer.count_steps(j.client, j.work, j.num_examples) for j in some) for some in (jobs[0], few)
    )
    first = seconds(lambda: stacks.train_many(jobs[0]))
    eager(trainer, few[:1])
    plain, stacked = [], []
    with infrequent_garbage_collection():  # as within the engine
        for again in jobs[1:]:
            loop = seconds(lambda: eager(trainer, few))
            once = seconds(partial(stacks.train_many, again))
            times = max(1, round(loop / once))  # each for as long as the other: a few milliseconds say little
            took = seconds(partial(repeatedly, stacks, jobs, times)) / times if times > 1 else once
            plain.append(loop / few_steps)
            stacked.append(took / steps)
    ratios = [a / b for a, b in zip(plain, stacked, strict=True)]
    print(
        f"{model}, {at_work} at work: {statistics.median(ratios):.1f} times the eager loop ({min(ratios):.1f} to "
        f"{max(ratios):.1f}); {1 / statistics.median(stacked):,.0f} steps/s, the loop "
        f"{1 / statistics.median(plain):,.0f}; the steps alone {played(stacks, jobs[0]):,.0f}; first stack "
        f"{first:.1f} s; "
        f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
        flush=True,
    )
    torch.cuda.reset_peak_memory_stats()


def repeatedly(stacks: CudaTrainer, jobs: list[list[Job]], times: int) -> None:
    for i in range(times):
        stacks.train_many(jobs[i % len(jobs)])


def engine_row(model: str, at_work: int) -> None:
    """Through the whole engine: events, gate, trace, FedBuff on the GPU."""
    make, shape = MODELS[model]
    torch.manual_seed(0)
    pairs = [(torch.randn(200, *shape), torch.randint(0, 10, (200,))) for _ in range(at_work)]
    data, module = ClientData.separate(pairs).to(DEVICE), make().to(DEVICE)
    experiment = Experiment(
        clients=at_work,
        delays=Uniform(low=10.0, high=100.0),
        training=Training(lr=0.01, batch=64, epochs=1),
        strategy=FedBuff(k=10, concurrency=at_work),
        until=Until(updates=200 * at_work),
        evaluate_every=1e9,
    )
    x, y = data.all_examples()
    setup = build.assemble(module, data, Evaluator(module, x[:200], y[:200]), experiment)
    engine = build.build_engine(
        setup, experiment, worker=registry.make_worker(registry.parse_worker("cuda"), setup.trainer)
    )
    took = seconds(engine.run)
    some = jobs_of(setup.trainer, 20, 200)
    eager(setup.trainer, some[:2])  # whatever is made once is made before
    plain = seconds(partial(eager, setup.trainer, some)) / 20
    each = took / engine.coordinator.progress.updates
    print(
        f"{model}, {at_work} at work, whole engine: {plain / each:.1f} times the eager loop; {each * 1e6:.0f} µs an "
        "update"
    )


def eager(trainer: Trainer, jobs: list[Job]) -> None:
    """What one would write without a framework, on the GPU."""
    module = deepcopy(trainer.binding.module)
    start, training = deepcopy(module.state_dict()), trainer.training
    for job in jobs:
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=training.lr, momentum=training.momentum)
        x, y = trainer.data.take(job.client, torch.arange(job.num_examples))
        for _ in range(training.epochs or 1):
            order = torch.randperm(len(x), device=x.device)
            for batch in torch.split(order, training.batch):
                optimizer.zero_grad()
                cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
        torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def played(stacks: CudaTrainer, jobs: list[Job]) -> float:
    """Steps a second of the recorded step, played and nothing else; or of the one kernel that has all of them."""
    if not stacks._programs:
        from offbeat.training.cuda import linear_softmax_triton

        trainer, way = stacks._trainers[0], next(iter(stacks._straight.values()))
        steps, count = [trainer.make_plan(job).steps for job in jobs], len(jobs)
        drawn = batch_order.draw_batch_order(
            jobs, steps, [stacks._placed[0]] * count, count, trainer.training.batch, merge=False
        )
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            linear_softmax_triton.train_jobs([job.base for job in jobs], way.layer, way.x, way.y, drawn, [0.01] * count)
            torch.cuda.synchronize()
        return sum(steps) / sum(one.device_time_total * 1e-6 for one in seen.key_averages() if "_descended" in one.key)
    program = next(reversed(stacks._programs.values()))
    program._at.zero_()
    taken = seconds(lambda: [program._graph() for _ in range(60)] and program._at.zero_())
    return 60 * program.clients / taken


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


# ---------------------------------------------------------------- a paper's table


def table(names: str, limit: float = 1e9) -> None:
    presets = {name: offbeat.presets.load(name) for name in names.split(",")}
    experiments = {
        (name, method, seed): replace(preset.with_strategy(method), seed=seed)
        for name, preset in presets.items()
        for method in preset.compared or tuple(preset.methods)
        for seed in range(preset.seeds)
    }
    began = time.perf_counter()
    made = {i: build.setup(experiment, DEVICE) for i, experiment in enumerate(experiments.values())}
    pool = SharedWorker(lambda owner: registry.make_shared([one.trainer for one in made.values()], owner))
    stop: Callable[[object], bool] = lambda _: time.perf_counter() - began > limit  # noqa: E731
    engines = {
        i: build.build_engine(one, experiment, worker=pool.worker_for(i), watch=stop)
        for (i, one), experiment in zip(made.items(), experiments.values(), strict=True)
    }
    labels, ends = list(experiments), {}
    built = time.perf_counter() - began

    def ended(i: int, outcome: Outcome | Exception) -> None:
        ends[labels[i]] = outcome
        told = f"{outcome.reason}, {dict(outcome.metrics)}" if isinstance(outcome, Outcome) else repr(outcome)
        print(f"  {labels[i]} after {time.perf_counter() - began:.0f} s: {told}", flush=True)

    run_together(engines, pool, ended)
    took = time.perf_counter() - began
    done = [
        engine.trace.rows("SELECT SUM(steps), COUNT(*) FROM trace WHERE kind = 'arrive'").fetchone()
        for engine in engines.values()
    ]
    steps, updates = sum(row[0] or 0 for row in done), sum(row[1] for row in done)
    shares = [engine.status().share for engine in engines.values()]
    print(
        f"{names}: {len(engines)} runs, {updates:,} updates, {steps:,} steps in {took:.0f} s ({built:.0f} s of it to "
        f"build); {steps / took:,.0f} steps/s; {statistics.fmean(shares):.1%} of the table"
    )
    for name, method in dict.fromkeys((name, method) for name, method, _ in labels):
        outcomes = [ends[name, method, seed] for seed in range(presets[name].seeds)]
        found = [one.metrics["acc"] if isinstance(one, Outcome) else float("nan") for one in outcomes]
        print(f"  {name} {method}: acc {statistics.fmean(found):.4f} ± {statistics.pstdev(found):.4f}")


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, Python {sys.version.split()[0]}, torch {torch.__version__}")
    if sys.argv[1] == "table":
        table(sys.argv[2], *map(float, sys.argv[3:]))
    else:
        {"check": check, "rows": rows}[sys.argv[1]]()
