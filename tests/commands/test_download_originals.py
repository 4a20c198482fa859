"""The download of LaMP and LongLaMP: from folders, from a web server and a hub on loopback; faults, kills, bad input.

Runs are forks of a process with the needed imports (zygote.py).
"""

import json
import re
import shutil
import threading

import hub_server
import pytest
from lamp_samples import CONFIGS
from lamp_samples import read_sample as sample
from web_server import FINE, Trouble, lamp_files, serve
from zygote import ROOT, Zygote

from utils.base.manifest import file_hash, read_manifest
from utils.benchmarks import tasks
from utils.data.datasets import read_dataset

LAMP, LONG = ROOT / "tests/data/mini_lamp", ROOT / "tests/data/mini_longlamp"
ORIGINALS = lamp_files(LAMP)
ROWS = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in sorted(LONG.glob("*_*/*.json"))}
ON_HUB = {path: content for path, content in ROWS.items() if not path.startswith("email")}
LICENSED = ("LaMP-6", "LongLaMP-email")
NAMES = [name for name in tasks() if re.match("LaMP-[1-7]|LongLaMP-", name)]
TRAIN, DEV = "LaMP_4/train/train_questions.json", "LaMP_4/dev/dev_questions.json"  # on the server
HURRY = "import utils.base.web_files as w; w.WAIT = 0"


@pytest.fixture(scope="module")
def web():
    with serve(ORIGINALS) as server:
        yield server


@pytest.fixture(scope="module")
def hubs():
    with hub_server.serve(ON_HUB) as hub:
        yield hub


@pytest.fixture(scope="module")
def zygote(hubs, tmp_path_factory):
    home = {"HF_HOME": str(tmp_path_factory.mktemp("home")), "HF_ENDPOINT": hubs.url, "HF_HUB_OFFLINE": "0"}
    modules = ("utils.download_datasets", "httpx", "huggingface_hub.hf_api", "huggingface_hub.repocard")
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), *modules, **home)
    yield zygote
    zygote.close()


@pytest.fixture
def server(web):
    """LaMP's server in its initial state."""
    web.files, web.tells, web.trouble = dict(ORIGINALS), True, lambda path: FINE
    web.asked.clear()
    web.released.set()
    web.released = threading.Event()
    return web


@pytest.fixture
def hub(hubs):
    hubs.commit(ON_HUB)
    hubs.fetched.clear()
    return hubs


class Download:
    """One user's command, run repeatedly."""

    def __init__(self, folder, zygote, url):
        self.data, self.cache = folder / "data", folder / "cache"
        self._zygote, self._url = zygote, url

    def start(self, name, *flags, **setup):
        """Start it, with LaMP from the loopback server unless the flags name another source."""
        if not flags and name in NAMES and name.startswith("LaMP") and name not in LICENSED:
            flags = ("--source_url", self._url)
        words = ["--dataset", name, "--output_dir", self.data, "--cache_dir", self.cache, *flags]
        return self._zygote.start("utils.download_datasets", words, **{"do": HURRY, **setup})

    def run(self, name="LaMP-4", *flags, code=0, **setup):
        """Run it, and return stdout and stderr."""
        run = self.start(name, *flags, **setup)
        assert run.wait() == code, run.errors
        return run.printed, run.errors

    def refuse(self, name="LaMP-4", *flags, **setup):
        """Return the error message; existing files must not change."""
        before = self.content()
        errors = self.run(name, *flags, code=2, **setup)[1]
        told = errors[errors.index("error: ") :]
        assert told.count("\n") <= 3 and "Traceback" not in errors
        assert self.content() == before
        return told.removeprefix("error: ")

    def content(self):
        return {path.name: path.read_bytes() for path in self.data.glob("*")}

    def records(self, name="LaMP-4", setting="user", split="dev"):
        return read_dataset(self.file(name, setting, split), ["profile"])

    def file(self, name="LaMP-4", setting="user", split="dev"):
        return self.data / f"{name}_{setting}_{split}.json"

    def cached(self, ending=""):
        return [path for path in self.cache.rglob(f"*{ending}") if path.is_file()]


@pytest.fixture
def download(tmp_path, zygote, server):
    return Download(tmp_path, zygote, server.url)


def splits_of(name):
    return ("train", "val", "test") if name in CONFIGS else ("train", "dev", "test")


@pytest.mark.parametrize("name", ["LaMP-6", "LongLaMP-email"])
def test_from_a_folder(download, name):
    folder = LONG if name in CONFIGS else LAMP
    printed, errors = download.run(name, "--source_dir", folder)
    assert errors == ""
    for line, split in zip(printed.splitlines(), splits_of(name), strict=True):
        path = download.file(name, split=split)
        records = download.records(name, split=split)
        assert records == sample(name, split)
        assert all(("target" in record) == (split != "test" or name in CONFIGS) for record in records)
        assert line.startswith(f"{path}: {len(records)} questions")
        manifest = read_manifest(path)
        assert manifest["questions"] == len(records) and manifest["output_sha256"] == file_hash(path)
        assert manifest["source_sha256"] == {file: file_hash(folder / file) for file in manifest["source_sha256"]}
    assert download.run(name, "--source_dir", folder)[0].count(": already finished; skipped\n") == 3


@pytest.mark.parametrize("name", ["LaMP-2", "LongLaMP-topic"])
def test_the_published_source_gives_the_same_files(download, server, hub, name):
    assert download.run(name)[1] == ""
    for split in splits_of(name):
        assert download.records(name, split=split) == sample(name, split)
        place = {"dataset_name": server.url, "commit": None}
        if name in CONFIGS:
            place = {"dataset_name": "LongLaMP/LongLaMP", "commit": hub.branches["main"]}
        settings = read_manifest(download.file(name, split=split))["settings"]
        assert settings == {**place, "task": name, "setting": "user", "split": split}
    if name not in CONFIGS:
        splits = [f"{split}/{split}_{kind}" for split in ("train", "dev") for kind in ("questions", "outputs")]
        asked = [f"LaMP_2/new/{file}.json" for file in (*splits, "test/test_questions")]
        assert [path for path, _ in server.asked] == asked
    server.asked.clear()
    hub.fetched.clear()
    assert download.run(name)[0].count(": already finished; skipped\n") == 3
    shutil.rmtree(download.data)
    download.run(name)  # cached files are not downloaded again
    assert (server.asked, hub.fetched) == ([], [])


def test_a_copy_of_the_whole_server_has_lamp_2_twice(download, tmp_path):
    """Its plain folder has the news categories. Files in deeper folders may belong to another task."""
    news = json.loads(ORIGINALS["LaMP_2/new/dev/dev_questions.json"])
    news[0]["profile"][0]["category"] = "sports"
    for path, content in {**ORIGINALS, "LaMP_2/dev/dev_questions.json": json.dumps(news).encode()}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    download.run("LaMP-2", "--source_dir", tmp_path)
    assert download.records("LaMP-2") == sample("LaMP-2", "dev")
    told = download.refuse("LaMP-4", "--source_dir", tmp_path.parent)
    assert told.startswith(f"{tmp_path.parent}: has no file {TRAIN}, nor one in a parent folder\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("LaMP-4 --setting temporal", "--setting temporal: LaMP-4 has no such setting; its settings: user and time\n"),
        ("LaMP-4 --source_url ciir.cs", "--source_url ciir.cs: not an address; it must begin with http:// or htt"),
        ("LaMP-6", "LaMP-6_user: its texts are from the Avocado corpus, which needs a licence and cannot be "),
    ],
)
def test_invalid_flags(download, flags, message):
    name, *others = flags.split()
    assert download.refuse(name, *others).startswith(message)
    published = {(name, setting): part for name in NAMES for setting, [part] in tasks()[name].files.published().items()}
    places = {key: (part.at, part.folder) for key, part in published.items()}
    server, dataset = "https://ciir.cs.umass.edu/downloads/LaMP", "LongLaMP/LongLaMP"
    assert places["LaMP-4", "time"] == (server, "time/LaMP_4") and places["LaMP-2", "user"] == (server, "LaMP_2/new")
    assert places["LongLaMP-topic", "temporal"] == (dataset, "topic_writing_temporal")


def test_bad_input_is_reported_and_nothing_is_replaced(download, tmp_path):
    folder = shutil.copytree(LAMP, tmp_path / "originals")
    path, flags = folder / "LaMP_2/dev_outputs.json", ("--source_dir", folder)
    download.run("LaMP-2", *flags)
    path.write_text(path.read_text().replace('"comedy"', '"western"'))
    # Outputs of the earlier files are not replaced without a flag.
    assert download.refuse("LaMP-2", *flags).startswith(f"{download.file('LaMP-2')}: was made with other settings")
    told = rf"{folder}/LaMP_2/dev_questions\.json: record 0 \(id '20'\): field 'target': Invalid enum value 'western'"
    assert re.match(told, download.refuse("LaMP-2", *flags, "--overwrite"))


def test_a_server_that_recovers(download, server):
    server.in_turn(Trouble(503), Trouble(429), Trouble(cut_after=1000), Trouble(cut_after=0), Trouble(hold_after=0))
    leftover = download.cache / server.url.partition("//")[2] / f"{TRAIN}.{'0' * 16}.tmp"  # of a killed process
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    errors = download.run(do=f"{HURRY}; w.SILENCE = 1")[1]
    assert download.records() == sample("LaMP-4", "dev")
    assert [line.rpartition(";")[0] for line in errors.splitlines()] == [
        "train_questions.json: the server returned status 503",
        "train_questions.json: the server returned status 429",
        "train_questions.json: the connection failed (RemoteProtocolError)",
        "train_questions.json: the connection failed (RemoteProtocolError)",
        "train_questions.json: the connection failed (ReadTimeout)",
    ]
    wanted = [wanted for path, wanted in server.asked if path == TRAIN]
    assert wanted == [None] * 3 + ["bytes=1000-"] * 3
    assert download.cached(".tmp") == download.cached(".tag") == []


@pytest.mark.parametrize(
    ("trouble", "tries", "message"),
    [
        (Trouble(503), 6, "cannot be downloaded: the server returned status 503\n  try again later, or copy "),
        (Trouble(404), 1, "the server returned status 404; check the address\n"),
        (Trouble(page=b"\n <!doctype html>"), 1, "the server returned a web page instead of JSON; check the address\n"),
    ],
)
def test_a_server_that_does_not_recover(download, server, trouble, tries, message):
    server.trouble = lambda path: trouble if path == DEV else FINE
    errors = download.run(code=1 if trouble.status == 503 else 2)[1].replace("error: ", "")  # 1: it may pass
    told = "".join(line for line in errors.splitlines(keepends=True) if "; retrying in " not in line)
    assert told.startswith(f"{server.url}/{DEV}: {message}") and told.count("\n") <= 2
    assert [path for path, _ in server.asked].count(DEV) == tries
    assert download.file(split="train").exists() and not download.file().exists()
    assert not list(download.cache.rglob("dev_questions.json*"))
    server.trouble = lambda path: FINE
    assert download.run()[0].count("skipped") == 1


def test_a_password_in_the_address_is_not_shown_or_kept(download, server):
    url = server.url.replace("//", "//user:c0ffee@")
    server.in_turn(*[Trouble(503)] * 6)
    told = download.run("LaMP-4", "--source_url", url, code=1)[1] + download.run("LaMP-4", "--source_url", url)[0]
    files = [*download.data.iterdir(), *download.cached()]
    assert "c0ffee" not in told
    assert not [path for path in files if b"c0ffee" in path.read_bytes() or "c0ffee" in str(path)]
    assert read_manifest(download.file())["settings"]["dataset_name"] == server.url


@pytest.mark.parametrize("tells", [True, False])
def test_a_file_that_changed_meanwhile_is_downloaded_from_the_start(download, server, tells):
    server.tells = tells
    newer = json.loads(ORIGINALS[TRAIN])
    newer[0]["input"] += " changed"
    troubles = iter([Trouble(cut_after=1000), Trouble(503)])

    def trouble(path):
        found = next(troubles, FINE)
        if found.status == 503:
            server.files[TRAIN] = json.dumps(newer).encode()
        return found

    server.trouble = trouble
    download.run()
    assert [wanted for path, wanted in server.asked if path == TRAIN] == [None, *["bytes=1000-" if tells else None] * 2]
    assert download.records(split="train")[0]["question"].endswith(" changed")
