"""Per-client tensors of the server, in memory and in files: shared, spilled, rounded, checkpointed by reference."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest
import torch
from test_resume import VARIANTS, die_after, engine_in, finish, finish_with_deaths

from engine import messages
from offbeat.core.errors import CheckpointError, ProtocolError
from offbeat.core.snapshot import TensorTable, pack_state, unpack_state
from offbeat.engine import slot_files
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.client_store import ClientMemory, ClientStore
from offbeat.engine.model_evaluation import state_bytes

ROW = 256  # bytes of 64 float32


def row(value: float) -> torch.Tensor:
    return torch.full((64,), float(value))


def fill(store: ClientStore, clients: int, first: float = 0) -> None:
    """Store the value `first` + n for client n."""
    for client in range(clients):
        store[client] = row(first + client)


def filled(memory: ClientMemory, clients: int = 6) -> ClientStore:
    store = memory.store("x")
    fill(store, clients)
    return store


def values(store: ClientStore) -> dict[int, float]:
    return {client: float(store[client][0]) for client in store}


def in_file(memory: ClientMemory) -> int:
    """Slots that are in use."""
    return sum(file.count - len(file.free) for file in memory._files.values())


# ---------------------------------------------------------------- a mapping


def test_a_store_is_a_dict_with_its_order(tmp_path):
    for memory in (ClientMemory(), ClientMemory(2 * ROW), ClientMemory(1, folder=tmp_path)):
        store, plain = filled(memory), {client: row(client) for client in range(6)}
        for each in (store, plain):
            each[3] = row(33)
            del each[1]
            assert each.pop(4)[0] == 4
            each[1] = row(11)
        assert list(store) == list(plain)
        assert len(store) == 5
        assert 4 not in store
        assert store.get(4) is None
        assert all(torch.equal(store[client], plain[client]) for client in plain)
        with pytest.raises(KeyError):
            store[4]
        store.clear()
        assert not store
        assert memory.resident == 0
        assert in_file(memory) == 0


def test_the_memory_limit_holds_and_recently_used_rows_stay():
    memory = ClientMemory(3 * ROW)
    store = filled(memory, 3)
    store[0]
    store[3] = row(3)
    assert memory.resident == 3 * ROW
    inside = {client for client, kept in store._rows.items() if kept.tensor is not None}
    assert inside == {0, 2, 3}  # 1 was used least recently
    assert store[1][0] == 1


def test_stores_of_a_run_share_the_memory_limit():
    memory = ClientMemory(4 * ROW)
    first, second = filled(memory), filled(memory)
    assert memory.resident == 4 * ROW
    assert values(first) == values(second) == {client: client for client in range(6)}


def test_membership_and_iteration_read_no_row(monkeypatch):
    store = filled(ClientMemory(ROW))
    monkeypatch.setattr(slot_files.SlotFile, "read", lambda *_: pytest.fail("it read"))
    assert 2 in store
    assert list(store) == list(range(6))
    state_bytes({"store": store})
    store.clear()


# ---------------------------------------------------------------- immutable


@pytest.mark.parametrize("most", [inf, ROW])
def test_a_tensor_that_was_read_stays_the_same_when_its_client_gets_another(most):
    store = filled(ClientMemory(most))
    read = [store[client] for client in range(6)]
    parts = [tensor[3:5] for tensor in read]
    for _ in range(3):  # slots are used again
        fill(store, 6, first=100)
    assert [float(tensor[0]) for tensor in read] == [float(part[0]) for part in parts] == list(range(6))


def test_a_tensor_changed_in_place_is_noticed_when_it_is_spilled():
    store, changed = ClientMemory(ROW).store("x"), row(1)
    store[0] = changed
    changed.add_(1)
    with pytest.raises(ProtocolError, match=messages.CHANGED_IN_PLACE):
        store[1] = row(2)


def test_views_are_stored_without_the_rest_of_their_tensor():
    memory, whole = ClientMemory(), torch.arange(640.0).view(10, 64)
    store = memory.store("x")
    store[0], store[1] = whole[3], whole[:, 5]
    assert torch.equal(store[0], whole[3])
    assert torch.equal(store[1], whole[:, 5])
    assert memory.resident == ROW + 40
    assert state_bytes(store) == ROW + 40


# ---------------------------------------------------------------- shared


def test_equal_tensors_are_kept_once(tmp_path):
    memory = ClientMemory(2 * ROW, folder=tmp_path)
    store, other, model = memory.store("x"), memory.store("y"), row(7)
    for client in range(100):
        store[client] = model
        other[client] = model.clone()
    assert memory.resident == ROW
    assert store[5] is model
    assert state_bytes([store, other]) == ROW
    for client in range(10):  # push it out, and it is still found
        store[client] = row(client)
    other[500] = row(7)
    assert other._rows[500] is store._rows[50]
    assert len(list(store.rows())) == 10 + 1 - 1  # seven is equal to the others


def test_equal_is_bit_for_bit():
    store = ClientMemory().store("x")
    store[0], store[1] = torch.zeros(64), -torch.zeros(64)
    store[2], store[3] = torch.zeros(64, dtype=torch.float64), torch.zeros(8, 8)
    assert len(list(store.rows())) == 4
    assert torch.signbit(store[1]).all()
    assert not torch.signbit(store[0]).any()
    assert store[2].dtype == torch.float64
    assert store[3].shape == (8, 8)
    nearly = torch.zeros(1000)
    nearly[1] = 1  # not among the entries on which the hash of so many depends
    store[4], store[5] = torch.zeros(1000), nearly
    assert store._rows[4] is not store._rows[5]


def test_half_precision_takes_half_and_returns_the_dtype_of_the_tensor():
    memory = ClientMemory(half_precision=True)
    store = memory.store("x")
    store[0], store[1] = row(1 / 3), torch.arange(64)
    assert memory.resident == ROW // 2 + 512  # whole numbers are not rounded
    assert store[0].dtype == torch.float32
    assert torch.allclose(store[0], row(1 / 3), rtol=2**-8)
    assert not torch.equal(store[0], row(1 / 3))
    assert torch.equal(store[1], torch.arange(64))
    spilled = ClientMemory(1, half_precision=True).store("x")
    spilled[0], spilled[1] = row(1 / 3), row(2)
    assert torch.equal(spilled[0], store[0])


# ---------------------------------------------------------------- checkpoints


def opened(folder: Path, most: float = inf) -> tuple[ClientMemory, Checkpoints, ClientStore]:
    memory = ClientMemory(most, folder=folder)
    checkpoints = Checkpoints(folder, external=memory)

    def read(tree, get):
        store = memory.store("x")
        store.restore(tree, get)
        return store

    return memory, checkpoints, checkpoints.load(read) if checkpoints.exist() else memory.store("x")


def count_writes(monkeypatch) -> list[int]:
    """Count the rows that are written from here on."""
    real, count = slot_files.SlotFile.write, [0]

    def counting(self, tensor):
        count[0] += 1
        return real(self, tensor)

    monkeypatch.setattr(slot_files.SlotFile, "write", counting)
    return count


def test_only_changed_rows_are_written(tmp_path, monkeypatch):
    memory, checkpoints, store = opened(tmp_path, 3 * ROW)
    fill(store, 10)
    checkpoints.save(store.save)
    count = count_writes(monkeypatch)
    checkpoints.save(store.save)
    assert count == [0]
    store[4], store[20] = row(44), store[3]
    checkpoints.save(store.save)
    assert count == [1]
    assert in_file(memory) == 11  # 4 as it was: the checkpoint before refers to it
    assert sum(path.stat().st_size for path in tmp_path.glob("*.safetensors")) < 20_000


def test_both_checkpoints_can_be_read_after_every_change(tmp_path):
    """The process dies after each single operation; slots are used again, the file does not grow forever."""
    memory, checkpoints, store = opened(tmp_path, 2 * ROW)
    saved: list[dict[int, float]] = []
    for i in range(60):
        store[i % 7] = row(1000 + i)
        if i % 11 == 5:
            store.pop((i + 3) % 7, None)
        if i % 4 == 3:
            checkpoints.save(store.save)
            saved.append(values(store))
        names = sorted(tmp_path.glob("*.json"))
        for name, expected in zip(reversed(names), reversed(saved), strict=False):
            for path in tmp_path.glob("*.json"):
                path.rename(path.with_suffix(".json" if path == name else ".hidden"))
            assert values(opened(tmp_path)[2]) == expected
            for path in tmp_path.glob("*.hidden"):
                path.rename(path.with_suffix(".json"))
    # 7 clients; 4 changed between two checkpoints, and the last two are kept: 7 + 2 x 4 rows, or a few more
    assert memory._files[ROW].count <= 16


def test_killed_again_and_again_before_a_checkpoint_the_file_does_not_grow(tmp_path):
    _, checkpoints, store = opened(tmp_path, ROW)
    fill(store, 5)
    checkpoints.save(store.save)
    sizes = set()
    for attempt in range(5):
        memory, _, store = opened(tmp_path, ROW)
        fill(store, 5, first=100 * attempt)
        sizes.add(memory._files[ROW].count)
    assert len(sizes) == 1
    assert values(opened(tmp_path)[2]) == {client: client for client in range(5)}


def test_killed_before_an_old_checkpoint_was_removed_no_slot_is_used_twice(tmp_path, monkeypatch):
    """Then three exist, and the older two refer to the same rows: both are deleted with the next one."""

    def dies() -> None:
        raise KeyboardInterrupt

    _, checkpoints, store = opened(tmp_path, ROW)
    fill(store, 3)
    checkpoints.save(store.save)
    checkpoints.save(store.save)
    fill(store, 3, first=10)
    monkeypatch.setattr(checkpoints, "_delete_old", dies)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(store.save)
    assert len(list(tmp_path.glob("*.json"))) == 3

    memory, checkpoints, store = opened(tmp_path, ROW)
    checkpoints.save(store.save)
    (file,) = memory._files.values()
    assert sorted(file.free) == [0, 1, 2]
    fill(store, 10, first=20)
    checkpoints.save(store.save)
    assert values(opened(tmp_path)[2]) == {client: 20 + client for client in range(10)}


def test_a_checkpoint_restores_sharing(tmp_path):
    _, checkpoints, store = opened(tmp_path)
    store[0] = store[1] = row(7)
    checkpoints.save(store.save)
    memory, _, again = opened(tmp_path)
    assert again._rows[0] is again._rows[1]
    assert in_file(memory) == 1


def test_a_damaged_row_gives_way_to_the_checkpoint_before_it(tmp_path, caplog):
    _, checkpoints, store = opened(tmp_path)
    store[0], store[1] = row(0), row(1)
    checkpoints.save(store.save)
    store[1] = row(2)
    checkpoints.save(store.save)
    path = tmp_path / f"rows-{ROW}.slots"
    data = bytearray(path.read_bytes())
    data[2 * ROW + 100] ^= 1
    path.write_bytes(data)
    assert values(opened(tmp_path)[2]) == {0: 0, 1: 1}
    assert re.search(messages.DAMAGED_SLOT, caplog.text)


def test_damage_to_a_row_of_both_checkpoints_is_one_line_and_so_is_a_missing_file(tmp_path):
    _, checkpoints, store = opened(tmp_path)
    store[0] = row(0)
    checkpoints.save(store.save)
    checkpoints.save(store.save)
    path = tmp_path / f"rows-{ROW}.slots"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=messages.DAMAGED_IN_BOTH):
        opened(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=messages.NO_SLOT):
        opened(tmp_path)


def test_a_row_that_changed_on_disk_during_the_run_is_noticed(tmp_path):
    memory = ClientMemory(1, folder=tmp_path)
    store = filled(memory, 2)
    (tmp_path / f"rows-{ROW}.slots").write_bytes(b"\xff" * ROW)
    with pytest.raises(CheckpointError, match=messages.DAMAGED.format("")):
        store[0]


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(handle: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = filled(ClientMemory(ROW, folder=tmp_path), 1)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match=messages.SLOTS_DISK_FULL):
        store[1] = row(1)


def test_a_row_of_an_unusable_checkpoint_frees_no_slot_of_another_row(tmp_path):
    memory, checkpoints, store = opened(tmp_path)
    store[0] = row(0)
    checkpoints.save(store.save)
    held = store._rows[0]
    path, other = tmp_path / f"rows-{ROW}.slots", row(5)
    path.write_bytes(other.numpy().tobytes())
    again = memory.find_row(held.format, held.slot, hashlib.sha256(other.numpy().tobytes()).digest())
    memory.keep_references([])
    store.clear()
    del held
    assert memory._files[ROW].free == []
    assert memory.read_row(again)[0] == 5
    del again
    assert memory._files[ROW].free == [0]


def test_links_are_not_followed(tmp_path):
    (tmp_path / f"rows-{ROW}.slots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=messages.CANNOT_OPEN):
        filled(ClientMemory(1, folder=tmp_path))


# ---------------------------------------------------------------- runs

STORED = [name for name in VARIANTS if name.split()[0] in
          ("ca2fl", "mifa", "fed_ogd", "safa", "orthofl", "gradma", "fedpac", "local")]  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_a_run_with_spilled_rows_equals_one_without_wherever_it_is_stopped(tmp_path, name):
    whole = finish(engine_in(tmp_path / "whole", VARIANTS[name]))
    memories: list[ClientMemory] = []

    def stored_engine():
        for memory in memories:
            memory.close()
        memories.append(ClientMemory(1, folder=tmp_path / "stopped" / "checkpoint"))
        return engine_in(tmp_path / "stopped", VARIANTS[name], memory=memories[-1])

    result, deaths = finish_with_deaths(stored_engine, events=15)
    memories[-1].close()
    assert deaths >= 3
    assert result == whole


def test_a_checkpoint_without_a_store_is_read_into_one_and_the_limit_may_change(tmp_path):
    strategy = VARIANTS["ca2fl"]
    whole = finish(engine_in(tmp_path / "whole", strategy))
    for most in (None, ROW, inf, 1, None):
        memory = None if most is None else ClientMemory(most, folder=tmp_path / "x" / "checkpoint")
        engine = engine_in(tmp_path / "x", strategy, memory=memory)
        if most is None and (tmp_path / "x" / "checkpoint").exists():
            with pytest.raises(CheckpointError, match=r"\$store"):
                engine.restore()
            engine.trace.db.close()
            break
        engine.restore()
        engine.checkpoint_every = 0.0
        die_after(engine, events=20)
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        engine.trace.db.close()
    engine = engine_in(tmp_path / "x", strategy, memory=ClientMemory(folder=tmp_path / "x" / "checkpoint"))
    engine.restore()
    assert finish(engine) == whole


def test_a_state_without_a_store_for_stored_rows_is_an_error(tmp_path):
    @dataclass
    class Holding:
        store: dict[int, torch.Tensor]

    store = filled(ClientMemory(folder=tmp_path), 2)
    table = TensorTable()
    tree = pack_state(Holding(store), table.put)
    with pytest.raises(CheckpointError):
        unpack_state(Holding({}), tree, table.get)
    back = unpack_state(Holding(ClientMemory(folder=tmp_path).store("x")), tree, table.get)
    assert values(back.store) == {0: 0, 1: 1}
