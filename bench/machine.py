"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe", "filesystem_of", "peak_memory_mib"]


def describe() -> dict[str, str]:
    """Processor, memory, system, Python and the libraries that matter, as words."""
    return {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "processor": _proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlalchemy": _version_of("sqlalchemy"),
        "fencepost": _version_of("fencepost"),
        "load average at the end": f"{os.getloadavg()[0]:.2f}",
    }


def filesystem_of(folder: Path) -> str:
    """The type of the file system that holds a folder: on tmpfs a flush costs nothing, and figures mislead."""
    best, kind = Path(), "an unknown file system"
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return kind
    target = folder.resolve()
    for line in mounts.read_text().splitlines():
        _, mount_point, mounted_as, *_ = line.split()
        at = Path(mount_point)
        if target.is_relative_to(at) and len(at.parts) >= len(best.parts):
            best, kind = at, mounted_as
    return kind


def peak_memory_mib() -> float:
    """This process's greatest resident memory so far, in MiB; 0.0 where the system does not say.

    VmHWM belongs to the program since its exec; getrusage would count the parent's memory before it.
    """
    value = _proc_value("/proc/self/status", "VmHWM")
    return int(value.split()[0]) / 1024 if value else 0.0


def _proc_value(path: str, key: str) -> str:
    file = Path(path)
    if not file.exists():
        return ""
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
