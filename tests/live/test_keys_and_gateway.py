"""Who may join, and what everybody else gets."""

from __future__ import annotations

import http.client
import shutil
import signal
import ssl
import subprocess

from federation import OFFBEAT, PATIENCE, command_of, updates, within

from offbeat.deploy.child_processes import free_port
from offbeat.deploy.key_generation import make_authority, make_server, make_site


def test_sites_with_keys_train_and_strangers_get_nothing(offbeat, tmp_path):
    for folder, sites in (("keys", ("hospital-a",)), ("theirs", ("stranger",))):
        (tmp_path / folder).mkdir()
        make_authority(tmp_path / folder, 30)
        make_server(tmp_path / folder, [], 30)
        for name in sites:
            make_site(tmp_path / folder, name)
    unregistered = tmp_path / "mixed" / "stranger"  # a key of their own, but it trusts the right server
    shutil.copytree(tmp_path / "theirs" / "sites" / "stranger", unregistered)
    shutil.copy(tmp_path / "keys" / "ca.pem", unregistered)
    run, where = tmp_path / "run", f"127.0.0.1:{free_port()}"
    port = where.rpartition(":")[2]
    serve = offbeat(
        "serve", "quickstart", "--set", "clients=2", "--until", "200updates", "--port", port, "--out", "run"
    )
    assert within(PATIENCE, lambda: "serving run" in serve.said), serve.said

    def refused(*arguments: str) -> str:
        command = [*OFFBEAT, "join", "--server", where, "--partition", "0", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "was not signed by the authority" in refused("--keys", "theirs/sites/stranger")
    assert "the key of stranger is not registered here" in refused("--keys", "mixed/stranger")
    assert "uses TLS: give the folder of this site's keys" in refused("--insecure")
    # Flower's own node, with a key that nobody knows: the door says no to each of its requests
    node = [*OFFBEAT[:2], "offbeat.deploy.flower_command", "flower-supernode", "--superlink", where]
    node += ["--root-certificates", "keys/ca.pem", "--auth-supernode-private-key", "mixed/stranger/site.key"]
    node += ["--port", str(free_port()), "--isolation", "process"]
    subprocess.run(node, cwd=tmp_path, capture_output=True, timeout=90)  # it gives up by itself
    # whoever reaches the port can neither submit an app nor register a key, whatever else Flower would take there
    context = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"):
        connection = http.client.HTTPSConnection(where, context=context, timeout=20)
        connection.request("POST", path, b"")
        assert connection.getresponse().status == 403
        connection.close()
    log = (run / "live" / "logs" / "gateway.log").read_text()
    for reason in ("UNKNOWN_CA", "key of stranger is not registered", "plain HTTP", "SHA256:", "/v1/control/start-run"):
        assert reason in log

    first = offbeat("join", "--server", where, "--keys", "keys/sites/hospital-a", "--partition", "0")
    assert within(PATIENCE, lambda: updates(run) >= 2), first.said
    # a second site is let in while the server runs
    make_site(tmp_path / "keys", "hospital-b")
    assert within(PATIENCE, lambda: "hospital-b" in (run / "live" / "registered_sites.json").read_text())
    second = offbeat("join", "--server", where, "--keys", "keys/sites/hospital-b", "--partition", "1")
    assert within(PATIENCE, lambda: "hospital-b" in (run / "sites.json").read_text()), second.said
    status = [*OFFBEAT, "status", where, "--keys", "keys/sites/hospital-b"]
    shown = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "hospital-a" in shown.stdout, shown.stderr
    first.kill(signal.SIGINT)
    assert first.wait() == 130
    serve.kill(signal.SIGTERM)
    assert serve.wait() == 130, serve.said
    second.kill(signal.SIGTERM)
    assert second.wait() == 130
    for command in (first, second, serve):
        assert command.leaves_nobody(), [command_of(number) for number in command.family()]
