"""Check the worker `cuda` against training job by job, and compare its speed with an eager loop on the same GPU.

    python bench/gpu.py check             compare kernels, programs and every strategy with training job by job
    python bench/gpu.py rows              steps per second of stacks and of an eager PyTorch loop
    python bench/gpu.py table NAMES [S]   run all methods and seeds of presets (NAME,NAME) together for at most S host
                                          seconds, with the data in OFFBEAT_DATA; prints accuracies and steps per second

Needs torch with CUDA. TF32 is off everywhere.
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
from offbeat.core import draws
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
IMAGE_SHAPE = (1, 28, 28)


def use_group_norm(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(8, child.num_features))
        else:
            use_group_norm(child)
    return module


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Linear().build(IMAGE_SHAPE, 10, 0), IMAGE_SHAPE),
    "cnn": (lambda: FEDCOMPASS_MNIST.build(IMAGE_SHAPE, 10, 0), IMAGE_SHAPE),
    "lenet": (lambda: LeNet5().build(IMAGE_SHAPE, 10, 0), IMAGE_SHAPE),
    "resnet18": (lambda: ResNet().build((3, 32, 32), 10, 0), (3, 32, 32)),
    "resnet18-gn": (lambda: use_group_norm(ResNet().build((3, 32, 32), 10, 0)), (3, 32, 32)),
}


def make_trainer(model: str, clients: int, examples: int, training: Training, dtype: torch.dtype) -> Trainer:
    make, shape = MODELS[model]
    torch.manual_seed(0)
    x = torch.randn(clients * examples, *shape, device=DEVICE).to(dtype)
    y = torch.randint(0, 10, (clients * examples,), device=DEVICE)
    rows = [torch.arange(i * examples, (i + 1) * examples) for i in range(clients)]
    return Trainer(make().to(DEVICE, dtype), ClientData.shared(x, y, rows), training)


def make_jobs(trainer: Trainer, clients: int, examples: int, index: int = 0) -> list[Job]:
    base, work = flatten(trainer.binding.module), LocalWork()
    return [Job(i, i, index, base, 0, work, examples - i % 7, {}, seed=1) for i in range(clients)]


# ---------------------------------------------------------------- correctness


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
    print("kernels agree with their implementations in torch")
    check_batch_orders()
    check_image_layers()
    check_linear_kernel()
    for model in MODELS:
        for training in (Training(lr=0.01, batch=16, epochs=1), Training(optimizer="adam", lr=1e-3, batch=16, steps=3)):
            trainer = make_trainer(model, 5, 40, training, torch.float64)
            jobs = make_jobs(trainer, 5, 40)
            jobs[1] = replace(jobs[1], num_examples=33)  # batches of 16 and 17 with BatchNorm
            stacks = CudaTrainer([trainer])
            results, largest_error = stacks.train_many(jobs), 0.0
            assert not stacks._others, f"{model} is not trained by a program"
            for job, result in zip(jobs, results, strict=True):
                assert isinstance(result, Result), result
                expected = trainer(job)
                error = float((result.local - expected.local).norm() / (expected.local - job.base).norm())
                largest_error = max(largest_error, error)
            assert largest_error < 1e-9, (model, largest_error)
            print(f"{model}, {training.optimizer}, float64: stacks agree with single jobs within {largest_error:.1e}")
    check_strategies()


def check_batch_orders() -> None:
    """Check that the GPU computes the same batch orders as the host for various numbers of examples and steps."""
    trainer = make_trainer("linear", 40, 300, Training(batch=16, steps=50), torch.float32)
    jobs = [replace(job, num_examples=1 + 7 * i) for i, job in enumerate(make_jobs(trainer, 40, 300))]
    steps, data = [trainer.make_plan(job).steps for job in jobs], [trainer.data.index] * len(jobs)
    on_gpu = batch_order.draw_batch_order(jobs, steps, data, batch=16, merge=False, stack_rows=44)
    counts = [job.num_examples for job in jobs]
    epochs = [-(-count // -(-examples // 16)) for count, examples in zip(steps, counts, strict=True)]
    keys = draws.batch_keys((job.seed, job.client, job.index) for job in jobs)
    order = draws.example_orders(keys, counts, epochs, [0] * len(jobs))
    assert torch.equal(on_gpu.order[: len(jobs)].cpu(), order)
    print("batch orders computed on the GPU equal those of the host")


def check_image_layers() -> None:
    """Compare convolutions without patches, GroupNorm and BatchNorm in float32 with float64."""
    for channels, to, side, kernel, stride, padding in (
        (64, 64, 9, 3, 1, 1), (64, 128, 16, 3, 2, 1), (64, 128, 16, 1, 2, 0), (128, 64, 12, 5, 1, 0),
        (6, 16, 12, 5, 1, 0),
    ):  # fmt: skip
        g = convolution.Geometry((kernel, kernel), (stride, stride), (padding, padding))
        inputs = [
            torch.randn(3, 8, side, side, channels, device=DEVICE, dtype=torch.float64),
            torch.randn(3, to, channels, kernel, kernel, device=DEVICE, dtype=torch.float64) / channels,
            torch.randn(3, to, device=DEVICE, dtype=torch.float64),
        ]
        errors = float32_errors(lambda x, w, b, g=g: convolution.convolve(x, w, b, g), inputs)
        name = f"convolution {channels} to {to}, {kernel} x {kernel} / {stride}"
        print(f"{name}: float32 within {max(errors):.1e} of float64")
        assert max(errors) < 5e-6
    for channels, groups in ((64, 8), (96, 2), (512, 8)):
        inputs = [
            torch.randn(3, 4, channels, 7, 7, device=DEVICE, dtype=torch.float64) + 1,
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
        ]
        layer = nn.GroupNorm(groups, channels)
        errors = float32_errors(lambda x, w, b, m=layer: layers.group_norm(x, w, b, m), inputs)
        with_residual = [*inputs, torch.randn_like(inputs[0])]
        errors += float32_errors(lambda x, w, b, a, m=layer: layers.group_norm(x, w, b, m, a, cut=True), with_residual)
        print(f"GroupNorm of {channels} channels: float32 within {max(errors):.1e} of float64")
        assert max(errors) < 5e-6
    for channels, side in ((64, 32), (96, 7), (10, 1)):
        inputs = [
            torch.randn(3, 8, channels, side, side, device=DEVICE, dtype=torch.float64) + 1,
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
            torch.randn(3, channels, device=DEVICE, dtype=torch.float64),
        ]
        norm = nn.BatchNorm2d(channels)
        errors = float32_errors(partial(masked_batch_norm_products, norm), inputs)
        errors += float32_errors(
            partial(masked_batch_norm_products, norm, cut=True), [*inputs, torch.randn_like(inputs[0])]
        )
        print(f"BatchNorm of {channels} channels: float32 within {max(errors):.1e} of float64")
        assert max(errors) < 5e-6


def masked_batch_norm_products(
    layer: nn.BatchNorm2d, x: torch.Tensor, *rest: torch.Tensor, cut: bool = False
) -> torch.Tensor:
    """Return the output of a masked BatchNorm, times its input and its updated statistics.

    The three clients have 8, 5 and 2 examples that count. Without the factors the gradient of the weights would be a
    sum of normalized values, which is nearly zero.
    """
    weight, bias, *residual = rest
    sizes = torch.tensor([[8], [5], [2]], device=DEVICE)
    statistics_before = {
        "running_mean": torch.zeros_like(weight),
        "running_var": torch.ones_like(weight),
        "num_batches_tracked": torch.zeros(3, dtype=torch.int64, device=DEVICE),
    }
    batch = masked_batch_norm.BatchMask(sizes, x.shape[1], statistics_before)
    out = masked_batch_norm.batch_norm(x, weight, bias, "", layer, batch, *residual, cut=cut)
    mask = batch.counts[:, :, None, None, None].to(x.dtype)
    updated = batch.statistics["running_mean"] + batch.statistics["running_var"]
    return out * mask * x.detach() * updated.detach()[:, None, :, None, None]


def check_linear_kernel() -> None:
    """Compare the kernel for all steps of a linear layer in float32 with single steps in float64."""
    from offbeat.training.cuda import linear_softmax_triton

    counts, steps = torch.tensor([64, 1, 37, 200, 16, 65, 128]), torch.tensor([20, 20, 0, 20, 3, 20, 7])
    each = -(-counts // 64)
    order = torch.zeros(7, 20 * 200, dtype=torch.int32)
    for row, n in zip(order, counts.tolist(), strict=True):
        drawn = torch.cat([torch.randperm(n) for _ in range(20)])
        row[: len(drawn)] = drawn
    for classes, inputs, has_bias, scattered in ((10, 784, True, True), (3, 20, False, False), (62, 784, True, False)):
        length = classes * inputs + (classes if has_bias else 0)
        layer = (0, classes * inputs if has_bias else None, classes, inputs)
        w = torch.randn(7, length, device=DEVICE, dtype=torch.float64) / inputs
        x, y = torch.randn(500, inputs, device=DEVICE).double(), torch.randint(0, classes, (500,), device=DEVICE)
        rates = torch.linspace(0.01, 0.1, 7, device=DEVICE).double()
        starts, rows = torch.arange(0, 350, 50), torch.randperm(550)[:500].remainder(500) if scattered else None
        parts = (part if part is None else part.to(DEVICE) for part in (order, counts, steps, starts, rows, each))
        batches = batch_order.BatchOrder(*parts, batch=64, most=20)
        begins = linear_softmax.copy_vectors(w.float().unbind(0))
        for pulls in (None, torch.tensor([0.0, 3.0, 0.5, 0.0, 1.0, 0.1, 2.0], device=DEVICE).double()):
            exact, pull_list = w.clone(), None if pulls is None else pulls.tolist()
            linear_softmax.descend(exact, layer, x, y, batches, rates, pulls)
            locals_ = linear_softmax_triton.train_jobs(begins, layer, x.float(), y, batches, rates.tolist(), pull_list)
            error = float((torch.stack(locals_) - exact).norm() / (exact - w).norm())
            rule = "" if pulls is None else ", some proximal"
            print(f"a linear layer of {classes} classes, 20 steps in one kernel{rule}: float32 within {error:.1e}")
            assert error < 1e-5


def float32_errors(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[float]:
    """Return the relative errors of output and gradients in float32 against float64."""
    results = []
    for dtype in (torch.float64, torch.float32):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        out = function(*leaves)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=dtype).view(out.shape)
        results.append([out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)])
    return [float((a - b).norm() / a.norm()) for a, b in zip(*results, strict=True)]


def check_strategies() -> None:
    """Compare whole runs of every strategy on the GPU with the worker `inline`.

    Models are in float64, except for the linear layer, whose kernel is for float32.
    """
    torch.manual_seed(0)
    pairs = [(torch.randn(30 + 3 * i, 12), torch.randint(0, 3, (30 + 3 * i,))) for i in range(6)]
    mlp, linear = (nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), (nn.Linear(12, 3),)
    messages, handler = list[str](), logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("offbeat").addHandler(handler)
    for name in REGISTRY:
        errors = []
        models = (mlp, torch.float64, 1e-6), (linear, torch.float32, 1e-4)
        for modules, dtype, max_error in models[:1] if name == "fedpac" else models:  # fedpac needs a body and a head
            final_models = []
            for worker in ("inline", "cuda"):
                module = nn.Sequential(*deepcopy(modules)).to(dtype)
                with torch.no_grad():
                    for i, parameter in enumerate(module.parameters()):
                        parameter.copy_(torch.linspace(-0.4, 0.5, parameter.numel()).view(parameter.shape) * (1 + i))
                clients = [(x.to(dtype), y) for x, y in pairs]
                run = offbeat.simulate(module, clients, name, until="60updates", worker=worker)
                final_models.append(run.outcome.model.cpu())
            errors.append(float((final_models[0] - final_models[1]).norm() / final_models[0].norm()))
            assert errors[-1] < max_error, (name, errors)
        assert not any("stack failed" in message for message in messages), messages  # jobs were trained singly
        print(
            f"{name}: cuda agrees with inline within " + " and, one layer in float32, ".join(f"{e:.1e}" for e in errors)
        )


# ---------------------------------------------------------------- speed


def rows() -> None:
    sgd = Training(lr=0.01, batch=64, epochs=1)
    five = Training(lr=0.01, batch=128, epochs=5)
    measure_stack("cnn", 50, 200, sgd)
    measure_stack("cnn", 200, 200, sgd)
    measure_stack("linear", 500, 200, sgd)
    measure_stack("lenet", 70, 4800, five)
    measure_stack("lenet", 210, 4800, five)
    measure_stack("resnet18-gn", 20, 256, sgd)
    measure_stack("resnet18", 28, 104, Training(lr=0.01, momentum=0.1, batch=8, epochs=1))  # Fed-OGD's, with BatchNorm
    measure_engine("cnn", 50)
    measure_engine("linear", 500)


def measure_stack(model: str, at_work: int, examples: int, training: Training) -> None:
    """Compare stacks with the eager loop, alternately, and measure the recorded step alone."""
    trainer = make_trainer(model, at_work, examples, training, torch.float32)
    stacks = CudaTrainer([trainer])
    jobs = [make_jobs(trainer, at_work, examples, i) for i in range(6)]
    few = jobs[0][:10] if examples < 1000 else jobs[0][:1]
    steps, few_steps = (
        sum(trainer.count_steps(j.client, j.work, j.num_examples) for j in stack) for stack in (jobs[0], few)
    )
    first = seconds(lambda: stacks.train_many(jobs[0]))
    eager_loop(trainer, few[:1])
    eager_times, stack_times = [], []  # seconds per step
    with infrequent_garbage_collection():  # like the engine
        for stack in jobs[1:]:
            loop = seconds(lambda: eager_loop(trainer, few))
            once = seconds(partial(stacks.train_many, stack))
            times = max(1, round(loop / once))  # measure both for the same time, because milliseconds are unreliable
            mean = seconds(partial(train_repeatedly, stacks, jobs, times)) / times if times > 1 else once
            eager_times.append(loop / few_steps)
            stack_times.append(mean / steps)
    ratios = [a / b for a, b in zip(eager_times, stack_times, strict=True)]
    print(
        f"{model}, {at_work} at work: {statistics.median(ratios):.1f} times the eager loop ({min(ratios):.1f} to "
        f"{max(ratios):.1f}); {1 / statistics.median(stack_times):,.0f} steps/s, the loop "
        f"{1 / statistics.median(eager_times):,.0f}; recorded steps {recorded_step_rate(stacks, jobs[0]):,.0f}; "
        f"first stack {first:.1f} s; "
        f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
        flush=True,
    )
    torch.cuda.reset_peak_memory_stats()


def train_repeatedly(stacks: CudaTrainer, jobs: list[list[Job]], times: int) -> None:
    for i in range(times):
        stacks.train_many(jobs[i % len(jobs)])


def measure_engine(model: str, at_work: int) -> None:
    """Compare a whole run (events, gate, trace, FedBuff on the GPU) with the eager loop."""
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
    per_update = seconds(engine.run) / engine.coordinator.progress.updates
    jobs = make_jobs(setup.trainer, 20, 200)
    eager_loop(setup.trainer, jobs[:2])  # warm-up
    eager = seconds(partial(eager_loop, setup.trainer, jobs)) / 20
    print(
        f"{model}, {at_work} at work, whole engine: {eager / per_update:.1f} times the eager loop; "
        f"{per_update * 1e6:.0f} µs per update"
    )


def eager_loop(trainer: Trainer, jobs: list[Job]) -> None:
    """Train the jobs one after another on the GPU, as one would without a framework."""
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


def recorded_step_rate(stacks: CudaTrainer, jobs: list[Job]) -> float:
    """Measure steps per second of the CUDA graph of a step alone, or of the kernel that runs all steps."""
    if not stacks._programs:
        from offbeat.training.cuda import linear_softmax_triton

        trainer, layer_trainer = stacks._trainers[0], next(iter(stacks._straight.values()))
        steps, count = [trainer.make_plan(job).steps for job in jobs], len(jobs)
        drawn = batch_order.draw_batch_order(
            jobs, steps, [stacks._placed[0]] * count, trainer.training.batch, merge=False
        )
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            bases, rates = [job.base for job in jobs], [0.01] * count
            linear_softmax_triton.train_jobs(bases, layer_trainer.layer, layer_trainer.x, layer_trainer.y, drawn, rates)
            torch.cuda.synchronize()
        kernels = [event for event in profiler.key_averages() if "_descended" in event.key]
        return sum(steps) / sum(event.device_time_total * 1e-6 for event in kernels)
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


# ---------------------------------------------------------------- tables of papers


def table(names: str, limit: float = 1e9) -> None:
    """Run all methods and seeds of these presets together on the GPU."""
    presets = {name: offbeat.presets.load(name) for name in names.split(",")}
    experiments = {
        (name, method, seed): replace(preset.with_strategy(method), seed=seed)
        for name, preset in presets.items()
        for method in preset.compared or tuple(preset.methods)
        for seed in range(preset.seeds)
    }
    began = time.perf_counter()
    setups = [build.setup(experiment, DEVICE) for experiment in experiments.values()]
    pool = SharedWorker(lambda owner: registry.make_shared([setup.trainer for setup in setups], owner))

    def out_of_time(status: object) -> bool:
        return time.perf_counter() - began > limit

    engines = {
        i: build.build_engine(setup, experiment, worker=pool.worker_for(i), watch=out_of_time)
        for i, (setup, experiment) in enumerate(zip(setups, experiments.values(), strict=True))
    }
    labels, ends = list(experiments), {}
    built = time.perf_counter() - began

    def ended(i: int, outcome: Outcome | Exception) -> None:
        ends[labels[i]] = outcome
        result = f"{outcome.reason}, {dict(outcome.metrics)}" if isinstance(outcome, Outcome) else repr(outcome)
        print(f"  {labels[i]} after {time.perf_counter() - began:.0f} s: {result}", flush=True)

    run_together(engines, pool, ended)
    total_seconds = time.perf_counter() - began
    totals = [
        engine.trace.rows("SELECT SUM(steps), COUNT(*) FROM trace WHERE kind = 'arrive'").fetchone()
        for engine in engines.values()
    ]
    steps, updates = sum(row[0] or 0 for row in totals), sum(row[1] for row in totals)
    shares = [engine.status().share for engine in engines.values()]
    print(
        f"{names}: {len(engines)} runs, {updates:,} updates, {steps:,} steps in {total_seconds:.0f} s (of which "
        f"{built:.0f} s to build); {steps / total_seconds:,.0f} steps/s; {statistics.fmean(shares):.1%} of the table"
    )
    for name, method in dict.fromkeys((name, method) for name, method, _ in labels):
        outcomes = [ends[name, method, seed] for seed in range(presets[name].seeds)]
        acc = [end.metrics["acc"] if isinstance(end, Outcome) else float("nan") for end in outcomes]
        print(f"  {name} {method}: acc {statistics.fmean(acc):.4f} ± {statistics.pstdev(acc):.4f}")


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, Python {sys.version.split()[0]}, torch {torch.__version__}")
    if sys.argv[1] == "table":
        table(sys.argv[2], *map(float, sys.argv[3:]))
    else:
        {"check": check, "rows": rows}[sys.argv[1]]()
