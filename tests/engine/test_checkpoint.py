"""Checkpoints are complete or absent, write each tensor once, and report damage in one line."""

from __future__ import annotations

import errno
import hashlib
import json
import os

import pytest
import torch

from engine import messages
from offbeat.core.errors import CheckpointError
from offbeat.core.snapshot import pack, unpack
from offbeat.engine import checkpoint
from offbeat.engine.checkpoint import Checkpoints


def save(store: Checkpoints, value) -> None:
    store.save(lambda put: pack(value, put))


def save_each(folder, *values) -> Checkpoints:
    """Write one checkpoint per value."""
    store = Checkpoints(folder)
    for value in values:
        save(store, value)
    return store


def load(folder):
    return Checkpoints(folder).load(unpack)


def numbers(folder) -> list[float]:
    """Return the first tensor of the newest readable checkpoint."""
    return load(folder)[0].tolist()


def packs(folder):
    return {p.name: p.stat().st_size for p in folder.glob("*.safetensors")}


def damage(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def full(value: float, length: int = 2) -> torch.Tensor:
    return torch.full((length,), float(value))


# ---------------------------------------------------------------- contents


def test_a_saved_value_is_loaded_with_sharing(tmp_path):
    shared = torch.arange(3.0)
    save_each(tmp_path, {"a": shared, "b": [shared, 1, None, 2.5, "x"]})
    back = load(tmp_path)
    assert back["a"].tolist() == [0.0, 1.0, 2.0]
    assert back["a"] is back["b"][0]
    assert back["b"][1:] == [1, None, 2.5, "x"]


def test_views_and_half_precision_are_restored(tmp_path):
    base = torch.arange(10, dtype=torch.bfloat16)
    save_each(tmp_path, [base[2:5], base[2:5], torch.tensor(3)])
    a, b, c = load(tmp_path)
    assert a.tolist() == b.tolist() == [2.0, 3.0, 4.0]
    assert a.dtype == torch.bfloat16
    assert c.item() == 3


def test_a_tensor_that_did_not_change_is_written_twice_and_never_again(tmp_path):
    big = torch.zeros(1000)
    save_each(tmp_path, *([big, full(i, 1)] for i in range(6)))
    # the 4000 bytes are in the first two packs
    assert sorted(size > 4000 for size in packs(tmp_path).values()) == [False, False, True, True]
    assert [t.tolist()[:1] for t in load(tmp_path)] == [[0.0], [5.0]]


def test_a_tensor_changed_in_place_is_written_again(tmp_path):
    total = torch.zeros(3)
    store = save_each(tmp_path, [total])
    total.add_(1)
    save(store, [total])
    assert numbers(tmp_path) == [1.0, 1.0, 1.0]


def test_the_last_two_are_kept_and_unused_packs_are_removed(tmp_path):
    save_each(tmp_path, *([full(i)] for i in range(5)))
    expected = [f"00000{number}.{kind}" for number in (4, 5) for kind in ("json", "safetensors")]
    assert sorted(p.name for p in tmp_path.iterdir()) == expected


def test_packs_of_mostly_unused_tensors_are_abandoned(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MIN_DEAD_BYTES", 0)
    keep = torch.zeros(10)
    # only the small tensor remains in use: it must not keep 40 kB
    save_each(tmp_path, [keep, torch.zeros(10_000)], *([keep, torch.zeros(10)] for _ in range(3)))
    assert sum(packs(tmp_path).values()) < 2_000
    assert numbers(tmp_path) == keep.tolist()


def test_no_pickle_is_written(tmp_path):
    save_each(tmp_path, {"a": torch.zeros(2), "b": (1, 2)})
    for path in tmp_path.iterdir():
        assert path.suffix in (".json", ".safetensors")
        assert not path.read_bytes().startswith(b"\x80")  # the first byte of every pickle since protocol 2


# ---------------------------------------------------------------- damage


def test_whichever_file_is_damaged_one_of_the_two_checkpoints_is_intact(tmp_path):
    """They share no file: old, changed and new tensors, over many checkpoints and a resume."""
    folder = tmp_path / "x"
    store, held, total = Checkpoints(folder), torch.zeros(1000), torch.zeros(3)
    for i in range(9):
        if i == 5:
            store = Checkpoints(folder)
            held, total, _ = store.load(unpack)
        total.add_(1)
        save(store, [held, total, full(i)])
        intact = {path: path.read_bytes() for path in folder.iterdir()}
        for path in intact if i else ():
            damage(path)
            back = load(folder)
            assert [back[1][0].item() - 1, back[2][0].item()] in ([i, i], [i - 1, i - 1]), path
            path.write_bytes(intact[path])


def test_after_a_fallback_one_of_two_is_intact_too(tmp_path):
    """The damaged one does not count as one of the two."""
    held = torch.zeros(1000)
    save_each(tmp_path, *[[held]] * 3)
    damage(tmp_path / "000003.json")
    store = Checkpoints(tmp_path)
    [held] = store.load(unpack)
    save(store, [held])
    for path in tmp_path.glob("*.safetensors"):
        before = path.read_bytes()
        damage(path)
        assert numbers(tmp_path) == held.tolist()
        path.write_bytes(before)


@pytest.mark.parametrize("file", ["000002.json", "000002.safetensors"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_the_next_one_is_newer(tmp_path, file, caplog):
    save_each(tmp_path, [full(0)], [full(1)])
    damage(tmp_path / file)
    again = Checkpoints(tmp_path)
    assert again.load(unpack)[0].tolist() == [0.0, 0.0]
    assert messages.DAMAGED.format(file) in caplog.text
    save(again, [full(3)])
    assert numbers(tmp_path) == [3.0, 3.0]


def test_a_damaged_checkpoint_does_not_displace_the_intact_one_before_it(tmp_path):
    save_each(tmp_path, *([full(i)] for i in range(3)))
    damage(tmp_path / "000003.safetensors")
    again = Checkpoints(tmp_path)
    again.load(unpack)  # falls back to 2
    save(again, [full(9)])
    damage(tmp_path / "000004.json")
    assert numbers(tmp_path) == [1.0, 1.0]  # the second is still there


def test_a_truncated_or_missing_pack_is_one_line_and_nothing_is_removed(tmp_path):
    save_each(tmp_path, [full(0)])
    pack_file = tmp_path / "000001.safetensors"
    pack_file.write_bytes(pack_file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=messages.NO_USABLE_CHECKPOINT):
        load(tmp_path)
    pack_file.unlink()
    with pytest.raises(CheckpointError, match=messages.PACK_MISSING):
        load(tmp_path)
    assert (tmp_path / "000001.json").exists()


def test_a_checkpoint_that_is_unreadable_for_a_moment_keeps_its_tensors(tmp_path, monkeypatch):
    """Its packs are not known then: removing unused packs would take them."""
    held = torch.ones(3)
    store = save_each(tmp_path, *[[held]] * 3)

    def fail(path):
        raise CheckpointError(f"cannot read {path}: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_read_manifest", fail)
        save(store, [held])
    assert numbers(tmp_path) == [1.0, 1.0, 1.0]
    save(store, [held])
    assert numbers(tmp_path) == [1.0, 1.0, 1.0]
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert len(packs(tmp_path)) <= 2


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_checkpoint_before_intact(tmp_path, monkeypatch, call):
    store = save_each(tmp_path, [full(0)])

    def no_space(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_space)
        with pytest.raises(CheckpointError, match=messages.NO_SPACE):
            save(store, [full(1)])
    assert numbers(tmp_path) == [0.0, 0.0]
    assert not list(tmp_path.glob("*.tmp"))
    save(store, [full(1)])  # and with space again, it continues
    assert numbers(tmp_path) == [1.0, 1.0]


# ---------------------------------------------------------------- files with a valid hash and other contents


def with_hash(body: str) -> str:
    return f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def fields_of(path) -> dict:
    return json.loads(path.read_bytes().partition(b"\n")[2])


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        save_each(tmp_path, [1])
    with pytest.raises(CheckpointError, match=messages.UNKNOWN_FORMAT):
        load(tmp_path)


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
def test_other_or_missing_fields_are_one_line(tmp_path, change):
    save_each(tmp_path, [full(0)])
    path = tmp_path / "000001.json"
    body = fields_of(path)
    without = [{name: value for name, value in body.items() if name != field} for field in body]
    for fields in [{**body, **change}, *without]:
        path.write_text(with_hash(json.dumps(fields)))
        with pytest.raises(CheckpointError, match=r"000001"):
            load(tmp_path)


@pytest.mark.parametrize(
    "body", ["", "[]", "1", "[" * 100_000, "\ufeff{}"], ids=["nothing", "list", "number", "deep", "mark"]
)
def test_another_document_is_one_line(tmp_path, body):
    (tmp_path / "000001.json").write_text(with_hash(body))
    with pytest.raises(CheckpointError, match=r"000001.json"):
        load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"nothing of the kind", b"\xff" * 100])
def test_a_pack_that_is_none_is_one_line(tmp_path, data):
    save_each(tmp_path, [full(0)])
    path, pack_file = tmp_path / "000001.json", tmp_path / "000001.safetensors"
    body = fields_of(path)
    pack_file.write_bytes(data)
    body["packs"][pack_file.name]["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(with_hash(json.dumps(body)))
    with pytest.raises(CheckpointError, match=messages.INVALID_PACK):
        load(tmp_path)


def test_links_are_not_followed_when_a_file_is_written(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "checkpoint"
    victim.write_text("precious")
    folder.mkdir()
    names = ("000001.json", "000001.safetensors")
    for name in names:
        (folder / name).symlink_to(victim)
        (folder / f"{name}.tmp").symlink_to(victim)
        checkpoint.write_atomically(folder / name, b"new")
        assert (folder / name).read_bytes() == b"new"
    assert victim.read_text() == "precious"
