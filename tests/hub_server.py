"""A Hugging Face hub on loopback for datasets and models, with faults.

`with serve({path: content}) as hub` serves files, as the datasets `NAME`, `LONG`, `MEMORY` and `PAIRS` and as the model
`MODEL`, to a client that has `hub.url` for HF_ENDPOINT.
Files of `lfs_from` bytes or more are redirected to another host name, like large files on the hub.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from api_server import running
from web_server import FileHandler, FileServer

from utils.benchmarks.lampqa.task import COMMUNITIES, paper_files

NAME = "alireza7/LaMP-QA"
MODEL = "owner/chat"
LONG = "LongLaMP/LongLaMP"
MEMORY = "bowen-upenn/PersonaMem(?:-v2)?"
PAIRS = "QiyaoMa/Personalized-RewardBench"
API = rf"/api/(?:datasets/(?:{NAME}|{LONG}|{MEMORY}|{PAIRS})|models/{MODEL})"
FILES = rf"/(?:datasets/(?:{NAME}|{LONG}|{MEMORY}|{PAIRS})|{MODEL})"
# Questions of LaMP-QA by category and split, in the paper's Table 1.
QUESTIONS = {tuple(stem.rsplit("_", 1)): printed["questions"] for stem, printed in paper_files().items()}


@dataclass(frozen=True)
class Fault:
    """A fault of one answer.

    Attributes:
        status, code: answer with this status and X-Error-Code; the body and X-Error-Message repeat what was sent.
        headers: more headers of such an answer.
        cut_after: number of bytes after which the connection is closed.
        hold_after: number of bytes after which the hub pauses until its `released` is set.
        more: number of bytes by which the reported size is too large.
        flip: send the content with its first byte changed.
    """

    status: int = 200
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    cut_after: int | None = None
    hold_after: int | None = None
    more: int = 0
    flip: bool = False


FINE = Fault()


def make_dataset(sample: Path) -> dict[str, bytes]:
    """Return a dataset's files in LaMP-QA's layout, made from the three files of tests/data/mini_lampqa."""
    files, configs = {}, {}
    for stem, entry in paper_files().items():
        config, split = stem.rsplit("_", 1)
        path = f"data/{config}/{split}/{split}.json"
        records = json.loads((sample / f"{split}.json").read_text(encoding="utf-8"))
        of_group = [record for record in records if COMMUNITIES[record["category"]] == entry["group"]]
        files[path] = json.dumps(of_group, indent=2).encode()
        configs.setdefault(config, {})[split] = path
    return {"README.md": make_card(configs), ".gitattributes": b"", **files}


def make_card(configs: dict[str, dict[str, str]]) -> bytes:
    """Return a dataset's card with the path of every split of every config."""
    lines = ["---", "configs:"]
    for config, paths in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [line for split, path in paths.items() for line in (f"  - split: {split}", f"    path: {path}")]
    return "\n".join([*lines, "---", "# A dataset", ""]).encode()


class HubServer(FileServer):
    """
    Attributes:
        commits: files by path, by commit; `branches` has the commit of each branch.
        fault: returns a request's fault by its method and path.
        requests: method and path of each request, in order of arrival.
        fetched: the files whose content was requested, once per request.
        strangers: paths on the other host name that were requested with a token.
    """

    def __init__(self, files: dict[str, bytes], lfs_from: int):
        super().__init__(_Handler)
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.lfs_from = lfs_from
        self.fault: Callable[[str, str], Fault] = lambda method, path: FINE
        self.requests: list[tuple[str, str]] = []
        self.fetched: list[str] = []
        self.strangers: list[str] = []
        self.commit(files)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit with these files, and return it."""
        content = repr(sorted(files.items())) + str(len(self.commits))
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name] = files
        self.branches["main"] = name
        return name


class _Handler(FileHandler):
    server: HubServer

    def answer(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlparse(self.path).path)
        with self.server.changed:
            self.server.requests.append((self.command, path))
            self.server.changed.notify_all()
        fault = self.server.fault(self.command, path)
        if fault.status != 200:
            return self._refuse(fault.status, fault.code, dict(fault.headers))
        for pattern, function in (
            (rf"{API}(?:/revision/(?P<revision>[^/]+))?", self._info),
            (rf"{API}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.*))?", self._tree),
            (rf"{API}/paths-info/(?P<revision>[^/]+)", self._paths_info),
            (rf"{FILES}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", self._resolve),
        ):
            if match := re.fullmatch(pattern, path):
                return self._of_commit(function, fault, **match.groupdict())
        if path.startswith("/cdn/"):
            return self._cdn(path.removeprefix("/cdn/"), fault)
        is_repository = path.startswith(("/api/datasets/", "/datasets/", "/api/models/")) or "/resolve/" in path
        return self._refuse(404, "RepoNotFound" if is_repository else "")

    do_GET = do_HEAD = do_POST = answer

    def _of_commit(self, function: Callable, fault: Fault, revision: str | None, **more: str | None) -> None:
        commit = self.server.branches.get(revision or "main", revision)
        if commit not in self.server.commits:
            return self._refuse(404, "RevisionNotFound")
        return function(commit, self.server.commits[commit], fault, **more)

    def _info(self, commit: str, files: dict[str, bytes], fault: Fault) -> None:
        siblings = [{"rfilename": path} for path in files]
        self._send_json({"id": NAME, "sha": commit, "private": False, "gated": False, "siblings": siblings}, fault)

    def _tree(self, commit: str, files: dict[str, bytes], fault: Fault, folder: str | None) -> None:
        prefix = f"{folder}/" if folder else ""
        inside = {path: content for path, content in files.items() if path.startswith(prefix)}
        if folder and not inside:
            return self._refuse(404, "EntryNotFound")
        folders = {path[: place.start()] for path in inside for place in re.finditer("/", path)} - {folder}
        entries = [*map(_folder_entry, sorted(folders)), *(self._entry(path, c) for path, c in inside.items())]
        if "recursive=true" not in self.path.lower():
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
        return self._send_json(entries, fault)

    def _paths_info(self, commit: str, files: dict[str, bytes], fault: Fault) -> None:
        wanted = json.loads(self._body)["paths"]
        entries = [self._entry(path, files[path]) for path in wanted if path in files]
        folders = [p for p in wanted if p not in files and any(path.startswith(f"{p}/") for path in files)]
        self._send_json([*entries, *map(_folder_entry, folders)], fault)

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": len(content), "oid": _git_sha1(content)}
        if len(content) >= self.server.lfs_from:
            entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 134}
        return entry

    def _resolve(self, commit: str, files: dict[str, bytes], fault: Fault, path: str) -> None:
        headers = {"X-Repo-Commit": commit}
        if path not in files:
            return self._refuse(404, "EntryNotFound", headers)
        content = files[path]
        if len(content) < self.server.lfs_from:
            return self._send_file(path, content, fault, headers | {"ETag": f'"{_git_sha1(content)}"'})
        elsewhere = f"http://localhost:{self.server.server_port}/cdn/{_sha256(content)}"
        linked = {"X-Linked-ETag": f'"{_sha256(content)}"', "X-Linked-Size": str(len(content) + fault.more)}
        return self.send(302, b"", headers | linked | {"Location": elsewhere}, FINE)

    def _cdn(self, sha256: str, fault: Fault) -> None:
        if "Authorization" in self.headers:
            self.server.strangers.append(self.path)
        files = [pair for files in self.server.commits.values() for pair in files.items()]
        path, content = next((path, content) for path, content in files if _sha256(content) == sha256)
        self._send_file(path, content, fault, {})

    def _send_file(self, path: str, content: bytes, fault: Fault, headers: dict[str, str]) -> None:
        """Send the content, or the part requested with Range: bytes=FIRST-[LAST]."""
        place, status, total = slice(None), 200, len(content)
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            last = int(wanted[2] or total - 1)
            place, status = slice(int(wanted[1]), last + 1), 206
            headers |= {"Content-Range": f"bytes {wanted[1]}-{last}/{total}"}
        if self.command == "HEAD":
            headers |= {"Content-Length": str(total + fault.more)}
        else:
            self.server.fetched.append(path)
        if fault.flip:
            content = bytes([content[0] ^ 1]) + content[1:]
        self.send(status, content[place], {"Accept-Ranges": "bytes", **headers}, fault, path)

    def _send_json(self, value: Any, fault: Fault) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, fault)

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        """Send an error that repeats the whole request, including secrets."""
        message = f"You sent {dict(self.headers)}"
        extra = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"}
        self.send(status, json.dumps({"error": message}).encode(), {**(headers or {}), **extra}, FINE)


def _folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_sha1(content: bytes) -> str:
    """Return git's hash of this content, which the hub uses for small files."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve(files: dict[str, bytes], lfs_from: int = 10_000_000) -> Iterator[HubServer]:
    """Run a hub in a thread of this process."""
    with running(HubServer(files, lfs_from)) as hub:
        yield hub
