"""Checkpoints on disk: a JSON tree plus packs of tensors in safetensors, each file written atomically.

The last two checkpoints share no file, so that one of them is intact whichever file is damaged. A tensor that has not
changed since the checkpoint before the last one is not written again.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError
from offbeat.core.snapshot import Get, Put, Tree
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.slot_files import os_errors_as_checkpoint_errors, sync_folder

log = logging.getLogger("offbeat")
T = TypeVar("T")

FORMAT = 4
PACK_NAME = re.compile(r"\d+\.safetensors")
MIN_DEAD_BYTES = 1 << 20  # fewer unused bytes are not worth a rewrite
MAX_TIME_SHARE = 0.02  # of the run's time that writing checkpoints may take


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new one; a link is replaced, not followed."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    with os_errors_as_checkpoint_errors(f"cannot write {path}"):
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


class CheckpointTimer:
    """Schedule checkpoints every `every` seconds, less often if writing takes more than MAX_TIME_SHARE; 0: always."""

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._next = clock() + every

    def is_due(self) -> bool:
        """Return whether the next checkpoint is due."""
        return self._clock() >= self._next

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure the time of writing a checkpoint."""
        began = self._clock()
        yield
        ended = self._clock()
        pause = (ended - began) * (1 - MAX_TIME_SHARE) / MAX_TIME_SHARE if self._every > 0 else 0.0
        self._next = ended + max(self._every, pause)


class StoredTensor(NamedTuple):
    """A tensor that is in a pack, as it was when it was written."""

    tensor: weakref.ref[Tensor]
    changes: int  # torch's count of in-place changes: a changed tensor must be written again
    number: int


class Checkpoints:
    """The checkpoints of one run in `folder`; `external` are tensors in files of their own that they refer to."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu", external: ClientMemory | None = None) -> None:
        self.folder, self._device = folder, device  # device of tensors that are read
        self._external = external or ClientMemory()
        # tensors of the last two checkpoints, the older first, by the id of the tensor
        self._stored: tuple[dict[int, StoredTensor], dict[int, StoredTensor]] = ({}, {})
        self._pack_of: dict[int, str] = {}  # number of a tensor -> its pack
        self._packs: dict[str, dict[str, Tree]] = {}  # pack -> its SHA-256 and number of bytes
        self._next_number = 0
        self._next_checkpoint = 1
        self._unreadable: set[str] = set()  # checkpoints that must not displace a readable one

    # ------------------------------------------------------------ writing

    def save(self, build: Callable[[Put], Tree]) -> None:
        """Write one checkpoint; `build` packs the state with the given `put`."""
        self.folder.mkdir(parents=True, exist_ok=True)
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
            "external": self._external.references(),
        }
        body = json.dumps(manifest)
        digest = hashlib.sha256(body.encode()).hexdigest()
        write_atomically(self.folder / f"{name}.json", f"{digest}\n{body}".encode())
        self._next_checkpoint += 1
        self._stored = (self._stored[1], _stored_tensors(used))
        self._delete_old()
        self._external.checkpoint_written()

    def _collect(self, build: Callable[[Put], Tree]) -> tuple[Tree, dict[int, Tensor], dict[int, Tensor]]:
        """Return the tree, all tensors in it by number, and those that must be written."""
        used: dict[int, Tensor] = {}
        new: dict[int, Tensor] = {}
        numbers: dict[int, int] = {}  # id of the tensor -> number

        def put(tensor: Tensor) -> int:
            """Return the number of a tensor: a new one if it must be written."""
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
        """Return whether the existing packs of these tensors contain mostly other tensors."""
        written = {n: tensor for n, tensor in used.items() if n in self._pack_of}
        total: int = sum(self._packs[pack]["bytes"] for pack in {self._pack_of[n] for n in written})
        return total > 2 * sum(tensor.nbytes for tensor in written.values()) + MIN_DEAD_BYTES

    def _write_pack(self, name: str, new: dict[int, Tensor]) -> None:
        """Write tensors, by number, into a new pack."""
        tensors: dict[str, Tensor] = {}
        addresses: set[int] = set()
        for number, tensor in new.items():
            flat = tensor.detach().cpu().contiguous()
            if flat.data_ptr() in addresses or flat.untyped_storage().nbytes() != flat.nbytes:
                flat = flat.clone()  # safetensors rejects tensors that share memory
            addresses.add(flat.data_ptr())
            tensors[str(number)] = flat
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

    # ------------------------------------------------------------ reading

    def exist(self) -> bool:
        """Return whether there is any checkpoint, readable or not."""
        return bool(self._manifests())

    def load(self, use: Callable[[Tree, Get], T]) -> T:
        """Return `use(tree, get)` of the newest intact checkpoint that `use` accepts. Nothing on disk changes."""
        problems: list[str] = []
        for path in reversed(self._manifests()):
            try:
                manifest = _read_manifest(path)
                tensors = self._read_tensors(manifest)
                state = _build_state(use, manifest["tree"], tensors.__getitem__)
            except CheckpointError as error:
                problems.append(str(error) if path.stem in str(error) else f"{path}: {error}")
                self._unreadable.add(path.name)
                log.warning("%s; trying the checkpoint before it", problems[-1])
            else:
                self._continue_from(path, manifest, tensors)
                return state
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {'; '.join(problems) or 'there is none'}")

    def _continue_from(self, chosen: Path, manifest: dict[str, Tree], tensors: dict[int, Tensor]) -> None:
        """Let the next checkpoint follow the chosen one; keep the external tensors of all readable ones."""
        self._pack_of, self._packs = dict(manifest["pack_of"]), dict(manifest["packs"])
        self._stored = ({}, _stored_tensors(tensors))
        self._next_number = manifest["next"]
        paths = self._manifests()
        self._next_checkpoint = int(paths[-1].stem) + 1
        references = []
        for path in paths:
            with contextlib.suppress(CheckpointError):  # the run never resumes from an unreadable one
                if path != chosen:
                    references.append(_read_manifest(path)["external"])
        self._external.keep_references([*references, manifest["external"]])

    def _read_tensors(self, manifest: dict[str, Tree]) -> dict[int, Tensor]:
        """Return the tensors of a checkpoint by number; the packs are verified."""
        tensors: dict[int, Tensor] = {}
        for pack, facts in manifest["packs"].items():
            path = self.folder / pack
            with os_errors_as_checkpoint_errors(f"cannot read {path}"):
                data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != facts["sha256"]:
                raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in the checkpoint")
            try:
                loaded = load(data)
                numbers = [n for n, pack_of in manifest["pack_of"] if pack_of == pack]
                # copies: one tensor in use must not keep a whole pack in memory
                tensors |= {n: loaded[str(n)].to(self._device, copy=True) for n in numbers}
            except (SafetensorError, KeyError, ValueError) as error:
                raise CheckpointError(f"{path} does not fit the checkpoint: {type(error).__name__}: {error}") from None
        return tensors

    def _manifests(self) -> list[Path]:
        """Return the JSON files of all checkpoints, the oldest first."""
        return sorted(p for p in self.folder.glob("*.json") if p.stem.isdigit())


def _stored_tensors(tensors: Mapping[int, Tensor]) -> dict[int, StoredTensor]:
    """Return entries for tensors that have just been written or read, by the id of the tensor."""
    return {id(t): StoredTensor(weakref.ref(t), t._version, n) for n, t in tensors.items()}


def _build_state(use: Callable[[Tree, Get], T], tree: Tree, get: Get) -> T:
    """Return `use(tree, get)`; contents that `use` cannot read raise CheckpointError."""
    try:
        return use(tree, get)
    except OffbeatError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"its contents are invalid: {type(error).__name__}: {error}") from None


def _read_manifest(path: Path) -> dict[str, Tree]:
    """Return the JSON document of a checkpoint; its SHA-256, format and types of fields are verified."""
    with os_errors_as_checkpoint_errors(f"cannot read {path}"):
        digest, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match")
    try:
        manifest: dict[str, Tree] = json.loads(body)
        number = manifest["format"]
        valid = number != FORMAT or _has_valid_fields(manifest)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        number, valid = "unknown", True
    if number != FORMAT:
        raise CheckpointError(f"{path} has checkpoint format {number}, but this version reads only {FORMAT}")
    if not valid:
        raise CheckpointError(f"{path} is no checkpoint: its fields are invalid")
    return manifest


def _has_valid_fields(manifest: dict[str, Tree]) -> bool:
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
