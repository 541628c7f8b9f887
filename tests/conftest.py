"""No test talks to the outside: what is not on this machine is not downloaded. Tests of downloads serve their own files."""

from __future__ import annotations

import os

os.environ["OFFBEAT_DOWNLOAD"] = "0"
