"""make torture: attack runs for so many minutes, and print what was tried and the shortest case that went wrong.

python tests/torture --minutes 10 --seed 7      every part, with its share of the time
python tests/torture --part swarm --minutes 1   one part
python tests/torture --sample                   the few cases of each that are in make test
python tests/torture --repeat CASE              one case, as a failure prints it
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # threads do not survive a fork
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OFFBEAT_DOWNLOAD="0")
    from hunt import main

    sys.exit(main())
