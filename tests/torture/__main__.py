"""Attack runs for some minutes and print the attempts and the shortest failing cases: `make torture`.

python tests/torture --minutes 10 --seed 7      all parts, each for its share of the time
python tests/torture --part swarm --minutes 1   one part
python tests/torture --sample                   the few cases of each part that `make test` runs
python tests/torture --repeat CASE              one case as printed by a failure
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # threads do not survive a fork
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OFFBEAT_DOWNLOAD="0")
    from attack_runs import main

    sys.exit(main())
