"""Checkpoints are whole or not there, write each tensor once, and say clearly when they are damaged."""

from __future__ import annotations

import errno
import hashlib
import json
import os

import messages
import pytest
import torch

from offbeat.core.errors import CheckpointError
from offbeat.core.snapshot import pack, unpack
from offbeat.engine import checkpoint
from offbeat.engine.checkpoint import Checkpoints


def save(store: Checkpoints, value):
    store.save(lambda put: pack(value, put))


def load(folder):
    return Checkpoints(folder).load(unpack)


def packs(folder):
    return {p.name: p.stat().st_size for p in folder.glob("*.safetensors")}


def test_what_is_saved_is_loaded_with_sharing(tmp_path):
    shared = torch.arange(3.0)
    save(Checkpoints(tmp_path), {"a": shared, "b": [shared, 1, None, 2.5, "x"]})
    back = load(tmp_path)
    assert back["a"].tolist() == [0.0, 1.0, 2.0]
    assert back["a"] is back["b"][0]
    assert back["b"][1:] == [1, None, 2.5, "x"]


def test_a_tensor_that_did_not_change_is_written_twice_and_never_again(tmp_path):
    store, big = Checkpoints(tmp_path), torch.zeros(1000)
    for i in range(6):
        save(store, [big, torch.full((1,), float(i))])
    sizes = packs(tmp_path)
    # the 4000 bytes lie in the first two packs
    assert sorted(size > 4000 for name, size in sizes.items()) == [False, False, True, True]
    assert [t.tolist()[:1] for t in load(tmp_path)] == [[0.0], [5.0]]


def test_whichever_one_file_is_damaged_one_of_the_two_checkpoints_is_whole(tmp_path):
    """They share none: tensors that live long, that changed, that are new, over many checkpoints and a resume."""
    store, held, total = Checkpoints(tmp_path / "x"), torch.zeros(1000), torch.zeros(3)
    for i in range(9):
        if i == 5:
            store = Checkpoints(tmp_path / "x")
            held, total, _ = store.load(unpack)
        total.add_(1)
        save(store, [held, total, torch.full((2,), float(i))])
        whole = {path: path.read_bytes() for path in (tmp_path / "x").iterdir()}
        for path in whole if i else ():
            damage(path)
            back = load(tmp_path / "x")
            assert [back[1][0].item() - 1, back[2][0].item()] in ([i, i], [i - 1, i - 1]), path
            path.write_bytes(whole[path])


def test_after_a_fallback_too(tmp_path):
    """The damaged one does not count as one of the two."""
    store, held = Checkpoints(tmp_path), torch.zeros(1000)
    for _ in range(3):
        save(store, [held])
    damage(tmp_path / "000003.json")
    store = Checkpoints(tmp_path)
    [held] = store.load(unpack)
    save(store, [held])
    for path in tmp_path.glob("*.safetensors"):
        kept = path.read_bytes()
        damage(path)
        assert load(tmp_path)[0].tolist() == held.tolist()
        path.write_bytes(kept)


def test_a_tensor_changed_in_place_is_written_again(tmp_path):
    store, total = Checkpoints(tmp_path), torch.zeros(3)
    save(store, [total])
    total.add_(1)
    save(store, [total])
    assert load(tmp_path)[0].tolist() == [1.0, 1.0, 1.0]


def test_the_last_two_are_kept_and_packs_nobody_needs_are_removed(tmp_path):
    store = Checkpoints(tmp_path)
    for i in range(5):
        save(store, [torch.full((4,), float(i))])
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000004.json",
        "000004.safetensors",
        "000005.json",
        "000005.safetensors",
    ]


def test_mostly_dead_packs_are_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MIN_DEAD_BYTES", 0)
    store, keep = Checkpoints(tmp_path), torch.zeros(10)
    save(store, [keep, torch.zeros(10_000)])
    for _ in range(3):  # only the small one lives on: it must not keep 40 kB alive for ever
        save(store, [keep, torch.zeros(10)])
    assert sum(packs(tmp_path).values()) < 2_000
    assert load(tmp_path)[0].tolist() == keep.tolist()


def test_views_and_half_precision_survive(tmp_path):
    base = torch.arange(10, dtype=torch.bfloat16)
    save(Checkpoints(tmp_path), [base[2:5], base[2:5], torch.tensor(3)])
    a, b, c = load(tmp_path)
    assert a.tolist() == b.tolist() == [2.0, 3.0, 4.0]
    assert a.dtype == torch.bfloat16
    assert c.item() == 3


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("what", ["000002.json", "000002.safetensors"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, what, caplog):
    store = Checkpoints(tmp_path)
    save(store, [torch.zeros(2)])
    save(store, [torch.ones(2)])
    damage(tmp_path / what)
    assert load(tmp_path)[0].tolist() == [0.0, 0.0]
    assert f"{what} is damaged" in caplog.text


def test_a_truncated_or_missing_pack_is_a_clear_error_and_nothing_is_removed(tmp_path):
    save(Checkpoints(tmp_path), [torch.zeros(2)])
    pack_file = tmp_path / "000001.safetensors"
    pack_file.write_bytes(pack_file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"no usable checkpoint.*000001.safetensors is damaged"):
        load(tmp_path)
    pack_file.unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*000001.safetensors: No such file"):
        load(tmp_path)
    assert (tmp_path / "000001.json").exists()


def test_after_a_fallback_the_next_checkpoint_is_newer_than_the_damaged_one(tmp_path):
    store = Checkpoints(tmp_path)
    save(store, [torch.zeros(2)])
    save(store, [torch.ones(2)])
    damage(tmp_path / "000002.json")
    again = Checkpoints(tmp_path)
    again.load(unpack)
    save(again, [torch.full((2,), 3.0)])
    assert load(tmp_path)[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path, monkeypatch, call):
    store = Checkpoints(tmp_path)
    save(store, [torch.zeros(2)])

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(store, [torch.ones(2)])
    monkeypatch.undo()
    assert load(tmp_path)[0].tolist() == [0.0, 0.0]
    assert not list(tmp_path.glob("*.tmp"))
    save(store, [torch.ones(2)])  # and when there is room again, it goes on
    assert load(tmp_path)[0].tolist() == [1.0, 1.0]


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    save(Checkpoints(tmp_path), [1])
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=messages.UNKNOWN_FORMAT):
        load(tmp_path)


def sealed(body: str) -> str:
    return f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


@pytest.mark.parametrize(
    "change",
    [
        {"packs": None}, {"packs": {"../x.safetensors": {"sha256": "", "bytes": 1}}},
        {"packs": {"000001.safetensors": {}}}, {"pack_of": 3},
        {"pack_of": [[0, "nowhere.safetensors"]]}, {"pack_of": [["a", "000001.safetensors"]]},
        {"pack_of": [[7, "000001.safetensors"]]},
        {"next": "many"}, {"tree": 1}, {"tree": {"$tensor": 55}}, {"format": []}, {"format": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_with_a_valid_hash_and_other_fields_is_one_line(tmp_path, change):
    save(Checkpoints(tmp_path), [torch.zeros(2)])
    path = tmp_path / "000001.json"
    body = json.loads(path.read_bytes().partition(b"\n")[2])
    path.write_text(sealed(json.dumps({**body, **change})))
    with pytest.raises(CheckpointError, match=r"000001"):
        load(tmp_path)
    for field in body:
        path.write_text(sealed(json.dumps({name: value for name, value in body.items() if name != field})))
        with pytest.raises(CheckpointError, match=r"000001"):
            load(tmp_path)


@pytest.mark.parametrize(
    "body", ["", "[]", "1", "[" * 100_000, "\ufeff{}"], ids=["nothing", "list", "number", "deep", "mark"]
)
def test_so_is_one_that_holds_something_else(tmp_path, body):
    (tmp_path / "000001.json").write_text(sealed(body))
    with pytest.raises(CheckpointError, match=r"000001.json"):
        load(tmp_path)


def test_a_pack_with_a_valid_hash_that_is_none_is_one_line(tmp_path):
    save(Checkpoints(tmp_path), [torch.zeros(2)])
    path, pack_file = tmp_path / "000001.json", tmp_path / "000001.safetensors"
    body = json.loads(path.read_bytes().partition(b"\n")[2])
    for data in (b"", b"nothing of the kind", b"\xff" * 100):
        pack_file.write_bytes(data)
        body["packs"][pack_file.name]["sha256"] = hashlib.sha256(data).hexdigest()
        path.write_text(sealed(json.dumps(body)))
        with pytest.raises(CheckpointError, match=messages.INVALID_PACK):
            load(tmp_path)


def test_no_link_is_followed_when_a_file_is_written(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("000001.json", "000001.json.tmp", "000001.safetensors", "000001.safetensors.tmp"):
        (folder / name).symlink_to(victim)
    checkpoint.write_atomically(folder / "000001.json", b"new")
    checkpoint.write_atomically(folder / "000001.safetensors", b"new")
    assert victim.read_text() == "precious"
    assert (folder / "000001.json").read_bytes() == b"new"


def test_no_pickle_is_written(tmp_path):
    save(Checkpoints(tmp_path), {"a": torch.zeros(2), "b": (1, 2)})
    for path in tmp_path.iterdir():
        assert path.suffix in (".json", ".safetensors")
        assert not path.read_bytes().startswith(b"\x80")  # the first byte of every pickle since protocol 2


def test_a_damaged_checkpoint_does_not_push_out_the_good_one_before_it(tmp_path):
    store = Checkpoints(tmp_path)
    for i in range(3):
        save(store, [torch.full((2,), float(i))])
    damage(tmp_path / "000003.safetensors")
    again = Checkpoints(tmp_path)
    again.load(unpack)  # falls back to 2
    save(again, [torch.full((2,), 9.0)])
    damage(tmp_path / "000004.json")
    assert load(tmp_path)[0].tolist() == [1.0, 1.0]  # the second is still there


def test_a_checkpoint_that_cannot_be_read_for_a_moment_keeps_its_tensors(tmp_path, monkeypatch):
    """Its packs are not known then: removing what nobody else needs would take them."""
    store, held = Checkpoints(tmp_path), torch.ones(3)
    for _ in range(3):
        save(store, [held])
    read = checkpoint._read_manifest

    def failing(path):
        raise CheckpointError(f"cannot read {path}: Input/output error")

    monkeypatch.setattr(checkpoint, "_read_manifest", failing)
    save(store, [held])
    monkeypatch.setattr(checkpoint, "_read_manifest", read)
    assert load(tmp_path)[0].tolist() == [1.0, 1.0, 1.0]
    save(store, [held])
    assert load(tmp_path)[0].tolist() == [1.0, 1.0, 1.0]
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert len(packs(tmp_path)) <= 2
