"""Can this machine run what requirements*.txt name? `make setup` asks before it downloads anything.

  python3 utils/check_machine.py requirements-cpu.txt

Prints nothing where it can, else one line on stderr that says what is missing and what to do; exit code 1. Too little
memory is only noted. Old Pythons run this too, to be told that they are old: no syntax of today.
"""

import os
import platform
import sys
import tempfile

PYTHONS = ((3, 11), (3, 14))  # oldest and newest that every pinned package has a wheel for, or takes
GLIBC = (2, 28)  # of torch's and vllm's wheels (manylinux_2_28)
PROCESSORS = ("x86_64", "aarch64")
GB = 10**9
# Free space for .venv and the demo, and for what pip downloads meanwhile and keeps: measured, and rounded up.
DISK = {"cpu": (6 * GB, 2 * GB), "gpu": (8 * GB, 5 * GB)}
DEMO_MEMORY = 7 * GB  # 6.1 at its peak, with two vLLM engines of the smallest cache
CONTAINER = (
    "use such a machine or a container of one (glibc 2.28 or newer, Python 3.11 to 3.14 with pip and venv, make)"
)


def look(folder="."):
    """What is here, as `find_problem` takes it."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "features": read_features(),
        "glibc": read_glibc(),
        "python": sys.version_info[:2],
        "executable": sys.executable,
        "has_venv": has_venv(),
        "free": free_space(folder),
        "free_for_downloads": free_space(tempfile.gettempdir()),
        "shares_disk": os.stat(folder).st_dev == os.stat(tempfile.gettempdir()).st_dev,
        "memory": read_memory(),
    }


def find_problem(found, kind):
    """What keeps the packages of a `kind` ("cpu" or "gpu") from running here, and what to do; None where nothing does.

    `found` is as `look` returns it.
    """
    if found["system"] != "Linux":
        name = {"Darwin": "macOS"}.get(found["system"], found["system"])
        return "this is %s, and vllm's wheels are for Linux: %s; on Windows, WSL 2 is one" % (name, CONTAINER)
    if found["processor"] not in PROCESSORS:
        return "this processor is %s, and vllm has wheels for x86_64 and aarch64: %s" % (found["processor"], CONTAINER)
    if kind == "cpu" and found["processor"] == "x86_64" and "avx2" not in found["features"]:
        return "this processor lacks AVX2, which vllm's CPU build is compiled for: use a machine that has it"
    if not PYTHONS[0] <= found["python"] <= PYTHONS[1]:
        way_out = "name one of these, as in `make setup PYTHON=python3.12`"
        here = "%s is Python %s" % (found["executable"], dotted(found["python"]))
        return "%s, and the pinned packages are for 3.11 to 3.14: %s" % (here, way_out)
    if not found["has_venv"]:
        way_out = "install it (Debian, Ubuntu: apt install python3-venv)"
        return "%s has no venv with pip: %s" % (found["executable"], way_out)
    if found["glibc"] is None or found["glibc"] < GLIBC:
        here = "no glibc (musl?)" if found["glibc"] is None else "glibc " + dotted(found["glibc"])
        needed = "2.28 or newer (Debian 10, Ubuntu 20.04, RHEL 8)"
        return "this system has %s, and vllm's wheels need %s: %s" % (here, needed, CONTAINER)
    here, elsewhere = DISK[kind]
    if found["shares_disk"]:
        here, elsewhere = here + elsewhere, 0
    if found["free"] < here:
        sizes = (found["free"] // GB, here // GB)
        return "%d GB are free in this folder, and .venv and the demo need %d: free some, or move it" % sizes
    if found["free_for_downloads"] < elsewhere:
        sizes = (found["free_for_downloads"] // GB, tempfile.gettempdir(), elsewhere // GB)
        return "%d GB are free in %s, and pip's downloads need %d: name another folder by TMPDIR" % sizes
    return None


def find_note(found, kind):
    """What is said of too little memory, None where there is enough: other programs may have it for now."""
    if kind == "gpu" or found["memory"] is None or found["memory"] >= DEMO_MEMORY:
        return None
    sizes = (found["memory"] / float(GB), DEMO_MEMORY // GB)
    return "%.1f GB of memory are free, and the demo takes up to %d: end other programs before `make demo`" % sizes


def dotted(version):
    return ".".join(str(number) for number in version)


def read_features(path="/proc/cpuinfo"):
    """The words by which Linux describes the first processor."""
    try:
        with open(path) as file:
            return next((line.split() for line in file if line.startswith("flags")), [])
    except (IOError, OSError):
        return []


def read_glibc():
    """(2, 36) and the like; None where this Python was not built for glibc."""
    try:
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    except (AttributeError, ValueError, OSError):
        return None
    return tuple(int(number) for number in version.split(".")[:2]) if name == "glibc" else None


def has_venv():
    try:
        import ensurepip
        import venv
    except ImportError:  # Debian has them in a package of their own
        return False
    return bool(ensurepip and venv)


def free_space(folder):
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize  # what a user may still write, in bytes


def read_memory(folder="/proc", limits="/sys/fs/cgroup"):
    """Bytes of memory that are free, in a container those that it may still take; None where it can't be told."""
    try:
        with open(os.path.join(folder, "meminfo")) as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (IOError, OSError, StopIteration):
        return None
    try:
        with open(os.path.join(limits, "memory.max")) as most, open(os.path.join(limits, "memory.current")) as taken:
            return min(free, int(most.read()) - int(taken.read()))
    except (IOError, OSError, ValueError):  # no limit ("max")
        return free


def main(argv):
    """Returns the exit code."""
    with open(argv[0]) as file:
        kind = "cpu" if any(line.startswith("torch==") and "+cpu" in line for line in file) else "gpu"
    found = look()
    problem, note = find_problem(found, kind), find_note(found, kind)
    if problem or note:
        sys.stderr.write("error: %s\n" % problem if problem else "note: %s\n" % note)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
