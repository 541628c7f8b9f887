"""serve, join, status and keys, as far as they get without starting anything."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import pytest
from command_line import refused

from cli import messages

pytest.importorskip("flwr")


@pytest.mark.parametrize(
    "arguments",
    [("serve", "quickstart", "--local", "2"), ("join", "--server", "here:1"), ("keys",), ("status", "here:1")],
    ids=lambda arguments: arguments[0],
)
def test_without_flower_each_says_which_extra_brings_it(offbeat, monkeypatch, arguments):
    monkeypatch.setattr("offbeat.deploy.preflight.find_spec", lambda name: None)
    refused(offbeat(*arguments), messages.FLOWER_MISSING)


@pytest.mark.parametrize(("command", "words"), messages.REFUSED_LIVE)
def test_an_invalid_command_is_refused_in_one_line_and_nothing_is_made(offbeat, command, words):
    refused(offbeat(*shlex.split(command)), words)
    assert not Path("runs").exists()
    assert not Path("sites").exists()


def test_a_port_in_use_is_said_before_anything_is_made(offbeat):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(offbeat("serve", "quickstart", "--local", 2, "--port", port), messages.PORT_IN_USE.format(port))
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
    refused(offbeat(*join, "--name", "other"), messages.OTHER_KEYS)
    refused(offbeat(*join), messages.NO_SERVER, status=1)


def test_a_folder_of_keys_may_be_copied_under_any_name(offbeat):
    offbeat("keys", "--site", "hospital-a")
    Path("keys/sites/hospital-a").rename("mine")
    join = ("join", "--server", "127.0.0.1:1", "--partition", 0, "--keys", "mine")
    refused(offbeat(*join, "--name", "mine"), messages.OTHER_KEYS)


def test_a_run_that_is_not_live_is_said(offbeat, made):
    refused(offbeat("status", made), messages.NOT_LIVE, status=1)
