"""Checkpoints on disk: a JSON tree plus packs of tensors in safetensors, each file written whole or not at all.

The last two checkpoints are kept and share no file: whichever one file is damaged, one of the two is whole. A tensor
that was written for the checkpoint before the last and has not changed since is referred to, not written again:
published models are immutable, so a tensor that stays is written twice, however many checkpoints it lives through.
Packs that hold mostly dead tensors are left behind by rewriting what is alive.

    checkpoint/000007.json          first line: SHA-256 of the rest; then the tree and where each tensor lies
    checkpoint/000007.safetensors   the tensors that were new to its line, the even or the odd ones
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError
from offbeat.core.snapshot import Get, Put, Tree
from offbeat.engine.slot_files import sync_folder

log = logging.getLogger("offbeat")
T = TypeVar("T")

FORMAT = 3  # `formats` reads the earlier ones
PACK = re.compile(r"\d+\.safetensors")
SLACK = 1 << 20  # dead bytes that are not worth a rewrite


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of one. No link is followed."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    made = False
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb") as file:
            made = True
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from None


class Beside(Protocol):
    """Tensors that lie in files of their own, which checkpoints refer to (`store`)."""

    def begin(self) -> None: ...

    def noted(self) -> Tree: ...

    def settled(self) -> None: ...

    def hold(self, noted: Iterable[Tree]) -> None: ...


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that lies in a pack, as it was then."""

    tensor: weakref.ref[Tensor]
    changes: int  # torch counts in-place changes; a tensor changed since must be written again
    number: int


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu", beside: Beside | None = None) -> None:
        self.folder, self._device = folder, device  # where tensors are put that were read
        self._beside = beside
        # of the last two, the older first; by id of the tensor
        self._lines: tuple[dict[int, Written], dict[int, Written]] = ({}, {})
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
        if self._beside is not None:
            self._beside.begin()
        tree, used, new = self._collect(build)
        if self._wasteful(used):
            new = used  # all that is alive goes into the new pack
        name = f"{self._next_checkpoint:06d}"
        if new:
            self._write_pack(name, new)
        home = {number: self._home[number] for number in used}
        packs = {pack: self._packs[pack] for pack in sorted(set(home.values()))}
        beside = {} if self._beside is None else {"beside": self._beside.noted()}
        body = json.dumps(
            {"format": FORMAT, "tree": tree, "home": list(home.items()), "packs": packs, "next": self._next_number}
            | beside
        )
        line = hashlib.sha256(body.encode()).hexdigest()
        write_whole(self.folder / f"{name}.json", f"{line}\n{body}".encode())
        self._next_checkpoint += 1
        self._lines = (self._lines[1], _written(used))
        self._clean()
        if self._beside is not None:
            self._beside.settled()

    def _collect(self, build: Callable[[Put], Tree]) -> tuple[Tree, dict[int, Tensor], dict[int, Tensor]]:
        used: dict[int, Tensor] = {}
        new: dict[int, Tensor] = {}
        numbers: dict[int, int] = {}  # id of the tensor object -> number, within this checkpoint

        def put(tensor: Tensor) -> int:
            if id(tensor) in numbers:
                return numbers[id(tensor)]
            known = self._lines[0].get(id(tensor))  # what the last one refers to is not for this one
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
        try:
            needed = {pack for kept in manifests[-2:] for pack in _read_manifest(kept)["packs"]}
        except CheckpointError:
            return  # what it refers to is not known, so nothing can be spared; the next one cleans up
        for pack in self.folder.glob("*.safetensors"):
            if pack.name not in needed:
                pack.unlink(missing_ok=True)
                self._packs.pop(pack.name, None)
        self._home = {n: pack for n, pack in self._home.items() if pack in needed}
        self._sizes = {n: size for n, size in self._sizes.items() if n in self._home}

    # ------------------------------------------------------------ reading

    def exist(self) -> bool:
        return bool(self._manifests())

    def load(self, use: Callable[[Tree, Get], T]) -> T:
        """What `use` makes of the newest checkpoint that is whole and that it can use. Nothing on disk is changed."""
        problems: list[str] = []
        for path in reversed(self._manifests()):
            try:
                body, tensors = self._open(path)
                made = _used(use, body["tree"], tensors.__getitem__)
            except CheckpointError as error:
                problems.append(str(error) if path.stem in str(error) else f"{path}: {error}")
                self._damaged.add(path.name)
                log.warning("%s; trying the checkpoint before it", problems[-1])
            else:
                self._go_on_from(body, tensors)
                if self._beside is not None:
                    self._beside.hold([*self._noted_by_others(path), body.get("beside", {})])
                return made
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {'; '.join(problems) or 'there is none'}")

    def _noted_by_others(self, chosen: Path) -> Iterator[Tree]:
        for path in self._manifests():
            if path != chosen:
                with contextlib.suppress(CheckpointError):  # what cannot be read is not gone back to
                    yield _read_manifest(path).get("beside", {})

    def _go_on_from(self, body: dict[str, Any], tensors: dict[int, Tensor]) -> None:
        self._home = dict(body["home"])
        self._packs = dict(body["packs"])
        self._sizes = {n: t.nbytes for n, t in tensors.items()}
        self._lines = ({}, _written(tensors))
        self._next_number = body["next"]
        self._next_checkpoint = int(self._manifests()[-1].stem) + 1

    def _open(self, path: Path) -> tuple[dict[str, Any], dict[int, Tensor]]:
        body = _read_manifest(path)
        tensors: dict[int, Tensor] = {}
        for pack, facts in body["packs"].items():
            numbers = [n for n, home in body["home"] if home == pack]
            tensors |= self._read_pack(pack, facts["sha256"], numbers)
        return body, tensors

    def _read_pack(self, pack: str, sha256: str, numbers: list[int]) -> dict[int, Tensor]:
        path = self.folder / pack
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in the checkpoint")
        try:
            loaded = load(data)
            # own memory: one live tensor must not keep a whole pack
            return {number: loaded[str(number)].to(self._device, copy=True) for number in numbers}
        except (SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{path} is not the pack the checkpoint wants: {type(error).__name__}: {error}"
            ) from None

    def _manifests(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("*.json") if p.stem.isdigit())


def _written(tensors: Mapping[int, Tensor]) -> dict[int, Written]:
    return {id(t): Written(weakref.ref(t), t._version, n) for n, t in tensors.items()}


def _used(use: Callable[[Tree, Get], T], tree: Tree, get: Get) -> T:
    try:
        return use(tree, get)
    except OffbeatError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"it does not hold what it should: {type(error).__name__}: {error}") from None


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    if hashlib.sha256(body).hexdigest().encode() != line:
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match")
    try:
        manifest: dict[str, Any] = json.loads(body)
        known = manifest["format"] in range(1, FORMAT + 1)
        whole = not known or _has_its_fields(manifest)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        known = whole = False
        manifest = {"format": "unknown"}
    if not known:
        raise CheckpointError(f"{path} has checkpoint format {manifest['format']}, this version reads 1 to {FORMAT}")
    if not whole:
        raise CheckpointError(f"{path} is no checkpoint: its fields are others")
    return manifest


def _has_its_fields(manifest: dict[str, Any]) -> bool:
    """A valid SHA-256 says that nothing changed, not that it was ever right."""
    packs, home = manifest["packs"], manifest["home"]
    return (
        isinstance(manifest["tree"], dict | list)
        and type(manifest["next"]) is int
        and all(
            PACK.fullmatch(pack) and isinstance(facts["sha256"], str) and type(facts["bytes"]) is int
            for pack, facts in packs.items()
        )
        and all(type(number) is int and pack in packs for number, pack in home)
        and all(
            size.isdecimal() and type(first) is int and type(end) is int
            for size, runs in manifest.get("beside", {}).items()
            for first, end in runs
        )
    )
