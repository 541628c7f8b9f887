"""Checkpoints on disk: a JSON tree plus packs of tensors in safetensors, each file written whole or not at all.

A tensor that was written by an earlier checkpoint and has not changed since is referred to, not written again:
published models are immutable, so a checkpoint costs what is new. The last two checkpoints are kept; if the newest
is damaged the one before serves. Packs that hold mostly dead tensors are left behind by rewriting what is alive.

    checkpoint/000007.json          first line: SHA-256 of the rest; then the tree and where each tensor lies
    checkpoint/000007.safetensors   the tensors that were new at that checkpoint
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from offbeat.core.errors import CheckpointError
from offbeat.core.snapshot import Get, Put, Tree

log = logging.getLogger("offbeat")

FORMAT = 1
SLACK = 1 << 20  # dead bytes that are not worth a rewrite


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that lies in a pack, as it was then."""

    tensor: weakref.ref[Tensor]
    changes: int  # torch counts in-place changes; a tensor changed since must be written again
    number: int


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, Written] = {}  # by id of the tensor object
        self._home: dict[int, str] = {}  # tensor number -> pack
        self._packs: dict[str, dict[str, Any]] = {}  # pack -> its hash and size
        self._sizes: dict[int, int] = {}
        self._next_number = 0
        self._next_checkpoint = 1
        self._damaged: set[str] = set()  # checkpoints that could not be read: they must not push out a good one

    # ------------------------------------------------------------ writing

    def save(self, build: Callable[[Put], Tree]) -> None:
        """Write one checkpoint; `build` packs the state with the given `put`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tree, used, new = self._collect(build)
        if self._wasteful(used):
            self._written.clear()  # nothing counts as written: all that is alive goes into the new pack
            tree, used, new = self._collect(build)
        name = f"{self._next_checkpoint:06d}"
        if new:
            self._write_pack(name, new)
        home = {number: self._home[number] for number in used}
        packs = {pack: self._packs[pack] for pack in sorted(set(home.values()))}
        body = json.dumps({"format": FORMAT, "tree": tree, "home": list(home.items()), "packs": packs, "next": self._next_number})
        line = hashlib.sha256(body.encode()).hexdigest()
        write_whole(self.folder / f"{name}.json", f"{line}\n{body}".encode())
        self._next_checkpoint += 1
        self._written = {id(t): Written(weakref.ref(t), t._version, n) for n, t in used.items()}
        self._clean()

    def _collect(self, build: Callable[[Put], Tree]) -> tuple[Tree, dict[int, Tensor], dict[int, Tensor]]:
        used: dict[int, Tensor] = {}
        new: dict[int, Tensor] = {}
        numbers: dict[int, int] = {}  # id of the tensor object -> number, within this checkpoint

        def put(tensor: Tensor) -> int:
            if id(tensor) in numbers:
                return numbers[id(tensor)]
            known = self._written.get(id(tensor))
            if known and known.tensor() is tensor and known.changes == tensor._version:
                number = known.number
            else:
                number = self._next_number
                self._next_number += 1
                new[number] = tensor
            used[number] = tensor
            numbers[id(tensor)] = number
            return number

        return build(put), used, new

    def _wasteful(self, used: dict[int, Tensor]) -> bool:
        old = {self._home[n] for n in used if n in self._home}
        held: int = sum(self._packs[pack]["bytes"] for pack in old)
        alive = sum(self._sizes[n] for n in used if n in self._home)
        return held > 2 * alive + SLACK

    def _write_pack(self, name: str, new: dict[int, Tensor]) -> None:
        tensors: dict[str, Tensor] = {}
        places: set[int] = set()
        for number, tensor in new.items():
            flat = tensor.detach().cpu().contiguous()
            if flat.data_ptr() in places or flat.untyped_storage().nbytes() != flat.nbytes:
                flat = flat.clone()  # safetensors refuses tensors that share memory
            places.add(flat.data_ptr())
            tensors[str(number)] = flat
            self._sizes[number] = flat.nbytes
            self._home[number] = f"{name}.safetensors"
        data = save(tensors)
        write_whole(self.folder / f"{name}.safetensors", data)
        self._packs[f"{name}.safetensors"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

    def _clean(self) -> None:
        """Keep the last two checkpoints and the packs they refer to."""
        manifests = [path for path in self._manifests() if path.name not in self._damaged]
        for path in self._manifests():
            if path not in manifests[-2:]:
                path.unlink(missing_ok=True)
        needed: set[str] = set()
        for kept in manifests[-2:]:
            with contextlib.suppress(CheckpointError):
                needed |= set(_read_manifest(kept)["packs"])
        for pack in self.folder.glob("*.safetensors"):
            if pack.name not in needed:
                pack.unlink(missing_ok=True)
                self._packs.pop(pack.name, None)
        self._home = {n: pack for n, pack in self._home.items() if pack in needed}
        self._sizes = {n: size for n, size in self._sizes.items() if n in self._home}

    # ------------------------------------------------------------ reading

    def exist(self) -> bool:
        return bool(self._manifests())

    def load(self) -> tuple[Tree, Get]:
        """The newest checkpoint that is whole. Nothing on disk is changed."""
        problems: list[str] = []
        for path in reversed(self._manifests()):
            try:
                return self._open(path)
            except CheckpointError as error:
                problems.append(str(error))
                self._damaged.add(path.name)
                log.warning("%s; trying the checkpoint before it", error)
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {'; '.join(problems) or 'there is none'}")

    def _open(self, path: Path) -> tuple[Tree, Get]:
        body = _read_manifest(path)
        tensors: dict[int, Tensor] = {}
        for pack, facts in body["packs"].items():
            numbers = [n for n, home in body["home"] if home == pack]
            for number, tensor in self._read_pack(pack, facts["sha256"], numbers):
                tensors[number] = tensor
        self._home = dict(body["home"])
        self._packs = dict(body["packs"])
        self._sizes = {n: t.nbytes for n, t in tensors.items()}
        self._written = {id(t): Written(weakref.ref(t), t._version, n) for n, t in tensors.items()}
        self._next_number = body["next"]
        self._next_checkpoint = int(self._manifests()[-1].stem) + 1
        return body["tree"], tensors.__getitem__

    def _read_pack(self, pack: str, sha256: str, numbers: list[int]) -> Iterator[tuple[int, Tensor]]:
        path = self.folder / pack
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in the checkpoint")
            loaded = load_file(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
        for number in numbers:
            yield number, loaded[str(number)].clone()  # own memory: one live tensor must not keep a whole pack

    def _manifests(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("*.json") if p.stem.isdigit())


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    if hashlib.sha256(body).hexdigest().encode() != line:
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match")
    manifest: dict[str, Any] = json.loads(body)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} has checkpoint format {manifest.get('format')}, this version reads {FORMAT}")
    return manifest
