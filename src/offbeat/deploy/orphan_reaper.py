"""Waits for the end of its parent, then ends every process that carries the parent's mark. It imports no offbeat, so
that it starts at once: python -I -S guardian.py MARK, with a pipe from the parent as its standard input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

VARIABLE = "OFFBEAT_LIVE"  # marks, one for each parent above, with colons between them


def marked(mark: str) -> list[int]:
    """Processes that were started by whoever has this mark, or by those; they need not know of each other."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
            with open(f"/proc/{name}/stat", "rb") as file:
                dead = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except OSError:
            continue  # it ended just now, or it is somebody else's
        if not dead and any(mark.encode() in e for e in environment.split(b"\0") if e.startswith(VARIABLE.encode())):
            found.append(int(name))
    return found


def end(mark: str, patience: float = 0.0) -> None:
    """Ask them to end, wait `patience` seconds, and kill who is left, and whom those have started meanwhile."""
    asked: set[int] = set()
    until = time.monotonic() + patience
    while left := marked(mark):
        for process in left:
            late = time.monotonic() >= until
            if late or process not in asked:
                asked.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent, not before
    while os.read(0, 4096):
        pass
    end(sys.argv[1])


if __name__ == "__main__":
    main()
