"""The same arrivals through our strategies and through the servers of five other frameworks: `make crosscheck`.

Each row is one comparison of all weights after every arrival. Where the rules agree the largest difference must not
exceed 1e-5; where we say that they differ, and in what, it must be large: a row that no longer holds fails the run.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.metadata import version

from arrivals import AGREE, Row

PEERS = {
    "flgo": "with_flgo",
    "appfl": "with_appfl",
    "flwr": "with_flower",
    "flsim": "with_flsim",
    "fedlab": "with_fedlab",
}


def section(package: str, rows: list[Row]) -> list[str]:
    lines = [f"{package} {version(package)}", ""]
    for row in sorted(rows, key=lambda row: bool(row.rule)):
        verdict = "DOES NOT HOLD" if not row.holds else "differs" if row.rule else "same"
        lines += [f"  {verdict:7} {row.difference:7.1e}  {row.theirs}", f"                   {row.ours}"]
        lines += [f"                   they: {row.rule}"] if row.rule else []
    return [*lines, ""]


def main(chosen: list[str]) -> int:
    rows: list[Row] = []
    for package in chosen or PEERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs, about their own dependencies
            found = list(importlib.import_module(PEERS[package]).rows())
        print("\n".join(section(package, found)), flush=True)
        rows += found
    same = [row for row in rows if not row.rule]
    broken = [row for row in rows if not row.holds]
    print(
        f"{len(same)} comparisons agree: largest difference {max(row.difference for row in same):.1e}, at most "
        f"{AGREE:g} allowed"
    )
    print(f"{len(rows) - len(same)} rules differ, as documented; {len(broken)} rows do not hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
