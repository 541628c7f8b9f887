"""Data by owner from a folder of .npz files: sites keep their names, paths begin at the experiment file, and a run
remembers where its data lies.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from command_line import refused

from cli import messages
from offbeat.cli.shared_options import data_arguments
from offbeat.core.errors import ConfigError
from offbeat.experiment import comparison, parameter_sweep
from offbeat.experiment.run.execution import Run, create_run
from offbeat.experiment.spec import Experiment, experiment_files, experiment_paths
from offbeat.scenario import data as datasets

DELAYS = "{name: per_client, means: [10.0, 20.0, 30.0], jitter: 0.0}"
EXPERIMENT = f"""
data: {{name: npz, folder: hospitals}}
partition: natural
model: linear
delays: {DELAYS}
until: 105s
"""


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", "")  # so that what a command sets is taken back


def hospitals(folder: Path, names: tuple[str, ...] = ("bern", "geneva", "zug")) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        x = rng.normal(size=(20, 4)).astype("float32")
        np.savez(folder / f"{name}.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    return folder


def stored(folder: str) -> Experiment:
    """Return the experiment of a run folder."""
    return experiment_files.read_experiment(Path(folder, "experiment.yaml"))


@pytest.fixture
def study() -> Path:
    """An experiment file beside its data, in a folder that is not where we are."""
    hospitals(Path("work/hospitals"))
    Path("work/study.yaml").write_text(EXPERIMENT)
    return Path("work/study.yaml")


def test_sites_are_called_what_their_files_are(offbeat, study):
    assert offbeat("run", study, "--out", "r").status == 0
    told = offbeat("show", "r").out
    for name in ("bern", "geneva", "zug"):
        assert f"acc of {name} " in told
    numbers = json.loads(offbeat("show", "r", "--json").out)
    assert set(numbers["by_client"]) == {"bern", "geneva", "zug"} == set(numbers["names"].values())


def test_the_trace_knows_the_names_once(offbeat, study):
    """As the docs join them."""
    offbeat("run", study, "--out", "r")
    query = """SELECT name.value, COUNT(*) FROM trace
               JOIN json_each((SELECT value FROM facts WHERE key = 'names')) name ON name.key = client
               WHERE kind = 'arrive' GROUP BY client"""
    db = sqlite3.connect("r/run.sqlite")
    counted = dict(db.execute(query))
    db.close()
    assert counted.keys() == {"bern", "geneva", "zug"}
    assert sorted(counted.values()) == [3, 5, 10]  # a job takes 30, 20 and 10 of 105 seconds


def test_names_go_with_their_own_examples(offbeat, study):
    """Of three owners two are drawn: a name by position would be another's."""
    np.savez("work/hospitals/zug.npz", x=np.ones((60, 4), "float32"), y=np.ones(60, "int64"))
    held = {"bern": 16, "geneva": 16, "zug": 48}  # every fifth is for the test: 48 of 60, 16 of 20
    seen = set()
    for seed in range(4):
        offbeat("run", study, "--set", "clients=2", "--seed", seed, "--out", f"r{seed}")
        db = sqlite3.connect(f"r{seed}/run.sqlite")
        found = db.execute("SELECT client, MAX(examples) FROM trace WHERE kind = 'arrive' GROUP BY client").fetchall()
        db.close()
        names = Run(Path(f"r{seed}")).client_names()
        assert len(names) == 2
        assert all(held[names[client]] == count for client, count in found)
        seen |= set(names.values())
    assert "zug" in seen


def test_the_page_and_the_pictures_of_a_comparison_have_the_names(offbeat, study):
    assert offbeat("compare", study, "--strategies", "fedasync,global", "--seeds", "1", "--out", "c").status == 0
    page = Path("c/report.html").read_text()
    assert '"bern"' in page
    assert '"geneva"' in page


def test_clients_without_names_are_numbers(offbeat):
    offbeat("run", "quickstart", "--set", "clients=4", "--set", "model=linear", "--until", "60s", "--out", "r")
    numbers = json.loads(offbeat("show", "r", "--json").out)
    assert (list(numbers["by_client"]), numbers["names"]) == (["0", "1", "2", "3"], {})


def test_very_many_names_are_not_all_told(offbeat):
    hospitals(Path("work/hospitals"), tuple(f"site-{i}" for i in range(41)))
    Path("work/study.yaml").write_text(EXPERIMENT.replace(f"delays: {DELAYS}", ""))
    offbeat("run", "work/study.yaml", "--out", "r")
    assert "site-" not in offbeat("show", "r").out
    assert len(json.loads(offbeat("show", "r", "--json").out)["by_client"]) == 41


def test_paths_in_a_file_begin_where_the_file_lies(offbeat, study, monkeypatch):
    assert offbeat("run", study, "--out", "r").status == 0
    assert stored("r").data.folder == str(Path("work/hospitals").absolute())
    monkeypatch.chdir("work")
    assert offbeat("run", "../r/experiment.yaml", "--out", "again").status == 0  # as command.txt says, from anywhere
    assert Run(Path("again")).digest() == Run(Path("../r")).digest()


def test_what_is_not_beside_the_file_is_below_the_data_root(offbeat, study):
    shutil.move("work/hospitals", "root/hospitals")
    assert offbeat("run", study, "--data", "root", "--out", "r").status == 0
    assert stored("r").data.folder == "hospitals"


def test_recordings_lie_beside_the_file_too(offbeat, study):
    rows = "".join(f"{client},0,0.5\n" for client in range(3))
    Path("work/speeds.csv").write_text("client,t,seconds_per_step\n" + rows)
    Path("work/study.yaml").write_text(EXPERIMENT.replace(DELAYS, "{name: trace, path: speeds.csv}"))
    assert offbeat("run", study, "--out", "r").status == 0
    assert stored("r").delays.path == str(Path("work/speeds.csv").absolute())


def test_a_path_that_is_typed_begins_where_one_stands(offbeat, study):
    hospitals(Path("others"), ("basel", "chur", "lugano"))
    assert offbeat("run", study, "--set", "data.folder=others", "--out", "r").status == 0
    assert set(Run(Path("r")).client_names().values()) == {"basel", "chur", "lugano"}


@pytest.mark.parametrize(("more", "expected"), [("", (3, True)), ("clients: 2\n", (2, False))])
def test_without_a_number_all_owners_are_clients(study, more, expected):
    study.write_text(EXPERIMENT + more)
    experiment, all_owners = experiment_paths.resolve_experiment(experiment_files.read_values(study), study)
    assert (experiment.clients, all_owners) == expected


def test_owners_are_counted_in_the_data_that_is_used(offbeat, study):
    hospitals(Path("others"), ("basel", "chur"))
    assert offbeat("run", study, "--set", "data.folder=others", "--out", "two").status == 0
    assert stored("two").clients == 2
    assert offbeat("run", study, "--set", "clients=1", "--out", "one").status == 0
    assert stored("one").clients == 1


def test_all_of_too_few_delays_are_one_line(study):
    study.write_text(EXPERIMENT.replace("20.0, 30.0", "20.0"))
    with pytest.raises(ConfigError, match=messages.TOO_FEW_MEANS):
        experiment_paths.resolve_experiment(experiment_files.read_values(study), study)


@pytest.fixture
def stopped(offbeat, study) -> Path:
    """A run that has not begun, whose data lies in a data root of its own."""
    shutil.move("work/hospitals", "root/hospitals")
    assert offbeat("run", study, "--data", "root", "--out", "whole").status == 0
    return create_run(Path("stopped"), stored("whole")).folder


def test_a_run_remembers_its_data(offbeat, stopped, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", "")
    assert offbeat("run", "--resume", stopped).status == 0
    assert Run(stopped).digest() == Run(Path("whole")).digest()
    assert f"--data {Path('root').absolute()}" in (stopped / "command.txt").read_text().splitlines()[0]


def test_a_command_to_go_on_names_the_data_only_if_it_was_moved(stopped, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(Path("root").absolute()))
    assert data_arguments(stopped) == []
    monkeypatch.setenv("OFFBEAT_DATA", str(Path("elsewhere").absolute()))
    assert data_arguments(stopped) == ["--data", str(Path("elsewhere").absolute())]
    monkeypatch.setenv("OFFBEAT_DATA", "")
    assert data_arguments(stopped) == []


def test_a_comparison_and_a_sweep_remember_their_data(offbeat, stopped, study, monkeypatch):
    experiment = stored("stopped")
    comparison.create_comparison(Path("c"), {"fedasync": experiment}, [0])
    over = parameter_sweep.parse_swept_settings(["until=20s,30s"])
    parameter_sweep.create_sweep(Path("s"), parameter_sweep.combinations({"fedasync": experiment}, over), over, [0])
    for verb, folder in (("compare", "c"), ("sweep", "s")):
        monkeypatch.setenv("OFFBEAT_DATA", "")
        assert offbeat(verb, "--resume", folder).status == 0


def test_data_that_was_moved_is_asked_for_in_one_line(offbeat, stopped, monkeypatch):
    shutil.move("root", "elsewhere")
    monkeypatch.setenv("OFFBEAT_DATA", "")
    refused(offbeat("run", "--resume", stopped), messages.DATA_MOVED.format(Path("root").absolute()), "--data DIR")
    assert offbeat("run", "--resume", stopped, "--data", "elsewhere").status == 0


def test_a_folder_beside_the_file_that_was_moved_is_found_again(offbeat, study):
    assert offbeat("run", study, "--out", "r").status == 0
    made = create_run(Path("stopped"), stored("r"))
    shutil.move("work/hospitals", "elsewhere/hospitals")
    datasets._load.cache_clear()  # of this process: who resumes is another
    where = Path("work/hospitals").absolute()
    refused(offbeat("run", "--resume", made.folder), messages.MISSING.format(where), "--data")
    assert offbeat("run", "--resume", made.folder, "--data", "elsewhere").status == 0
    assert Run(made.folder).digest() == Run(Path("r")).digest()
