"""serve, join, status and keys, as far as they get without starting anything."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from command_line import refused

pytest.importorskip("flwr")


@pytest.mark.parametrize(
    "arguments",
    [("serve", "quickstart", "--local", "2"), ("join", "--server", "here:1"), ("keys",), ("status", "here:1")],
    ids=lambda arguments: arguments[0],
)
def test_without_flower_each_says_which_extra_brings_it(offbeat, monkeypatch, arguments):
    monkeypatch.setattr("offbeat.deploy.preflight.find_spec", lambda name: None)
    refused(offbeat(*arguments), "pip install 'offbeat[flower]'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve",), "give a preset or an experiment file, or --resume DIR"),
        (("serve", "quickstrat", "--local", "2"), "did you mean 'quickstart'?"),
        (("serve", "quickstart", "--insecure", "--host", "0.0.0.0"), "--insecure is not allowed on 0.0.0.0"),
        (("serve", "quickstart", "--local", "2", "--host", "10.0.0.1"), "--local is not allowed on 10.0.0.1"),
        (("serve", "quickstart"), "make keys with 'offbeat keys --host 127.0.0.1 --site NAME'"),
        (("serve", "quickstart", "--local", "2", "--record", "some"), "--record some: expected checkpoint or full"),
        (("serve", "quickstart", "--local", "2", "--compression", "zip"), "unknown compression 'zip'"),
        (("serve", "quickstart", "--local", "2", "--set", "strategy=global"), "cannot be served to sites"),
        (("serve", "quickstart", "--local", "2", "--model", "none.py"), "none.py is not a Python file"),
        (("serve", "--resume", "nowhere", "--local", "2"), "nowhere is not a run folder"),
        (("serve", "--resume", "x", "--until", "3s", "--local", "2"), "--resume continues with the stored settings"),
        (("join",), "--server HOST:PORT is missing"),
        (("join", "--server", "here"), "'here' is not HOST:PORT"),
        (("join", "--server", "127.0.0.1:1"), "give --keys DIR"),
        (("join", "--server", "10.0.0.1:1", "--insecure"), "--insecure is not allowed for 10.0.0.1"),
        (("join", "--server", "127.0.0.1:1", "--insecure"), "give either --data FILE"),
        (("join", "--server", "127.0.0.1:1", "--insecure", "--data", "a.py"), "'offbeat new site a' makes one"),
        (("join", "--check"), "--data FILE"),
        (("status", "nowhere"), "nowhere is neither a run folder nor HOST:PORT"),
        (("keys", "--host", "a b"), "is not a host name or address"),
        (("keys", "--site", "../a"), "a name consists of letters, digits"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line_and_nothing_is_made(offbeat, arguments, words):
    refused(offbeat(*arguments), words)
    assert not Path("runs").exists()
    assert not Path("sites").exists()


def test_a_port_in_use_is_said_before_anything_is_made(offbeat):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(offbeat("serve", "quickstart", "--local", 2, "--port", port), f"port {port} of 127.0.0.1 is in use")
    assert os.listdir() == []


def test_keys_are_made_and_shown(offbeat):
    made = offbeat("keys", "--host", "server.example.org", "--site", "hospital-a", "--site", "hospital-b")
    assert made.status == 0
    assert "give this folder to hospital-a only" in made.out
    shown = offbeat("keys")
    assert "server.example.org" in shown.out
    assert shown.out.count("SHA256:") == 2


def test_a_site_is_called_what_its_keys_are(offbeat):
    offbeat("keys", "--site", "hospital-a")
    join = ("join", "--server", "127.0.0.1:1", "--partition", 0, "--keys", "keys/sites/hospital-a")
    refused(offbeat(*join, "--name", "other"), "these keys belong to the site hospital-a")
    refused(offbeat(*join), "no server listens at 127.0.0.1:1: start 'offbeat serve' there first", status=1)


def test_a_folder_of_keys_may_be_copied_under_any_name(offbeat):
    offbeat("keys", "--site", "hospital-a")
    Path("keys/sites/hospital-a").rename("mine")
    join = ("join", "--server", "127.0.0.1:1", "--partition", 0, "--keys", "mine")
    refused(offbeat(*join, "--name", "mine"), "these keys belong to the site hospital-a")


def test_a_run_that_is_not_live_is_said(offbeat, made):
    refused(offbeat("status", made), "is not a live run", status=1)
