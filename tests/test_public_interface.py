"""Compare commands, options, public signatures, choices and trace columns with a committed list."""

from __future__ import annotations

from pathlib import Path

from public_interface import public_interface

COMMITTED = Path(__file__).parent / "public_interface.txt"


def test_the_public_interface_is_the_committed_one():
    """A change of the public interface is deliberate: regenerate the list and describe the change in CHANGELOG.md."""
    committed, current = COMMITTED.read_text(encoding="utf-8").splitlines(), public_interface()
    removed = [line for line in committed if line not in set(current)]
    added = [line for line in current if line not in set(committed)]
    assert (removed, added) == ([], []), "run `python tests/public_interface.py > tests/public_interface.txt`"
    assert len(committed) > 500
