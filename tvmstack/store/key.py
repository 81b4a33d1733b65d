"""What must be equal for a record to be used as it stands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from tvmstack.core.device import Device

__all__ = ["PROTOCOL", "KeyContext", "workload_digest"]

PROTOCOL = "1"
"""How a kernel is measured; raised when times stop being comparable."""


def workload_digest(workload: str) -> str:
    """Return sixteen hex digits of a workload's text."""
    return hashlib.sha256(workload.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class KeyContext:
    """Everything of a key but the kernel.

    Attributes:
        device: the device, by what matters for speed.
        target: TVM's target as canonical JSON.
        versions: of TVM and tvm-ffi (LLVM comes with TVM), as "tvm 0.27.0, ffi 0.1.14".
        pipeline: digest of the passes that prepared the kernel.
        schedules: version of the templates.
        protocol: version of the measuring method.
    """

    device: Device
    target: str
    versions: str
    pipeline: str
    schedules: str
    protocol: str = PROTOCOL

    @staticmethod
    def current(device: Device, pipeline_digest: str) -> KeyContext:
        """Return the context of measurements made now, with what is installed."""
        from tvmstack.schedules import VERSION

        versions = f"tvm {version('apache-tvm')}, ffi {version('apache-tvm-ffi')}"
        target = json.dumps(device.target(), sort_keys=True)
        return KeyContext(device, target, versions, pipeline_digest, VERSION)

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of the key by name, as they stand in the database."""
        return {
            "device": self.device.id,
            "target": self.target,
            "versions": self.versions,
            "pipeline": self.pipeline,
            "schedules": self.schedules,
            "protocol": self.protocol,
        }
