"""Expected wording of messages of metrics."""

from __future__ import annotations

INVALID_SHARE = r"share = 2 must be in \(0, 1\]"
UNKNOWN_METHOD = "unknown method 'fedawg': did you mean 'fedavg'"
DIVERGED = "not finite: a Commit after version 3, which is kept; tickets since: 7"
MOST_REFUSED = "5 of 7 answers were refused, 5 for numbers that are not finite: the model is based on few updates"
