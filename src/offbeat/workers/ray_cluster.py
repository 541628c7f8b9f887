"""To a Ray cluster and away from it: one that is started for a run and ends with it, or one that is there already."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray

from offbeat.core.errors import RunError, plain_text

SPEAKS = 30.0  # seconds within which what listens at an address must have said that it is Ray

QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
# nothing is told to strangers; no advice about GPUs that nobody asks for
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def join(address: str | None, cpus: int) -> Callable[[], None]:
    """Connect this Python; what is returned disconnects it, and ends the cluster if it was started here."""
    os.environ.update(ENVIRONMENT)
    if ray.is_initialized():
        return _as_it_is(address)
    if address is not None:
        _ask(address)
    wanted: dict[str, Any] = (
        {"address": address} if address else {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    )
    try:
        with _own_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**wanted, **QUIET)
    except Exception as error:
        with suppress(Exception):
            ray.shutdown()
        hint = f"; is this machine a node of it? If not: ray start --address={address}" if address else ""
        raise RunError(f"worker ray: Ray could not be started ({_short(error)}){hint}") from None
    hush, owner = _hushed(), os.getpid()

    def leave() -> None:
        if os.getpid() == owner:
            ray.shutdown()
            hush()

    return leave


def _as_it_is(address: str | None) -> Callable[[], None]:
    """The script has connected itself: its business, also when that ends."""
    found = ray.get_runtime_context().gcs_address
    if address is not None and found != address:
        raise RunError(f"worker ray: this Python is connected to {found}, not to {address}: call ray.shutdown() first")
    return lambda: None


def _ask(address: str) -> None:
    """In a process of its own: the library would wait for minutes for what is no cluster, deaf to Ctrl-C."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SPEAKS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise RunError(f"worker ray: what listens at {address} is no Ray cluster, or does not answer") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        raise RunError(
            f"worker ray: no Ray cluster at {address} ({plain_text(said[0] if said else 'it said nothing')})"
        )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray would put an end of its own to a termination: a run stops with a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _hushed() -> Callable[[], None]:
    """Ray prints on standard output, where results are printed, that a process died; the worker says so itself."""
    from ray._private import worker as inside

    name = "print_to_stdstream"
    printing = getattr(inside, name, None)
    if printing is None:
        return lambda: None
    setattr(inside, name, lambda *_, **__: None)
    return lambda: setattr(inside, name, printing)


def _short(error: BaseException) -> str:
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return plain_text(said.strip(), 200)
