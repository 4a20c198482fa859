"""A library for LD_PRELOAD: a file system without locks, or one whose writes fail after a while."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int setting(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }

static int is_lost(int fd) {
    static int calls = 0;
    char name[64], path[4096];
    const char *folder = getenv("LOST_FOLDER");
    if (!folder) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path);
    if (length < (ssize_t)strlen(folder) || strncmp(path, folder, strlen(folder))) return 0;
    if (++calls <= setting("LOST_AFTER")) return 0;
    errno = setting("LOST_ERRNO");
    return 1;
}

int flock(int fd, int how) {
    if ((errno = setting("FLOCK_ERRNO"))) return -1;
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, how);
}

ssize_t write(int fd, const void *data, size_t size) {
    if (is_lost(fd)) return -1;
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, size);
}

int fsync(int fd) {
    if (is_lost(fd)) return -1;
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Return the path of the library; its effects are set by environment variables."""
    folder = tmp_path_factory.mktemp("preload")
    (folder / "faults.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "faults.so", folder / "faults.c", "-ldl"]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    return folder / "faults.so"


def start(library, words, **faults):
    """Start a script with these faults; its output and errors are read by `communicate`."""
    environment = {**os.environ, "LD_PRELOAD": str(library), **{name: str(value) for name, value in faults.items()}}
    return subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
