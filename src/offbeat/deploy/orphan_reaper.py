"""Wait for the end of the parent process, then end every process that carries the parent's mark.

Run it as `python -I -S orphan_reaper.py MARK` with a pipe from the parent as standard input. It imports nothing of
offbeat, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

MARK_VARIABLE = "OFFBEAT_LIVE"  # marks of all ancestors, separated by colons


def marked_processes(mark: str) -> list[int]:
    """Return the running processes that inherited this mark from their ancestors."""
    processes = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
            with open(f"/proc/{name}/stat", "rb") as file:
                dead = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except OSError:
            continue  # it has ended, or belongs to another user
        marks = [entry for entry in environment.split(b"\0") if entry.startswith(MARK_VARIABLE.encode())]
        if not dead and any(mark.encode() in entry for entry in marks):
            processes.append(int(name))
    return processes


def end_marked(mark: str, patience: float = 0.0) -> None:
    """Terminate all marked processes; after `patience` seconds kill those that are left and their children."""
    terminated: set[int] = set()
    until = time.monotonic() + patience
    while left := marked_processes(mark):
        for process in left:
            late = time.monotonic() >= until
            if late or process not in terminated:
                terminated.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def main() -> None:
    """Wait until standard input is closed, then end the marked processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends only after its parent
    while os.read(0, 4096):
        pass
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
