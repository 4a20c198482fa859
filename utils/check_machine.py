"""Check that this machine can run the packages of a requirements file; `make setup` runs this before downloading them.

  python3 utils/check_machine.py requirements-cpu.txt

Prints nothing if it can. Otherwise prints one line with the problem and a remedy on stderr, and exits with 1; without
the name of a file, with 2. The syntax is old, so that an old Python can run this file and report that it is too old.
"""

import os
import platform
import shutil
import sys

PYTHONS = ((3, 11), (3, 14))  # the oldest and newest that all pinned packages support
GLIBC = (2, 28)  # required by torch's and vllm's wheels (manylinux_2_28)
DISK = {"cpu": 8, "gpu": 13}  # GB for .venv, the demo and pip's downloads: measured and rounded up
CONTAINER = "use a Linux machine or container with glibc 2.28 or newer, Python 3.11 to 3.14 with pip and venv, and make"


def find_problem(kind, system, glibc, python, has_avx2, has_venv, free):
    """Return why packages of a `kind` ("cpu" or "gpu") cannot run here, with a remedy; None if they can.

    `glibc` (or None) and `python` are versions as tuples; `free` is disk space in GB.
    """
    if system != "Linux" or glibc is None or glibc < GLIBC:
        here = "glibc %d.%d" % glibc if glibc else "no glibc"
        return "this is %s with %s, and vllm has no wheels for that: %s (on Windows, WSL 2)" % (
            system, here, CONTAINER)  # fmt: skip
    if not has_avx2 and kind == "cpu":
        return "this processor lacks AVX2, which vllm's CPU build needs: use a machine that has it"
    if not PYTHONS[0] <= python <= PYTHONS[1]:
        here = "%s is Python %d.%d" % (sys.executable, python[0], python[1])
        way_out = "choose one of these, as in `make setup PYTHON=python3.12`"
        return "%s, but the pinned packages need 3.11 to 3.14: %s" % (here, way_out)
    if not has_venv:
        return "%s has no venv with pip: install it (Debian, Ubuntu: apt install python3-venv)" % sys.executable
    if free < DISK[kind]:
        return "this folder's disk has %d GB free, and the packages need %d: free some space, or use another disk" % (
            free,
            DISK[kind],
        )
    return None


def has_avx2():
    """Return whether this processor has AVX2, which vllm's CPU build needs on x86-64; True on other processors."""
    if platform.machine() != "x86_64":
        return True
    with open("/proc/cpuinfo") as file:
        return any(line.startswith("flags") and "avx2" in line.split() for line in file)


def main(argv):
    """Check this machine and return the exit code."""
    if len(argv) != 1 or not os.path.isfile(argv[0]):
        sys.stderr.write("error: give a requirements file: python3 utils/check_machine.py requirements-cpu.txt\n")
        return 2
    with open(argv[0]) as file:
        kind = "cpu" if any(line.startswith("torch==") and "+cpu" in line for line in file) else "gpu"
    name, version = platform.libc_ver()
    glibc = tuple(int(number) for number in version.split(".")[:2]) if name == "glibc" else None
    try:
        import ensurepip  # Debian ships it in a separate package
    except ImportError:
        ensurepip = None
    system, free = platform.system(), shutil.disk_usage(os.curdir).free // 10**9
    is_fit = system != "Linux" or has_avx2()
    problem = find_problem(kind, system, glibc, sys.version_info[:2], is_fit, ensurepip is not None, free)
    if problem:
        sys.stderr.write("error: %s\n" % problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
