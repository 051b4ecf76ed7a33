"""The provenance of a number: hardware, versions, commit."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def provenance(device: str = "cpu") -> dict[str, object]:
    """Return the hardware, the software versions and the commit, to store them with numbers."""
    import torch

    cuda = device.startswith("cuda")
    return {
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("aag", "torch", "timm", "numpy", "pillow")},
        "commit": commit(),
    }


def core_count() -> int:
    """Return the number of CPU cores that this process may use; hyper-threads count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_core_count() -> int:
    """Return the number of cores without counting hyper-threads, which is how many threads PyTorch takes with MKL."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    files = [Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    try:
        return len({file.read_text() for file in files}) or core_count()
    except OSError:
        return core_count()


@cache
def commit() -> str | None:
    """Return the checkout's commit, with -dirty if files changed; $AAG_COMMIT, for copies without git, overrides it."""
    if given := os.environ.get("AAG_COMMIT"):
        return given
    here = Path(__file__).parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        inside = subprocess.run([*ask[:3], "ls-files", "--error-unmatch", __file__], capture_output=True, check=False)
        if inside.returncode == 0:
            return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        if name == "aag":
            from aag import __version__

            return __version__
        return None
