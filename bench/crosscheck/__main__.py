"""Process the same arrivals with our strategies and with the servers of five other frameworks: `make crosscheck`.

Each row compares all weights after every arrival. If the rules agree, the largest difference must be at most 1e-5. If
a difference of the rules is documented, it must be large. Any other row fails the run.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.metadata import version

from arrivals import MAX_DIFFERENCE, ComparisonRow

PEERS = {
    "flgo": "with_flgo",
    "appfl": "with_appfl",
    "flwr": "with_flower",
    "flsim": "with_flsim",
    "fedlab": "with_fedlab",
}


def format_section(package: str, rows: list[ComparisonRow]) -> list[str]:
    lines = [f"{package} {version(package)}", ""]
    for row in sorted(rows, key=lambda row: bool(row.known_difference)):
        verdict = "UNEXPECTED" if not row.as_documented else "differs" if row.known_difference else "same"
        lines += [f"  {verdict:7} {row.difference:7.1e}  {row.theirs}", f"                   {row.ours}"]
        lines += [f"                   their rule: {row.known_difference}"] if row.known_difference else []
    return [*lines, ""]


def main(chosen: list[str]) -> int:
    rows: list[ComparisonRow] = []
    for package in chosen or PEERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the dependencies of the frameworks
            package_rows = list(importlib.import_module(PEERS[package]).rows())
        print("\n".join(format_section(package, package_rows)), flush=True)
        rows += package_rows
    same = [row for row in rows if not row.known_difference]
    broken = [row for row in rows if not row.as_documented]
    print(
        f"{len(same)} comparisons agree: largest difference {max(row.difference for row in same):.1e}, at most "
        f"{MAX_DIFFERENCE:g} allowed"
    )
    print(f"{len(rows) - len(same)} rules differ, as documented; {len(broken)} rows are unexpected")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
