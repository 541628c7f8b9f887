"""Kill a server and its sites at random moments: the run ends all the same, every update is applied once.

    python tests/live/chaos.py --kills 30 [--seed 7]

Whoever is killed with SIGKILL: the command, the server app, Flower's SuperLink, a superexec, the door, a site, its
trainer, its node, or any process of them all.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from federation import Command, command_of, consumed_once, rows, server_process, updates, within

SITES = 3
RECOVERY = 240.0  # seconds until updates come again
ROLES: dict[str, Callable[[str], bool]] = {
    "superlink": lambda command: "flower_command flower-superlink" in command,
    "superexec": lambda command: "flower_command flower-superexec" in command,
    "door": lambda command: "offbeat.deploy.gateway" in command,
    "site": lambda command: "-m offbeat join" in command,
    "trainer": lambda command: "offbeat.deploy.site_trainer" in command,
    "node": lambda command: "flower_command flower-supernode" in command,
    "anybody": lambda command: "orphan_reaper.py" not in command,
}


def victim(role: str, run: Path, serve: Command, dice: random.Random) -> int | None:
    if role == "command":
        return serve.process.pid
    if role == "app":
        return server_process(run)
    found = [number for number in sorted(serve.family()) if ROLES[role](command_of(number))]
    return dice.choice(found) if found else None


def chaos(folder: Path, kills: int, seed: int, say: Callable[[str], None]) -> list[str]:
    """What was wrong in the end."""
    dice, run, problems = random.Random(seed), folder / "run", []
    experiment = ("quickstart", "--until", f"{5 * kills + 5}updates", "--out", str(run), "--checkpoint-every", "5")
    serve = Command(folder, "serve", *experiment, "--local", str(SITES))
    try:
        for number in range(kills):
            at = updates(run)
            if not within(RECOVERY, lambda at=at, serve=serve: updates(run) > at or serve.process.poll() is not None):
                return [f"no update within {RECOVERY:.0f} s after kill {number}: {serve.said[-2000:]}"]
            if serve.process.poll() is not None:
                say(f"the run was over after {number} kills")
                break
            time.sleep(dice.uniform(0.0, 8.0))
            role = dice.choice(["command", "app", *ROLES])
            process = victim(role, run, serve, dice)
            if process is None:
                continue
            say(f"kill {number + 1}: {role}, {process}, at {updates(run)} updates: {command_of(process)[-90:]}")
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself just now
            if within(2.0, lambda serve=serve: serve.process.poll() is not None):
                if not serve.leaves_nobody():
                    problems.append(f"left: {[command_of(n) for n in serve.family()]}")
                serve = Command(folder, "serve", "--resume", str(run), "--local", str(SITES), "--checkpoint-every", "5")
        if serve.wait(600.0) != 0:
            problems.append(f"it ended with {serve.process.returncode}: {serve.said[-2000:]}")
        if not serve.leaves_nobody():
            problems.append(f"left: {[command_of(n) for n in serve.family()]}")
    finally:
        serve.end()
    if not consumed_once(run):
        problems.append("a ticket was consumed twice, or versions do not follow each other")
    last = rows(run, "SELECT client, MAX(seq) FROM trace WHERE kind = 'arrive' GROUP BY client")
    if len(last) != SITES:
        problems.append(f"only the clients {sorted(client for client, _ in last)} were heard")
    say(f"{updates(run)} updates of {SITES} sites in the end; {'; '.join(problems) or 'all in order'}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="offbeat-chaos-") as folder:
        problems = chaos(Path(folder), given.kills, seed, lambda line: print(line, flush=True))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
