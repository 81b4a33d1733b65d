"""Models without Python: the C library `libtvmstack`, and the folder that runs on a machine with nothing installed."""

from tvmstack.native.build import native_libraries
from tvmstack.native.package import PackageReport, write_package

__all__ = ["PackageReport", "native_libraries", "write_package"]
