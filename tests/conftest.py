"""No test talks to the outside: what is not on this machine is not downloaded. Tests of downloads serve their own files."""

from __future__ import annotations

import os
import signal

os.environ["OFFBEAT_DOWNLOAD"] = "0"

# a shell starts background jobs deaf to Ctrl-C, and their children inherit it: the tests of Ctrl-C need ears
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
