"""Checkpoints on disk: a JSON tree plus packs of tensors in safetensors, each file written atomically.

The last two checkpoints are kept and share no file: whichever file is damaged, one of them is intact. A tensor that was
written for the checkpoint before the last one and has not changed since is referred to, not written again. Published
models are immutable, so a tensor is written at most twice, however many checkpoints contain it. Packs of mostly unused
tensors are abandoned by rewriting the others.

    checkpoint/000007.json          first line: SHA-256 of the rest; then the tree and the pack of each tensor
    checkpoint/000007.safetensors   tensors that are new since checkpoint 000005
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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

FORMAT = 4
PACK_NAME = re.compile(r"\d+\.safetensors")
MIN_DEAD_BYTES = 1 << 20  # fewer unused bytes are not worth a rewrite
MAX_TIME_SHARE = 0.02  # of the run's time that writing checkpoints may take


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new one; a link is replaced, not followed."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    created = False
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb") as file:
            created = True
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if created:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from None


class CheckpointTimer:
    """Decide when the next checkpoint is due.

    Checkpoints are `every` seconds apart, or further if writing would take more than MAX_TIME_SHARE of the time. With
    `every` 0 one is due after each event.
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._next = clock() + every

    def is_due(self) -> bool:
        return self._clock() >= self._next

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure the time of writing a checkpoint."""
        began = self._clock()
        yield
        ended = self._clock()
        pause = (ended - began) * (1 - MAX_TIME_SHARE) / MAX_TIME_SHARE if self._every > 0 else 0.0
        self._next = ended + max(self._every, pause)


class ExternalTensors(Protocol):
    """Tensors in files of their own that checkpoints refer to (see client_store)."""

    def begin_checkpoint(self) -> None: ...

    def references(self) -> Tree: ...

    def checkpoint_written(self) -> None: ...

    def keep_references(self, references: Iterable[Tree]) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is in a pack, as it was when it was written."""

    tensor: weakref.ref[Tensor]
    changes: int  # torch's count of in-place changes: a changed tensor must be written again
    number: int


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(
        self, folder: Path, device: torch.device | str = "cpu", external: ExternalTensors | None = None
    ) -> None:
        self.folder, self._device = folder, device  # device of tensors that are read
        self._external = external
        # tensors of the last two checkpoints, the older first, by the id of the tensor
        self._stored: tuple[dict[int, StoredTensor], dict[int, StoredTensor]] = ({}, {})
        self._pack_of: dict[int, str] = {}  # number of a tensor -> its pack
        self._packs: dict[str, dict[str, Any]] = {}  # pack -> its hash and size
        self._sizes: dict[int, int] = {}
        self._next_number = 0
        self._next_checkpoint = 1
        self._unreadable: set[str] = set()  # checkpoints that must not displace a readable one

    # ------------------------------------------------------------ writing

    def save(self, build: Callable[[Put], Tree]) -> None:
        """Write one checkpoint; `build` packs the state with the given `put`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._external is not None:
            self._external.begin_checkpoint()
        tree, used, new = self._collect(build)
        if self._is_wasteful(used):
            new = used  # write all used tensors into the new pack
        name = f"{self._next_checkpoint:06d}"
        if new:
            self._write_pack(name, new)
        pack_of = {number: self._pack_of[number] for number in used}
        manifest = {
            "format": FORMAT,
            "tree": tree,
            "pack_of": list(pack_of.items()),
            "packs": {pack: self._packs[pack] for pack in sorted(set(pack_of.values()))},
            "next": self._next_number,
            "external": {} if self._external is None else self._external.references(),
        }
        body = json.dumps(manifest)
        digest = hashlib.sha256(body.encode()).hexdigest()
        write_atomically(self.folder / f"{name}.json", f"{digest}\n{body}".encode())
        self._next_checkpoint += 1
        self._stored = (self._stored[1], _stored_tensors(used))
        self._delete_old()
        if self._external is not None:
            self._external.checkpoint_written()

    def _collect(self, build: Callable[[Put], Tree]) -> tuple[Tree, dict[int, Tensor], dict[int, Tensor]]:
        """Return the tree, all tensors in it by number, and those that must be written."""
        used: dict[int, Tensor] = {}
        new: dict[int, Tensor] = {}
        numbers: dict[int, int] = {}  # id of the tensor -> number

        def put(tensor: Tensor) -> int:
            if id(tensor) in numbers:
                return numbers[id(tensor)]
            known = self._stored[0].get(id(tensor))  # not the last one's, with which it may share no file
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

    def _is_wasteful(self, used: dict[int, Tensor]) -> bool:
        packs = {self._pack_of[n] for n in used if n in self._pack_of}
        total: int = sum(self._packs[pack]["bytes"] for pack in packs)
        needed = sum(self._sizes[n] for n in used if n in self._pack_of)
        return total > 2 * needed + MIN_DEAD_BYTES

    def _write_pack(self, name: str, new: dict[int, Tensor]) -> None:
        tensors: dict[str, Tensor] = {}
        addresses: set[int] = set()
        for number, tensor in new.items():
            flat = tensor.detach().cpu().contiguous()
            if flat.data_ptr() in addresses or flat.untyped_storage().nbytes() != flat.nbytes:
                flat = flat.clone()  # safetensors rejects tensors that share memory
            addresses.add(flat.data_ptr())
            tensors[str(number)] = flat
            self._sizes[number] = flat.nbytes
            self._pack_of[number] = f"{name}.safetensors"
        data = save(tensors)
        write_atomically(self.folder / f"{name}.safetensors", data)
        self._packs[f"{name}.safetensors"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

    def _delete_old(self) -> None:
        """Delete all but the last two checkpoints and the packs they refer to."""
        manifests = [path for path in self._manifests() if path.name not in self._unreadable]
        for path in self._manifests():
            if path not in manifests[-2:]:
                path.unlink(missing_ok=True)
        try:
            needed = {pack for path in manifests[-2:] for pack in _read_manifest(path)["packs"]}
        except CheckpointError:
            return  # the needed packs are not known; the next checkpoint cleans up
        for path in self.folder.glob("*.safetensors"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
                self._packs.pop(path.name, None)
        self._pack_of = {n: pack for n, pack in self._pack_of.items() if pack in needed}
        self._sizes = {n: size for n, size in self._sizes.items() if n in self._pack_of}

    # ------------------------------------------------------------ reading

    def exist(self) -> bool:
        return bool(self._manifests())

    def load(self, use: Callable[[Tree, Get], T]) -> T:
        """Return `use(tree, get)` of the newest intact checkpoint that `use` accepts. Nothing on disk changes."""
        problems: list[str] = []
        for path in reversed(self._manifests()):
            try:
                manifest, tensors = self._open(path)
                state = _build_state(use, manifest["tree"], tensors.__getitem__)
            except CheckpointError as error:
                problems.append(str(error) if path.stem in str(error) else f"{path}: {error}")
                self._unreadable.add(path.name)
                log.warning("%s; trying the checkpoint before it", problems[-1])
            else:
                self._continue_from(manifest, tensors)
                if self._external is not None:
                    self._external.keep_references([*self._references_except(path), manifest["external"]])
                return state
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {'; '.join(problems) or 'there is none'}")

    def _references_except(self, chosen: Path) -> Iterator[Tree]:
        for path in self._manifests():
            if path != chosen:
                with contextlib.suppress(CheckpointError):  # an unreadable one is never resumed from
                    yield _read_manifest(path)["external"]

    def _continue_from(self, manifest: dict[str, Any], tensors: dict[int, Tensor]) -> None:
        self._pack_of = dict(manifest["pack_of"])
        self._packs = dict(manifest["packs"])
        self._sizes = {n: t.nbytes for n, t in tensors.items()}
        self._stored = ({}, _stored_tensors(tensors))
        self._next_number = manifest["next"]
        self._next_checkpoint = int(self._manifests()[-1].stem) + 1

    def _open(self, path: Path) -> tuple[dict[str, Any], dict[int, Tensor]]:
        manifest = _read_manifest(path)
        tensors: dict[int, Tensor] = {}
        for pack, facts in manifest["packs"].items():
            numbers = [n for n, pack_of in manifest["pack_of"] if pack_of == pack]
            tensors |= self._read_pack(pack, facts["sha256"], numbers)
        return manifest, tensors

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
            # copies: one tensor in use must not keep a whole pack in memory
            return {number: loaded[str(number)].to(self._device, copy=True) for number in numbers}
        except (SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} does not fit the checkpoint: {type(error).__name__}: {error}") from None

    def _manifests(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("*.json") if p.stem.isdigit())


def _stored_tensors(tensors: Mapping[int, Tensor]) -> dict[int, StoredTensor]:
    return {id(t): StoredTensor(weakref.ref(t), t._version, n) for n, t in tensors.items()}


def _build_state(use: Callable[[Tree, Get], T], tree: Tree, get: Get) -> T:
    try:
        return use(tree, get)
    except OffbeatError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"its contents are invalid: {type(error).__name__}: {error}") from None


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        digest, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match")
    try:
        manifest: dict[str, Any] = json.loads(body)
        number = manifest["format"]
        valid = number != FORMAT or _has_valid_fields(manifest)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        number, valid = "unknown", True
    if number != FORMAT:
        raise CheckpointError(f"{path} has checkpoint format {number}, but this version reads only {FORMAT}")
    if not valid:
        raise CheckpointError(f"{path} is no checkpoint: its fields are invalid")
    return manifest


def _has_valid_fields(manifest: dict[str, Any]) -> bool:
    """Check types: a matching SHA-256 means that nothing changed, not that it was ever right."""
    packs = manifest["packs"]
    return (
        isinstance(manifest["tree"], dict | list)
        and type(manifest["next"]) is int
        and all(
            PACK_NAME.fullmatch(pack) and isinstance(facts["sha256"], str) and type(facts["bytes"]) is int
            for pack, facts in packs.items()
        )
        and all(type(number) is int and pack in packs for number, pack in manifest["pack_of"])
        and all(
            size.isdecimal() and type(first) is int and type(end) is int
            for size, ranges in manifest["external"].items()
            for first, end in ranges
        )
    )
