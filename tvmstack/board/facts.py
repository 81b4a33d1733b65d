"""What a board says of itself, and whether its TVM can be spoken to."""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmstack.board.errors import BoardRefused
from tvmstack.core.device import Device, device_from_facts

__all__ = ["PROTOCOL", "Facts", "facts_from", "proof_of"]

PROTOCOL = 1
"""Version of what the server of `native/` offers beside TVM's own functions."""


@dataclass(frozen=True)
class Facts:
    """A board's own words.

    Attributes:
        name: the board's name, unique in its class.
        server: "native" or "python".
        protocol: version of our functions there.
        arch: as `uname -m` says.
        tvm, ffi: versions of the libraries the server is linked to.
        cpu: model name; part: the ARM "CPU part", "" elsewhere.
        features: the CPU's flags by the kernel's names.
        cores: logical CPUs that the server may use.
        caches: bytes of L1d, L2, L3; 0 where unknown.
        monotonic_s, time_s: its two clocks.
        temperature_c: of its hottest zone, None where it has no sensor.
        proof: that it knows the secret.
    """

    name: str
    server: str
    protocol: int
    arch: str
    tvm: str
    ffi: str
    cpu: str
    part: str
    features: tuple[str, ...]
    cores: int
    caches: tuple[int, int, int]
    monotonic_s: float = 0.0
    time_s: float = 0.0
    temperature_c: float | None = None
    proof: str = ""

    def device(self) -> Device:
        """Return the board's CPU as a compilation target."""
        name = self.cpu or self.part or self.arch
        return device_from_facts(self.arch, name, self.features, self.cores, self.caches, self.part)

    def refusal(self) -> str:
        """Return why code built here must not be sent there, or ""."""
        if self.protocol != PROTOCOL:
            return f"its server speaks protocol {self.protocol}, this tvmstack {PROTOCOL}: {_again(self)}"
        for what, package, theirs in (("TVM", "apache-tvm", self.tvm), ("tvm-ffi", "apache-tvm-ffi", self.ffi)):
            ours = importlib.metadata.version(package)
            if _abi(theirs) != _abi(ours):
                return f"its server is linked to {what} {theirs}, here is {ours}, and their ABIs differ: {_again(self)}"
        return ""


def _again(facts: Facts) -> str:
    if facts.server == "python":
        return "install this machine's versions there"
    return f"build it again with `tvmstack board build-server --arch {facts.arch} -o DIR`"


def _abi(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def facts_from(data: str | Mapping[str, Any]) -> Facts:
    """Rebuild facts from what a board or the tracker gave.

    Raises:
        BoardRefused: that is no description of a board.
    """
    try:
        found = dict(json.loads(data) if isinstance(data, str) else data)
        known = {k: v for k, v in found.items() if k in Facts.__dataclass_fields__}
        l1, l2, l3 = (int(size) for size in known["caches"])
        words = str(known["features"]).split()
        return Facts(**{**known, "features": tuple(sorted(words)), "caches": (l1, l2, l3)})
    except (ValueError, TypeError, KeyError) as err:
        raise BoardRefused(f"a board describes itself in a way that cannot be read ({err!r})") from err


def proof_of(secret: str, role: str, text: str) -> str:
    """Return the proof that "client" or "board" knows the secret, for one offer or question."""
    return hmac.new(secret.encode(), f"{role} {text}".encode(), hashlib.sha256).hexdigest()
