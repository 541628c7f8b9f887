"""Keys and certificates: made, checked, refused in one line."""

from __future__ import annotations

import datetime
import stat
import subprocess

import pytest

from deploy import messages

pytest.importorskip("cryptography")

from offbeat.core.errors import ConfigError
from offbeat.deploy import federation_keys, key_generation
from offbeat.deploy.federation_keys import ServerKeys, SiteKeys


@pytest.fixture
def folder(tmp_path):
    key_generation.make_authority(tmp_path, 30)
    key_generation.make_server(tmp_path, ["server.example.org", "10.0.0.7"], 30)
    key_generation.make_site(tmp_path, "hospital-a")
    return tmp_path


def test_what_is_made_can_be_used(folder):
    ServerKeys(folder).check("server.example.org")
    SiteKeys(folder / "sites" / "hospital-a").check()
    assert federation_keys.certificate_names(folder / "server.pem") == [
        "server.example.org",
        "10.0.0.7",
        "localhost",
        "127.0.0.1",
        "::1",
    ]


def test_private_keys_are_their_owners_alone(folder):
    private = [folder / "ca.key", folder / "server.key", folder / "sites" / "hospital-a" / "site.key"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 3


def test_a_private_key_that_others_can_read_is_refused(folder):
    (folder / "server.key").chmod(0o640)
    with pytest.raises(ConfigError, match=messages.KEY_READABLE_BY_OTHERS):
        ServerKeys(folder).check("localhost")


def test_flower_takes_the_public_key(folder):
    from flwr.cli.supernode.register import try_load_public_key

    public = SiteKeys(folder / "sites" / "hospital-a").public
    assert federation_keys.fingerprint_of_pem(try_load_public_key(public)) == federation_keys.fingerprint(public)


def test_the_fingerprint_is_the_one_that_ssh_shows(folder):
    public = folder / "sites" / "hospital-a" / "site.pub"
    try:
        shown = subprocess.run(["ssh-keygen", "-l", "-f", str(public)], capture_output=True, text=True).stdout
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen here")
    assert federation_keys.fingerprint(public) in shown


def test_a_signature_is_of_one_key_and_one_message(folder):
    key_generation.make_site(folder, "other")
    own, other = (SiteKeys(folder / "sites" / name) for name in ("hospital-a", "other"))
    signature = federation_keys.sign(own.key, b"message")
    assert federation_keys.has_valid_signature(own.public, b"message", signature)
    assert not federation_keys.has_valid_signature(own.public, b"another", signature)
    assert not federation_keys.has_valid_signature(other.public, b"message", signature)
    assert not federation_keys.has_valid_signature(own.public, b"message", "not base64")


def test_an_authority_and_a_sites_keys_are_never_replaced(folder):
    before = (folder / "ca.pem").read_bytes()
    assert not key_generation.make_authority(folder, 30)
    assert (folder / "ca.pem").read_bytes() == before
    with pytest.raises(ConfigError, match=messages.KEYS_EXIST):
        key_generation.make_site(folder, "hospital-a")


def test_a_server_certificate_is_replaced_and_still_trusted(folder):
    before = (folder / "server.pem").read_bytes()
    key_generation.make_server(folder, ["new.example.org"], 30)
    assert (folder / "server.pem").read_bytes() != before
    ServerKeys(folder).check("new.example.org")


def test_an_expired_certificate_is_refused(folder, monkeypatch):
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=31)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return now

    monkeypatch.setattr(federation_keys.datetime, "datetime", Later)
    with pytest.raises(ConfigError, match=messages.CERTIFICATE_EXPIRED):
        ServerKeys(folder).check("localhost")


def test_a_certificate_of_another_authority_or_key_is_refused(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    key_generation.make_authority(other, 30)
    key_generation.make_server(other, [], 30)
    for name in ("server.pem", "server.key"):
        (folder / name).write_bytes((other / name).read_bytes())
    with pytest.raises(ConfigError, match=messages.CERTIFICATE_OF_ANOTHER_AUTHORITY):
        ServerKeys(folder).check("localhost")
    key_generation.make_server(folder, [], 30)
    (folder / "server.key").write_bytes((other / "server.key").read_bytes())
    with pytest.raises(ConfigError, match=messages.KEY_OF_ANOTHER_CERTIFICATE):
        ServerKeys(folder).check("localhost")


@pytest.mark.parametrize("name", ["", "../away", "a/b", "a b", ".hidden", "x" * 80, "ä"])
def test_a_name_that_is_no_folder_is_refused(folder, name):
    with pytest.raises(ConfigError, match=messages.INVALID_SITE_NAME):
        key_generation.make_site(folder, name)


@pytest.mark.parametrize("host", ["", "a b", "http://server", "server:8443"])
def test_a_host_that_is_none_is_refused(folder, host):
    with pytest.raises(ConfigError, match=messages.INVALID_HOST):
        key_generation.make_server(folder, [host], 30)


def test_what_is_missing_or_damaged_is_said(folder, tmp_path_factory):
    with pytest.raises(ConfigError, match=messages.NO_SERVER_KEYS):
        ServerKeys(tmp_path_factory.mktemp("empty")).check("here")
    with pytest.raises(ConfigError, match=messages.NO_SITE_KEYS):
        SiteKeys(folder).check()
    (folder / "server.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=messages.NO_CERTIFICATE):
        ServerKeys(folder).check("here")
    site = SiteKeys(folder / "sites" / "hospital-a")
    site.key.write_text("nothing")
    with pytest.raises(ConfigError, match=messages.NO_PRIVATE_KEY):
        site.check()


def test_a_public_key_of_another_site_is_noticed(folder):
    key_generation.make_site(folder, "other")
    site = SiteKeys(folder / "sites" / "hospital-a")
    site.public.write_bytes((folder / "sites" / "other" / "site.pub").read_bytes())
    with pytest.raises(ConfigError, match=messages.KEYS_DO_NOT_MATCH):
        site.check()
