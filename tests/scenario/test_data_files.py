"""Where data comes from: the data root, archives, downloads. Servers here answer on this machine alone."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from offbeat.core.errors import DataError
from offbeat.scenario.data import DATASETS
from offbeat.scenario.data.archives import unpack
from offbeat.scenario.data.data_files import DownloadFailed, Published, data_root, find_file, find_files, find_folder
from scenario import messages

PAGES = {"/whole": b"hello", "/short": b"hel"}


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path not in PAGES:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", "5")  # also where only three bytes follow
        self.end_headers()
        self.wfile.write(PAGES[self.path])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    monkeypatch.setenv("OFFBEAT_DOWNLOAD", "1")
    return tmp_path


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def tar(path, members: dict[str, bytes], links: dict[str, str] | None = None) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)


def test_the_root_is_the_given_folder_else_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("OFFBEAT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "offbeat"


def test_a_missing_file_is_downloaded_whole_and_only_once(root, address):
    path = find_file("set", ("file",), md5(b"hello"), (f"{address}/whole",))
    assert path.read_bytes() == b"hello"
    assert os.listdir(path.parent) == ["file"]  # nothing half-made is left
    assert find_file("set", ("file",), md5(b"hello"), ("http://127.0.0.1:9/nobody",)) == path


def test_the_second_address_is_tried_when_the_first_has_nothing(root, address):
    assert find_file("set", ("file",), md5(b"hello"), (f"{address}/gone", f"{address}/whole")).read_bytes() == b"hello"


@pytest.mark.parametrize(("url", "checksum", "reason"), messages.DOWNLOADS)
def test_a_failed_download_leaves_nothing_and_says_which_file_to_put_where(root, address, url, checksum, reason):
    missing = f"^{root}/set/file is missing: put the file there, or set OFFBEAT_DATA to the folder"
    with pytest.raises(DataError, match=rf"{missing}.*; download it from the authors \(.*({reason})"):
        find_file("set", ("file",), checksum, (url.format(address=address),), "the authors")
    assert not any(p.is_file() for p in root.rglob("*"))


def test_downloads_can_be_forbidden_and_are_limited(root, address, monkeypatch):
    monkeypatch.setattr("offbeat.scenario.data.data_files.MAX_DOWNLOAD_BYTES", 4)
    with pytest.raises(DataError, match=messages.DOWNLOAD_TOO_LARGE):
        find_file("set", ("file",), md5(b"hello"), (f"{address}/whole",))
    monkeypatch.setenv("OFFBEAT_DOWNLOAD", "0")
    with pytest.raises(DataError, match=messages.DOWNLOAD_FORBIDDEN):
        find_file("set", ("file",), md5(b"hello"), (f"{address}/whole",))
    assert not any(p.is_file() for p in root.rglob("*"))


def test_checksums_may_be_sha256(root, address):
    sha = hashlib.sha256(b"hello").hexdigest()
    assert find_file("set", ("file",), sha, (f"{address}/whole",)).read_bytes() == b"hello"
    with pytest.raises(DataError, match=messages.SHA256_DIFFERS):
        find_file("set", ("file",), "0" * 64)


# what nobody published a checksum of is asked for, and so is what a licence has to be accepted for first
ASKED_FOR = {"beijing-air", "kdd-air", "fitrec", "extrasensory", "ixi", "isic2019"}


@pytest.mark.parametrize("name", sorted(DATASETS.keys() - {"digits", "synthetic", "stand-in", "npz"}))
def test_every_download_that_is_offered_has_a_checksum(root, monkeypatch, name):
    tried = []

    def record(urls, path, checksum):
        tried.append((urls, checksum))
        raise DownloadFailed("no network")

    monkeypatch.setattr("offbeat.scenario.data.data_files.download", record)
    with pytest.raises(DataError, match=messages.MISSING):
        DATASETS[name]().load()
    offered = [checksum for urls, checksum in tried if urls]
    assert all(checksum is not None and len(checksum) in (32, 64) for checksum in offered)
    assert bool(offered) == (name not in ASKED_FOR)


@pytest.fixture
def archive(root):
    """Return a function that puts a tar archive with these members into the folder of the data set `set`."""

    def write(members: dict[str, bytes], checksum: str | None = None) -> Published:
        (root / "set").mkdir(exist_ok=True)
        tar(root / "set" / "all.tar.gz", members)
        return Published(name="all.tar.gz", checksum=checksum)

    return write


def test_existing_archives_are_unpacked(root, archive):
    published = archive({"inner/a.txt": b"A", "inner/deep/b.txt": b"B"})
    assert find_folder("set", ("inner/a.txt",), published) == root / "set"
    assert (root / "set/inner/deep/b.txt").read_bytes() == b"B"
    assert sorted(os.listdir(root / "set")) == ["all.tar.gz", "inner"]
    assert [p.name for p in find_files("set", ("*.txt",), published, "")] == ["a.txt", "b.txt"]


def test_a_zip_is_unpacked_too(root):
    (root / "set").mkdir()
    with zipfile.ZipFile(root / "set" / "all.zip", "w") as archive:
        archive.writestr("a.txt", "A")
    assert [p.read_text() for p in find_files("set", ("*.txt",), Published(name="all.zip"), "")] == ["A"]


def test_tampered_and_other_archives_are_refused(root, archive):
    with pytest.raises(DataError, match=messages.ARCHIVE_DAMAGED):
        find_folder("set", ("a.txt",), archive({"a.txt": b"A"}, checksum="0" * 32))
    assert not (root / "set/a.txt").exists()
    with pytest.raises(DataError, match=messages.ARCHIVE_OTHER):
        find_folder("set", ("a.txt",), archive({"other.txt": b"A"}))


def test_an_incomplete_folder_has_to_be_removed_first(root, archive):
    (root / "set" / "inner").mkdir(parents=True)
    (root / "set/inner/a.txt").write_text("A")
    published = archive({"inner/a.txt": b"A", "inner/b.txt": b"B"})
    with pytest.raises(DataError, match=messages.ARCHIVE_FOLDER):
        find_folder("set", ("inner/a.txt", "inner/b.txt"), published)
    shutil.rmtree(root / "set" / "inner")
    find_folder("set", ("inner/a.txt", "inner/b.txt"), published)


def test_folders_of_killed_processes_are_ignored_and_removed(root, archive):
    published = archive({"a.txt": b"A"})
    killed, locked, _ = folders = [root / "set" / f".unpacking-{name}" for name in ("killed", "locked", "new")]
    for folder in folders:
        folder.mkdir()
        (folder / "half.txt").write_text("half")
    for folder in (killed, locked):
        os.utime(folder, (0, 0))
    other = os.open(locked, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)  # a process that is still unpacking
    try:
        assert [p.name for p in find_files("set", ("*.txt",), published, "")] == ["a.txt"]
    finally:
        os.close(other)
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_an_encrypted_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.txt", "A")
    data = bytearray((tmp_path / "all.zip").read_bytes())
    data[6] |= 1  # the flag of the member itself, and of its entry in the list at the end
    data[data.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "all.zip").write_bytes(bytes(data))
    with pytest.raises(DataError, match=messages.ZIP_ENCRYPTED):
        unpack(tmp_path / "all.zip", tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "..\\out.txt", "C:/out.txt"])
def test_members_outside_the_folder_are_refused(tmp_path, name):
    home = tmp_path / "home"
    tar(tmp_path / "bad.tar.gz", {"fine.txt": b"A", name: b"B"})
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("fine.txt", "A")
        archive.writestr(name, "B")
    for archive in ("bad.tar.gz", "bad.zip"):
        with pytest.raises(DataError, match=messages.MEMBER_OUTSIDE):
            unpack(tmp_path / archive, home)
    assert list(home.iterdir()) == []  # not even the member that was fine


def test_links_are_refused(tmp_path):
    tar(tmp_path / "bad.tar.gz", {}, links={"inside": "/etc"})
    with pytest.raises(DataError, match=messages.TAR_LINK):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "home")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        info = zipfile.ZipInfo("inside")
        info.external_attr = 0o120777 << 16  # a symbolic link
        archive.writestr(info, "/etc")
    with pytest.raises(DataError, match=messages.ZIP_LINK):
        unpack(tmp_path / "bad.zip", tmp_path / "home")


@pytest.mark.parametrize("cut", [10, 60, -30])
def test_archives_cut_short_are_refused(tmp_path, cut):
    tar(tmp_path / "whole.tar.gz", {"a.bin": os.urandom(5000)})
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "whole.tar.gz").read_bytes()[:cut])
    with pytest.raises(DataError, match=messages.ARCHIVE_CUT):
        unpack(tmp_path / "cut.tar.gz", tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


def test_existing_files_are_not_overwritten(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    tar(tmp_path / "all.tar.gz", {"a.txt": b"theirs", "b.txt": b"B"})
    unpack(tmp_path / "all.tar.gz", tmp_path)
    assert (tmp_path / "a.txt").read_text() == "mine"
    assert (tmp_path / "b.txt").read_text() == "B"
