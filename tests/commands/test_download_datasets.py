"""The download from a hub on loopback, with the hub's real client, and from local folders; faults, kills.

Most runs are forks of a process with the needed imports (zygote.py).
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from hub_server import FINE, NAME, QUESTIONS, Fault, make_card, make_dataset, serve
from zygote import ROOT, Zygote

from utils.base.manifest import read_manifest
from utils.data.datasets import read_dataset
from utils.data.responses import match_responses, read_responses

SAMPLE = ROOT / "tests/data/mini_lampqa"
TOKEN = "hf_distinctiveTOKEN0123456789abcd"
PATHS = {(category, split): f"data/{category}/{split}/{split}.json" for category, split in QUESTIONS}
ART = PATHS["Art_and_Entertainment", "train"]
LFS_FROM = 30_000  # bytes; some files of the sample are larger, some smaller
FILES = make_dataset(SAMPLE)
IMPORTS = ("utils.download_datasets", "huggingface_hub.hf_api", "huggingface_hub.repocard")


@pytest.fixture(scope="module")
def server():
    with serve(FILES, LFS_FROM) as server:
        yield server


@pytest.fixture(scope="module")
def environment(server, tmp_path_factory):
    """Return the environment of this hub's client."""
    home = {"HF_HOME": str(tmp_path_factory.mktemp("home")), "HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
    return home | {"HF_HUB_DOWNLOAD_TIMEOUT": "600", "HF_HUB_ETAG_TIMEOUT": "600", "HF_HUB_OFFLINE": "0"}


@pytest.fixture(scope="module")
def zygote(environment, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        zygote = Zygote(tmp_path_factory.mktemp("zygote"), *IMPORTS)
    yield zygote
    zygote.close()


@pytest.fixture
def hub(server):
    """The hub in its initial state."""
    server.commits.clear()
    server.branches.clear()
    server.commit(FILES)
    forget(server)
    yield server
    assert server.strangers == []  # only the hub received the token


def forget(hub):
    hub.fault = lambda method, path: FINE
    hub.released.set()
    hub.released = threading.Event()
    for seen in (hub.requests, hub.fetched, hub.sent):
        seen.clear()


class Download:
    """One user's command, run repeatedly."""

    def __init__(self, folder, zygote, environment):
        self.folder, self.data, self.cache = folder, folder / "data", folder / "cache"
        self._zygote, self._environment = zygote, environment

    def refuse(self, *flags, **setup):
        """Return the error message; no incomplete file may stay."""
        errors = self.run(*flags, code=2, **setup)[1]
        assert errors.count("\n") <= 3 + errors.count("note: ")
        assert not list(self.data.glob("*.tmp"))
        return errors

    def run_process(self, *flags, code=0, **environment):
        """Run it as a new process with this environment; return stdout and stderr."""
        command = [sys.executable, "utils/download_datasets.py", "--dataset_save_directory", self.data]
        environment = {**os.environ, **self._environment, **environment}
        command += ["--cache_dir", self.cache, *flags]
        done = subprocess.run(command, cwd=ROOT, text=True, env=environment, capture_output=True, timeout=600)
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    def finished(self):
        """Return every finished file with its bytes."""
        paths = [self.data / f"{category}_{split}.json" for category, split in QUESTIONS]
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    def file(self, category="Art_and_Entertainment", split="train"):
        return self.data / f"{category}_{split}.json"

    def start(self, *flags, **setup):
        flags = ["--dataset_save_directory", self.data, "--cache_dir", self.cache, *flags]
        return self._zygote.start("utils.download_datasets", flags, **setup)

    def run(self, *flags, code=0, **setup):
        """Run it, and return stdout and stderr."""
        run = self.start(*flags, **setup)
        assert run.wait() == code, run.errors
        printed = run.printed
        assert TOKEN not in printed + run.errors and "Traceback" not in run.errors
        return printed, run.errors


@pytest.fixture
def download(tmp_path, zygote, environment):
    return Download(tmp_path, zygote, environment)


def expected(files):
    """Return the expected content of the nine files for these dataset files."""
    return {
        f"{category}_{split}.json": (json.dumps(json.loads(files[path]), ensure_ascii=False, indent=4) + "\n").encode()
        for (category, split), path in PATHS.items()
    }


def changed(number):
    """Return the dataset's files with another one for Art_and_Entertainment, train."""
    return FILES | {
        ART: json.dumps([{"id": f"new{i}", "question": "Which?", "profile": []} for i in range(number)]).encode()
    }


def test_nine_files_with_unchanged_records(hub, download):
    assert {len(FILES[path]) >= LFS_FROM for path in PATHS.values()} == {True, False}  # both kinds of transfer
    printed, errors = download.run()
    assert download.finished() == expected(FILES) and errors == ""
    commit = hub.branches["main"]
    file, path = download.file("Society_and_Culture", "test"), PATHS["Society_and_Culture", "test"]
    line = f"{file}: 4 questions of commit {commit[:12]}; the paper's Table 1 says 1074"
    assert printed.splitlines()[-1] == line and len(printed.splitlines()) == 9
    manifest = read_manifest(file)
    assert manifest["settings"] == {
        "dataset_name": NAME, "commit": commit, "category": "Society_and_Culture", "split": "test",
    }  # fmt: skip
    assert manifest["source_sha256"] == {path: hashlib.sha256(FILES[path]).hexdigest()}
    assert manifest["output_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert sorted(hub.fetched) == sorted([*PATHS.values(), "README.md"])


def test_a_second_run_downloads_only_missing_files(hub, download):
    download.run()
    forget(hub)
    printed, _ = download.run()
    assert printed.count(": already finished; skipped\n") == 9
    assert hub.fetched == []
    assert ("GET", f"/api/datasets/{NAME}/revision/main") in hub.requests  # is it still the newest?
    download.file().unlink()
    shutil.rmtree(download.cache)
    printed, _ = download.run()
    assert printed.count(": already finished; skipped\n") == 8 and download.finished() == expected(FILES)
    assert hub.fetched == ["README.md", ART]


def test_another_commit_is_named_and_not_mixed(hub, download):
    old = hub.branches["main"]
    download.run()
    download.file("Art_and_Entertainment", "test").unlink()
    new = hub.commit(changed(3))
    forget(hub)
    assert download.refuse() == (
        f"error: {download.file()}: made from commit {old}; {NAME} is at {new} (and 7 more files from another commit)\n"
        f"  use --revision {old} to continue with that commit, or --overwrite to make all files again\n"
    )
    assert hub.fetched == [] and len(download.finished()) == 8
    hub.branches["v1"] = old
    printed, _ = download.run("--revision", "v1")
    assert printed.count("skipped") == 8 and download.finished() == expected(FILES)
    manifest = read_manifest(download.file("Art_and_Entertainment", "test"))
    assert (manifest["settings"]["commit"], manifest["arguments"]["revision"]) == (old, "v1")
    printed, _ = download.run("--overwrite")
    assert printed.count(f"of commit {new[:12]}") == 9 and download.finished() == expected(changed(3))
    assert set(hub.fetched) == {ART}  # the others are the same, and in the cache


@pytest.mark.parametrize("away", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_the_hub(hub, download, away):
    cannot = f"{NAME}: cannot be downloaded: the connection failed (ConnectError)\n"
    is_offline = "HF_HUB_OFFLINE" in away
    nothing = f"{NAME}: no such folder, missing or incomplete in the cache, and the hub" if is_offline else cannot
    _, errors = download.run_process(code=2, **away)
    assert errors.startswith(f"error: {nothing}") and errors.count("\n") == 2 and download.finished() == {}
    download.run()
    shutil.rmtree(download.data)
    _, errors = download.run_process(**away)
    assert download.finished() == expected(FILES)
    assert errors == "" if is_offline else errors.startswith(f"note: {cannot}  continuing with the commit ")
    shutil.rmtree(download.cache)
    printed, errors = download.run_process(**away)
    assert errors.startswith(f"note: {NAME}: ")
    assert printed == f"{download.data}: all files exist; skipped, not compared with the hub\n"


IN_TROUBLE = {  # where, which fault, more flags, and the message
    "no dataset": ("", Fault(404, "RepoNotFound"), [], "no such folder, and no such dataset on the hub, or a private"),
    "no token": ("", Fault(401, "GatedRepo"), [], "a gated dataset; ask for access on its page, then `hf auth login`"),
    "a refused file": ("/cdn/", Fault(403), [], "cannot be downloaded: the hub returned status 403; check the token"),
    "another size": ("/data/", Fault(more=5), [], "cannot be downloaded: the size of a file differs from "),
    "no branch": ("", FINE, ["--revision", "nix"], "has no branch, tag or commit nix on the hub\n"),
    "no folder": ("", FINE, ["--dataset_name", "./none"], "--dataset_name ./none: no such folder\n"),
}


@pytest.mark.parametrize("case", IN_TROUBLE)
def test_errors_are_short_and_a_retry_succeeds(hub, download, case):
    place, fault, flags, message = IN_TROUBLE[case]
    hub.fault = lambda method, path: fault if place in path else FINE
    errors = download.refuse(*flags)
    assert message in errors.splitlines(keepends=True)[0] and (flags or errors.startswith(f"error: {NAME}: "))
    assert all(content == expected(FILES)[name] for name, content in download.finished().items())
    forget(hub)
    download.run()
    assert download.finished() == expected(FILES)


BUSY = {  # the answers to the first requests, and the waits that they name
    "Retry-After": (Fault(429, headers=(("Retry-After", "0.1"),)), "0 s"),
    "a rate limit": (Fault(429, headers=(("RateLimit", '"api";r=0;t=1'),)), "1 s"),
    "overloaded": (Fault(503, headers=(("Retry-After", "1"),)), "1 s"),
    "an error of the server": (Fault(500), "1 s"),
}


@pytest.mark.parametrize("case", BUSY)
def test_a_busy_hub_is_asked_again(hub, download, case):
    fault, wait = BUSY[case]
    busy = iter([fault] * 2)
    hub.fault = lambda method, path: next(busy, FINE) if path.startswith("/api/") else FINE
    _, errors = download.run()
    assert errors.count(f"the hub returned status {fault.status}; retrying in ") >= 1  # the client repeats some itself
    assert f"; retrying in {wait}\n" in errors
    assert download.finished() == expected(FILES)


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_stays_busy_ends_the_command_with_code_1(hub, download, status):
    """A scheduler then does not take it for a mistake; with a cached commit, that is used."""
    hub.fault = lambda method, path: Fault(status, headers=(("Retry-After", "0.01"),))
    said = {
        429: "the hub limits the rate of requests (status 429)\n  wait, log in with `hf auth login`, or fetch",
        503: "cannot be downloaded: the hub returned status 503\n  run the same command again to resume",
    }[status]
    errors = download.run(code=1)[1]
    assert f"error: {NAME}: {said}" in errors and errors.count("retrying in") == 5
    forget(hub)
    download.run()
    hub.fault = lambda method, path: Fault(status, headers=(("Retry-After", "0.01"),))
    shutil.rmtree(download.data)
    _, errors = download.run()
    assert f"note: {NAME}: {said.partition(chr(10))[0]}\n  continuing with the commit in" in errors
    assert download.finished() == expected(FILES)


@pytest.mark.parametrize("code", ["", "RepoNotFound"])
def test_an_expired_token_is_named(hub, download, code):
    """The hub then refuses public repositories too."""
    hub.fault = lambda method, path: Fault(401, code)
    errors = download.refuse()
    said = "the hub does not accept the token (from HF_TOKEN or `hf auth login`): it has expired or was revoked"
    assert errors == f"error: {NAME}: {said}\n  log in again with `hf auth login`, or remove the token\n"


def test_the_users_own_file_is_kept(hub, download):
    download.data.mkdir()
    download.file().write_text('[{"id": "mine"}]\n')
    printed, _ = download.run()
    assert printed.startswith(f"{download.file()}: already exists; skipped. Its origin is unknown")
    assert download.file().read_text() == '[{"id": "mine"}]\n' and len(download.finished()) == 9


def test_the_token_is_shown_nowhere(hub, download):
    shown = "".join(download.run_process(HF_HUB_VERBOSITY="debug", HF_DEBUG="1"))
    assert TOKEN not in shown and "Authorization" not in shown
    files = [path for path in download.folder.rglob("*") if path.is_file()]
    assert len(files) > 9 and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_resume_after_a_kill_in_the_middle_of_a_file(hub, download):
    content = (
        b"[" + b",".join(b'{"id": "%d", "question": "Why?", "profile": []}' % number for number in range(60_000)) + b"]"
    )
    place = PATHS["Lifestyle_and_Personal_Development", "train"]
    hub.commit(FILES | {place: content})
    hub.fault = lambda method, path: Fault(hold_after=500_000) if path.startswith("/cdn/") else FINE
    run = download.start()
    hub.wait_until(lambda: hub.sent.get(place, 0) > 500_000)  # of 2 MB; the rest never comes
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert len(download.finished()) == 3  # the first category
    forget(hub)
    download.run()
    assert download.finished() == expected(hub.commits[hub.branches["main"]])
    assert len(hub.fetched) == 6


@pytest.fixture
def copy(tmp_path):
    """A folder with a copy of the dataset, and a function that writes one of its files."""

    def write(path, content):
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(content)
        return tmp_path / "copy"

    for path, content in FILES.items():
        write(path, content)
    return write


def test_a_folder_needs_no_hub(hub, download, copy):
    folder = copy("README.md", FILES["README.md"])
    printed, errors = download.run("--dataset_name", folder)
    assert (download.finished(), errors, hub.requests) == (expected(FILES), "", [])
    assert printed.startswith(f"{download.file()}: 8 questions; the paper's Table 1 says 9349\n")
    assert read_manifest(download.file())["settings"]["sha256"] == [hashlib.sha256(FILES[ART]).hexdigest()]
    moved = folder.rename(folder.with_name("moved"))
    (moved / "README.md").unlink()  # without a card, the layout decides
    assert download.run("--dataset_name", moved)[0].count("skipped") == 9
    (moved / ART).write_bytes(changed(3)[ART])
    line = download.refuse("--dataset_name", moved)
    assert line.startswith(f"error: {download.file()}: was made with other settings: sha256: [")
    assert download.finished() == expected(FILES)


def test_json_lines_parquet_and_several_files(hub, download, copy):
    import datasets

    records = {path: json.loads(FILES[path]) for path in PATHS.values()}
    lines, parquet = PATHS["Art_and_Entertainment", "train"], PATHS["Art_and_Entertainment", "test"]
    copy("lines/one.jsonl", "".join(f"{json.dumps(record)}\n" for record in records[lines]).encode())
    for number, half in enumerate((records[parquet][:2], records[parquet][2:])):
        folder = copy(f"test-{number:05}.parquet", b"")
        datasets.Dataset.from_list(half).to_parquet(str(folder / f"test-{number:05}.parquet"))
    configs = {}
    for (category, split), path in PATHS.items():
        configs.setdefault(category, {})[split] = path
    configs["Art_and_Entertainment"] |= {"train": "lines/*.jsonl", "test": "test-*"}
    copy("README.md", make_card(configs))
    download.run("--dataset_name", folder)
    assert download.finished() == expected(FILES)


# Personalized RewardBench: LaMP-QA's test questions with two responses each


def pairs_of(category):
    records = json.loads(FILES[PATHS[category, "test"]])
    return [record | {name: f"{name} for {record['id']}" for name in ("chosen", "rejected")} for record in records]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return the files of a dataset in its layout: two configs in parquet, one in JSON."""
    import datasets

    path, configs = tmp_path_factory.mktemp("pairs") / "test.parquet", {}
    for category, split in QUESTIONS:
        if split == "test":
            datasets.Dataset.from_list(pairs_of(category)).to_parquet(str(path))
            configs[category] = {f"{category}/test-00000-of-00001.parquet": path.read_bytes()}
    configs["Society_and_Culture"] = {"society/test.json": json.dumps(pairs_of("Society_and_Culture")).encode()}
    card = make_card({category: {"test": next(iter(files))} for category, files in configs.items()})
    return {"README.md": card} | {name: content for files in configs.values() for name, content in files.items()}


def test_pairs_become_a_dataset_and_two_response_files(hub, download, pairs):
    commit = hub.commit(pairs)[:12]
    download.data.mkdir()
    missing, *others = json.loads(FILES[PATHS["Art_and_Entertainment", "test"]])
    download.file(split="test").write_text(json.dumps([*others, missing | {"id": "another"}]))
    printed, _ = download.run("--dataset", "PersonalizedRewardBench")
    stem = f"{download.data}/PersonalizedRewardBench_Art_and_Entertainment"
    count = len(others) + 1
    assert printed.splitlines()[:2] == [
        f"{stem}.json: {count} questions of commit {commit}; the paper's Table 1 of the test set says 767",
        f"{stem}.json: 1 of {count} ids not in {download.file(split='test')}; 1 only in the latter",
    ]
    assert "Lifestyle_and_Personal_Development.json: ids not compared; download the dataset with Life" in printed
    for category in {category for category, _ in QUESTIONS}:
        path = download.data / f"PersonalizedRewardBench_{category}.json"
        records = read_dataset(path)
        assert records == json.loads(FILES[PATHS[category, "test"]])  # without the responses
        for name in ("chosen", "rejected"):
            responses = read_responses(path.with_name(f"{path.stem}_{name}.json"))
            assert match_responses(records, responses, name, responses) == records
            assert [samples[0]["output"] for samples in responses.values()] == [row[name] for row in pairs_of(category)]
    rejected = download.data / "PersonalizedRewardBench_Society_and_Culture_rejected.json"
    content = rejected.read_bytes()
    rejected.unlink()
    printed, _ = download.run_process("--dataset", "PersonalizedRewardBench", HF_HUB_OFFLINE="1")
    assert (printed.count("skipped"), rejected.read_bytes()) == (2, content)


def test_pairs_from_a_folder_and_a_missing_response(download, pairs, tmp_path):
    for name, content in pairs.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    file = tmp_path / "copy/society/test.json"
    first, second, *_ = pairs_of("Society_and_Culture")
    file.write_text(json.dumps([first, second | {"rejected": " "}]))
    errors = download.refuse("--dataset", "PersonalizedRewardBench", "--source_dir", tmp_path / "copy")
    assert errors.startswith(f"error: {file}: record 1: field 'rejected': Expected `str` that is not empty\n  copy it")
    assert not list(download.data.glob("*Society*"))
    file.write_bytes(pairs["society/test.json"])
    printed, _ = download.run("--dataset", "PersonalizedRewardBench", "--source_dir", tmp_path / "copy")
    assert (printed.count("skipped"), len(list(download.data.glob("*_rejected.json")))) == (2, 3)
