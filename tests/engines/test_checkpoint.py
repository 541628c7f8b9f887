"""Checkpoints are whole or not there, write each tensor once, and say clearly when they are damaged."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from offbeat.core.errors import CheckpointError
from offbeat.core.snapshot import pack, unpack
from offbeat.engines import checkpoint
from offbeat.engines.checkpoint import Checkpoints


def save(store: Checkpoints, value):
    store.save(lambda put: pack(value, put))


def load(folder):
    tree, get = Checkpoints(folder).load()
    return unpack(tree, get)


def packs(folder):
    return {p.name: p.stat().st_size for p in folder.glob("*.safetensors")}


def test_what_is_saved_is_loaded_with_sharing(tmp_path):
    shared = torch.arange(3.0)
    save(Checkpoints(tmp_path), {"a": shared, "b": [shared, 1, None, 2.5, "x"]})
    back = load(tmp_path)
    assert back["a"].tolist() == [0.0, 1.0, 2.0]
    assert back["a"] is back["b"][0]
    assert back["b"][1:] == [1, None, 2.5, "x"]


def test_a_tensor_that_did_not_change_is_not_written_again(tmp_path):
    store, big = Checkpoints(tmp_path), torch.zeros(1000)
    save(store, [big])
    save(store, [big, torch.ones(1)])
    assert packs(tmp_path)["000002.safetensors"] < 1000  # the 4000 bytes lie in the first pack
    assert [t.tolist()[:1] for t in load(tmp_path)] == [[0.0], [1.0]]


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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000004.json", "000004.safetensors", "000005.json", "000005.safetensors"]


def test_mostly_dead_packs_are_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SLACK", 0)
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
    again.load()
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
    with pytest.raises(CheckpointError, match="format 99, this version reads 1"):
        load(tmp_path)


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
    again.load()  # falls back to 2
    save(again, [torch.full((2,), 9.0)])
    damage(tmp_path / "000004.json")
    assert load(tmp_path)[0].tolist() == [1.0, 1.0]  # the second is still there
