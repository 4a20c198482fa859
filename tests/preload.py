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
#define REAL(type, name) ((type (*)())dlsym(RTLD_NEXT, name))
static int setting(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
static int is_lost(int fd) {
    static int calls = 0;
    char name[64], path[4096] = "";
    const char *folder = getenv("LOST_FOLDER");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (!folder || readlink(name, path, sizeof path - 1) < 0 || strncmp(path, folder, strlen(folder))) return 0;
    errno = setting("LOST_ERRNO");
    return ++calls > setting("LOST_AFTER");
}
int flock(int fd, int how) { return (errno = setting("FLOCK_ERRNO")) ? -1 : REAL(int, "flock")(fd, how); }
int fsync(int fd) { return is_lost(fd) ? -1 : REAL(int, "fsync")(fd); }
ssize_t write(int fd, const void *data, size_t size) {
    return is_lost(fd) ? -1 : REAL(ssize_t, "write")(fd, data, size);
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Return the path of the library; its effects are set by environment variables."""
    path = tmp_path_factory.mktemp("preload") / "faults.so"
    path.with_suffix(".c").write_text(SOURCE)
    try:
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", path, path.with_suffix(".c"), "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    return path


def start(library, words, **faults):
    """Start a script with these faults; its output and errors are read by `communicate`."""
    environment = {**os.environ, "LD_PRELOAD": str(library), **{name: str(value) for name, value in faults.items()}}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, words)], cwd=ROOT, env=environment, **pipes)
