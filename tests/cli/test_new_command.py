"""offbeat new: a file to start from, never over one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Call, refused


def test_new_site_writes_a_file_that_says_how_to_go_on(
    offbeat: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = offbeat("new", "site", "hospital-a")
    assert said.status == 0
    assert said.out == (
        "hospital-a.py is written: put your model and your data in, then try it with\n"
        "  offbeat join --check --data hospital-a.py\n"
    )
    text = (tmp_path / "hospital-a.py").read_text()
    assert text.startswith('"""hospital-a: the model and the data of one site.')
    assert "--data hospital-a.py" in text
    assert "NAME" not in text
    assert "FILE" not in text


def test_new_site_takes_nothing_away(offbeat: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("mine")
    refused(offbeat("new", "site", "mine"), "mine.py is there already")
    refused(offbeat("new", "site", "mine.py"), "mine.py is there already")
    assert (tmp_path / "mine.py").read_text() == "mine"
    refused(offbeat("new", "site", "no/such/folder"), "cannot write", status=1)
    for name in ("", " ", ".py", 'a"""b', "a\nb", "-x/.."):
        refused(offbeat("new", "site", "--", name), "a site's name is letters")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
