"""offbeat new: a file to start from, never over one that is there."""

from __future__ import annotations

from pathlib import Path

from command_line import Call, refused

from cli import messages


def test_new_site_writes_a_file_that_says_how_to_go_on(offbeat: Call, tmp_path: Path) -> None:
    said = offbeat("new", "site", "hospital-a")
    assert said.status == 0
    assert said.out == messages.NEW_SITE
    text = (tmp_path / "hospital-a.py").read_text()
    assert text.startswith('"""hospital-a: the model and the data of one site.')
    assert "--data hospital-a.py" in text
    assert "NAME" not in text
    assert "FILE" not in text


def test_new_site_takes_nothing_away(offbeat: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine")
    refused(offbeat("new", "site", "mine"), messages.EXISTS.format("mine.py"))
    refused(offbeat("new", "site", "mine.py"), messages.EXISTS.format("mine.py"))
    assert (tmp_path / "mine.py").read_text() == "mine"
    refused(offbeat("new", "site", "no/such/folder"), messages.CANNOT_WRITE.format("no/such/folder.py"), status=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_new_strategy_keeps_the_laws_and_runs_as_it_stands(offbeat: Call) -> None:
    said = offbeat("new", "strategy", "cos-buff")
    assert (said.status, said.err) == (0, "")
    assert said.out == messages.NEW_STRATEGY
    assert not {"CLASS", "FILE"} & set(Path("cos-buff.py").read_text().replace(":", " ").split())
    given = offbeat("check", "cos-buff.py", "--scripts", 12)
    assert given.status == 0, given.out
    assert "BROKEN" not in given.out
    assert "advice" not in given.out
    tiny = ["--set", "clients=4", "--set", "model=linear", "--until", "100s"]
    assert offbeat("run", "quickstart", *tiny, "--set", "strategy=cos-buff.py:CosBuff", "--out", "a").status == 0


def test_a_new_experiment_runs_as_it_stands(offbeat: Call) -> None:
    said = offbeat("new", "experiment", "study")
    assert (said.status, said.out) == (0, messages.NEW_EXPERIMENT)
    text = Path("study.yaml").read_text()
    assert "NAME" not in text
    assert "THIS" not in text
    assert offbeat("run", "study.yaml", "--until", "100s", "--out", "a").status == 0
    assert "study" in Path("a/experiment.yaml").read_text()


def test_nothing_is_overwritten_and_a_class_name_begins_with_a_letter(offbeat: Call) -> None:
    Path("mine.yaml").write_text("mine")
    refused(offbeat("new", "experiment", "mine"), messages.EXISTS.format("mine.yaml"))
    assert offbeat("new", "strategy", "3fold").status == 0
    assert "class Method3fold(" in Path("3fold.py").read_text()
