"""Consul's KV store and snapshot files in memory: the state that a fake datacenter can save and restore.

`packed` writes a file as Consul does, for tests that read a snapshot or plant a defect in it.
"""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.products.consul.snapshots import KVS, SESSION, Entry, Session, SnapshotError, decode

_REGISTRATION = 0
_KV, _SNAPSHOT = "/v1/kv/", "/v1/snapshot"


def packed(entries: Iterable[Entry], sessions: Iterable[Session] = (), *, index: int = 100, term: int = 2) -> bytes:
    """A snapshot file with these entries and sessions, and with a node, which readers must skip."""
    pack = msgpack.Packer(use_bin_type=False).pack
    state = pack({"LastIndex": index})
    state += bytes([_REGISTRATION]) + pack({"Node": "consul-1", "Address": "10.73.0.11", "Service": None})
    for session in sessions:
        state += bytes([SESSION]) + pack(
            {
                "ID": session.id,
                "Name": session.name,
                "Node": session.node,
                "TTL": session.ttl,
                "Behavior": session.behavior,
                "CreateIndex": session.create_index,
                "ModifyIndex": session.create_index,
            }
        )
    for entry in entries:
        state += bytes([KVS]) + pack(
            {
                "Key": entry.key,
                "Value": entry.value or None,
                "Flags": entry.flags,
                "LockIndex": entry.lock_index,
                "CreateIndex": entry.create_index,
                "ModifyIndex": entry.modify_index,
                **({"Session": entry.session} if entry.session else {}),
            }
        )
    return archive_of(state, index=index, term=term)


def archive_of(state: bytes, *, index: int, term: int = 2) -> bytes:
    """A snapshot file as Consul, Nomad and Vault write it, with its checksums."""
    meta = json.dumps({"Version": 1, "Index": index, "Term": term, "Size": len(state)}).encode()
    members = {"meta.json": meta, "state.bin": state}
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in members.items())
    return archived({**members, "SHA256SUMS": sums.encode()})


def archived(members: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return gzip.compress(archive.getvalue(), mtime=0)


class FakeKv:
    """The KV store of a datacenter: each write raises `index`, and a restore resets each entry's own index."""

    def __init__(self) -> None:
        self.index = 10
        self.entries: dict[str, Entry] = {}
        self.on_commit: list[Callable[[], None]] = []

    def answer(self, method: str, path: str, params: Mapping[str, str], body: bytes) -> ApiAnswer | None:
        """The agent's answer to a request for a key or for a snapshot; None for any other request."""
        if path == _SNAPSHOT:
            return self._snapshot(method, body)
        if not path.startswith(_KV):
            return None
        key = path.removeprefix(_KV)
        if method == "GET":
            return self._get(key, params)
        if method == "PUT":
            return _said(value=self._put(key, params, body))
        self._commit()
        gone = [each for each in self.entries if each == key or ("recurse" in params and each.startswith(key))]
        for each in gone:
            del self.entries[each]
        return _said(value=True)

    def _commit(self) -> None:
        self.index += 1
        for heard in self.on_commit:
            heard()

    def _get(self, key: str, params: Mapping[str, str]) -> ApiAnswer:
        found = [
            one
            for each, one in sorted(self.entries.items())
            if each == key or ("recurse" in params and each.startswith(key))
        ]
        if not found:
            return ApiAnswer(404, b"")
        return ApiAnswer(200, found[0].value) if "raw" in params else _said(value=[_shown(entry) for entry in found])

    def _put(self, key: str, params: Mapping[str, str], body: bytes) -> bool:
        there = self.entries.get(key)
        if "cas" in params and int(params["cas"]) != (there.modify_index if there else 0):
            return False
        self._commit()
        if there is None:
            self.entries[key] = Entry(key, body, self.index, self.index)
        else:
            self.entries[key] = replace(there, value=body, modify_index=self.index)
        return True

    def _snapshot(self, method: str, body: bytes) -> ApiAnswer:
        if method == "GET":
            return ApiAnswer(200, packed(self.entries.values(), index=self.index))
        try:
            restored = decode(body)
        except SnapshotError as error:
            return ApiAnswer(500, str(error).encode())
        self.entries = dict(restored.kv)
        self.index += 1
        return ApiAnswer(200, b"")


def _shown(entry: Entry) -> dict[str, Any]:
    return {
        "Key": entry.key,
        "Value": base64.b64encode(entry.value).decode() or None,
        "Flags": entry.flags,
        "LockIndex": entry.lock_index,
        "CreateIndex": entry.create_index,
        "ModifyIndex": entry.modify_index,
        **({"Session": entry.session} if entry.session else {}),
    }


def _said(*, value: Any) -> ApiAnswer:
    return ApiAnswer(200, json.dumps(value).encode())
