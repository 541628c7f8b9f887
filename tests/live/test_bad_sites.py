"""Sites that cannot take part: each hears why in a line, and the federation goes on."""

from __future__ import annotations

import shutil
import signal

from federation import PATIENCE, rows, updates, within

from offbeat.deploy.child_processes import free_port
from offbeat.deploy.key_generation import make_authority, make_server, make_site

SITE = """
import torch

def model():
    return torch.nn.Linear(3, {outputs})

def load_data():
    {load}
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()
"""


def test_sites_that_cannot_take_part_hear_why_and_the_others_go_on(offbeat, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    make_authority(keys, 30)
    make_server(keys, [], 30)
    for name in ("good", "wide", "broken", "late"):
        make_site(keys, name)
    (tmp_path / "good.py").write_text(SITE.format(outputs=2, load="pass"))
    (tmp_path / "wide.py").write_text(SITE.format(outputs=3, load="pass"))
    (tmp_path / "broken.py").write_text(SITE.format(outputs=2, load="raise OSError('patients.csv is on another disk')"))
    run, where = tmp_path / "run", f"127.0.0.1:{free_port()}"
    (tmp_path / "small.yaml").write_text("name: small\ntraining: {steps: 2}\nuntil: 100000updates\n")
    serve = ("serve", "small.yaml", "--model", "good.py", "--min-sites", "2", "--out", "run")
    server = offbeat(*serve, "--port", where.rpartition(":")[2])
    assert within(PATIENCE, lambda: "waiting for sites: 0 of 2 joined; missing: broken, good" in server.said), (
        server.said
    )

    def join(name: str, home: str | None = None):
        return offbeat(
            "join", "--server", where, "--keys", f"keys/sites/{name}", "--data", f"{name}.py", "--home", home or name
        )

    good, wide, broken = join("good"), join("wide"), join("broken")
    assert wide.wait() == 1
    assert "the server does not take this site: its model has another layout than the server's" in wide.said
    assert broken.wait() == 1
    assert "offbeat: broken.py:8: OSError: patients.csv is on another disk" in broken.said
    log = (run / "live" / "logs" / "server.log").read_text()
    assert "site 'wide' is refused: its model has another layout" in log
    assert "broken: broken.py:8: OSError (the message is in the log of the site)" in log
    assert "another disk" not in log  # a site's own words stay there: they may be of its data
    # those who came and left do not count: the run begins when two are here
    assert within(PATIENCE, lambda: "1 of 2 joined; missing: broken, late, wide" in server.said), server.said
    twin = join("good", home="twin")  # the same keys on another machine, while the first site is there
    assert within(PATIENCE, lambda: "the server still keeps the last one" in twin.said), twin.said
    shutil.copy(tmp_path / "good.py", tmp_path / "late.py")
    late = join("late")
    assert within(PATIENCE, lambda: updates(run) >= 4), server.said
    assert rows(run, "SELECT COUNT(DISTINCT client) FROM trace WHERE kind = 'arrive'") == [(2,)]
    for command in (twin, late, good, server):
        command.kill(signal.SIGTERM)
        assert command.wait() == 130, command.said
        assert command.leaves_nobody()


def test_without_keys_a_name_belongs_to_whoever_came_first(offbeat, tmp_path):
    where = f"127.0.0.1:{free_port()}"
    serve = ("serve", "quickstart", "--insecure", "--set", "clients=2", "--until", "100000updates", "--out", "run")
    server = offbeat(*serve, "--port", where.rpartition(":")[2])
    assert within(PATIENCE, lambda: "waiting for sites: 0 of 1 joined" in server.said), server.said

    def join(home: str):
        common = ("join", "--insecure", "--server", where, "--name", "basel", "--partition", "0")
        return offbeat(*common, "--home", home)

    first = join("first")
    assert within(PATIENCE, lambda: updates(tmp_path / "run") >= 1), first.said
    here, there = join("first"), join("second")
    assert here.wait() == 2
    assert there.wait() == 1
    assert "a site works in" in here.said
    assert "the name 'basel' is another site's: join with another --name, or with that site's key" in there.said
    at = updates(tmp_path / "run")
    assert within(PATIENCE, lambda: updates(tmp_path / "run") > at), first.said
