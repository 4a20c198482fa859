"""plot_training.py on logs written by hand; the lines of the figure are compared with the log."""

import json
import math
import struct

import pytest

from utils.cli import UserError
from utils.plot_training import main, make_figure, read_log, running_mean

SHORT = [
    {"step": 1, "loss": 3.0, "grad_norm": 0.9, "learning_rate": 5e-05, "epoch": 0.1},
    {"step": 2, "loss": 2.5, "grad_norm": 0.8, "learning_rate": 4e-05, "epoch": 0.2},
    {"step": 2, "eval_loss": 2.75, "eval_aspect_recall": 0.25, "epoch": 0.2},
    {"step": 3, "loss": 2.25, "grad_norm": 0.8, "learning_rate": 3e-05, "epoch": 0.3},
    {"step": 4, "loss": 2, "grad_norm": 0.7, "learning_rate": 2e-05, "epoch": 0.4},
    {"step": 4, "eval_loss": 2.5, "eval_aspect_recall": 0.5, "epoch": 0.4},
    {"step": 4, "train_runtime": 12.5, "train_loss": 2.4, "epoch": 0.4},
]
SHORT_LOG = {
    "loss": {1: 3.0, 2: 2.5, 3: 2.25, 4: 2},
    "eval_loss": {2: 2.75, 4: 2.5},
    "eval_aspect_recall": {2: 0.25, 4: 0.5},
}


@pytest.fixture
def run_folder(tmp_path):
    def write(entries, end="\n"):
        folder = tmp_path / "planner"
        folder.mkdir(exist_ok=True)
        lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
        (folder / "training_log.jsonl").write_text("\n".join(lines) + end, encoding="utf-8")
        return folder

    return write


def read(folder):
    return read_log(folder / "training_log.jsonl")


def refusal(*arguments):
    with pytest.raises(UserError) as error:
        main([str(argument) for argument in arguments])
    return str(error.value)


def png_size(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[12:16] == b"IHDR"
    return struct.unpack(">II", content[16:24])


# The log


def test_three_kinds_of_lines_are_told_apart(run_folder):
    assert read(run_folder(SHORT)) == SHORT_LOG


def test_recall_may_be_missing(run_folder):
    log = read(run_folder([{"step": 250, "eval_loss": 1.9}]))
    assert log == {"loss": {}, "eval_loss": {250: 1.9}, "eval_aspect_recall": {}}


def test_a_step_logged_twice_counts_as_it_was_last_and_steps_ascend(run_folder):
    entries = [{"step": step, "loss": loss} for step, loss in ((1, 3.0), (2, 2.5), (3, 9.0), (2, 2.0))]
    assert list(read(run_folder(entries))["loss"].items()) == [(1, 3.0), (2, 2.0), (3, 9.0)]


@pytest.mark.parametrize("torn", ['{"st', '{"step": 5, "loss": 1.', '{"step": 5, "loss": 1.75', "5"])
def test_a_torn_last_line_is_dropped(run_folder, torn):
    assert read(run_folder([*SHORT, torn], end="")) == SHORT_LOG


def test_a_last_line_that_is_whole_counts_without_its_line_break(run_folder):
    log = read(run_folder([{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}], end=""))
    assert log["loss"] == {1: 3.0, 2: 2.0}


@pytest.mark.parametrize(
    "damaged",
    [
        '{"step": 5, "loss": 1.',
        "[1, 2]",
        '{"loss": 1.5}',
        '{"step": "5", "loss": 1.5}',
        '{"step": true, "loss": 1.5}',
        '{"step": 5, "loss": "1.5"}',
        '{"step": 5, "eval_loss": null}',
        '{"step": 5, "eval_loss": 1.5, "eval_aspect_recall": [0.5]}',
        "\0\0\0",
    ],
)
@pytest.mark.parametrize("place", [2, 7])  # the last place too: a line with its line break is not torn
def test_a_damaged_line_is_named(run_folder, tmp_path, damaged, place):
    folder = run_folder([*SHORT[:place], damaged, *SHORT[place:]])
    expected = f"{folder / 'training_log.jsonl'}: line {place + 1} is damaged; delete that line"
    assert refusal("--output_dir", folder) == expected
    assert not (folder / "training.png").exists()


# The running mean


def test_the_running_mean_is_over_twenty_and_stands_at_the_last_of_them():
    mean = running_mean({step: float(step) for step in range(1, 41)})
    assert list(mean) == list(range(20, 41))
    assert mean[20] == 10.5  # (1 + ... + 20) / 20 = 210 / 20
    assert mean[40] == 30.5  # (21 + ... + 40) / 20 = 610 / 20


def test_the_running_mean_counts_logged_steps():
    mean = running_mean({10 * number: float(number) for number in range(1, 41)})
    assert list(mean)[:2] == [200, 210]
    assert mean[200] == 10.5


def test_fewer_than_forty_have_no_running_mean():
    assert running_mean(dict.fromkeys(range(1, 40), 1.0)) == {}


# The figure


def lines_of(panel):
    return {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in panel.get_lines()}


def test_the_lines_are_the_log():
    losses, recall = make_figure(SHORT_LOG).axes
    assert lines_of(losses) == {
        "training": SHORT_LOG["loss"],
        "validation": SHORT_LOG["eval_loss"],
        "lowest validation: 2.500 at step 4": {4: 2.5},
    }
    assert list(lines_of(recall).values()) == [SHORT_LOG["eval_aspect_recall"]]
    assert recall.get_ylim() == (0, 1)
    assert losses.get_shared_x_axes().joined(losses, recall)


def test_a_long_run_has_its_running_mean():
    training = {step: 4.0 - step / 100 for step in range(1, 301)}
    (panel,) = make_figure({"loss": training, "eval_loss": {}, "eval_aspect_recall": {}}).axes
    lines = lines_of(panel)
    assert lines.keys() == {"training", "training, mean of the last 20 logged steps"}
    assert lines["training"] == training
    assert lines["training, mean of the last 20 logged steps"] == running_mean(training)


def test_the_axes_say_what_they_show():
    losses, recall = make_figure(SHORT_LOG).axes
    assert losses.get_ylabel() == "cross-entropy a target token (nats)"
    assert recall.get_ylabel() == "aspect recall (0 to 1)"
    assert (losses.get_xlabel(), recall.get_xlabel()) == ("", "training step")
    (alone,) = make_figure({**SHORT_LOG, "eval_aspect_recall": {}}).axes
    assert alone.get_xlabel() == "training step"


def test_the_lines_differ_without_their_colours():
    losses = dict.fromkeys(range(1, 41), 2.0)
    (panel,) = make_figure({"loss": losses, "eval_loss": {40: 2.0}, "eval_aspect_recall": {}}).axes
    looks = {(line.get_linestyle(), line.get_linewidth(), line.get_marker()) for line in panel.get_lines()[:3]}
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("losses", "label"),
    [
        ({10: 2.0, 20: 1.25, 30: 1.5}, "lowest validation: 1.250 at step 20"),
        ({10: 1.5, 20: 1.5}, "lowest validation: 1.500 at step 10"),
        ({10: math.nan, 20: 3.0, 30: math.inf}, "lowest validation: 3.000 at step 20"),
    ],
)
def test_the_lowest_validation_loss_is_marked(losses, label):
    (panel,) = make_figure({"loss": {}, "eval_loss": losses, "eval_aspect_recall": {}}).axes
    assert [line.get_label() for line in panel.get_lines()] == ["validation", label]
    assert label in [text.get_text() for text in panel.get_legend().get_texts()]


def test_a_diverged_validation_has_no_lowest_loss():
    (panel,) = make_figure({"loss": {}, "eval_loss": {10: math.nan}, "eval_aspect_recall": {}}).axes
    assert [line.get_label() for line in panel.get_lines()] == ["validation"]


# The script


def test_the_png_lies_in_the_folder_and_is_drawn_again(run_folder, capsys):
    folder = run_folder(SHORT)
    assert main(["--output_dir", str(folder)]) == 0
    assert png_size(folder / "training.png") == (1200, 960)  # 8 x (4 + 2.4) inches at 150 dots
    assert capsys.readouterr().out == f"{folder / 'training.png'}: 4 losses in training, 2 in validation\n"
    (folder / "training_log.jsonl").write_text('{"step": 1, "loss": 3.0}')
    assert main(["--output_dir", str(folder)]) == 0
    assert png_size(folder / "training.png") == (1200, 600)


def test_a_drawing_without_recall_has_one_panel_and_its_own_name(run_folder, tmp_path):
    folder, plot = run_folder([{"step": 1, "loss": 3.0}]), tmp_path / "figures" / "planner"
    main(["--output_dir", str(folder), "--plot_addr", str(plot)])
    assert png_size(plot) == (1200, 600)
    assert [path.name for path in folder.iterdir()] == ["training_log.jsonl"]


def test_there_is_no_folder(tmp_path):
    assert refusal("--output_dir", tmp_path / "gone") == f"--output_dir {tmp_path / 'gone'}: no such folder"
    (tmp_path / "file").write_text("x")
    assert refusal("--output_dir", tmp_path / "file") == f"--output_dir {tmp_path / 'file'}: not a folder"


def test_there_is_no_log(tmp_path):
    expected = f"{tmp_path / 'training_log.jsonl'}: no such file; give the folder of a training run"
    assert refusal("--output_dir", tmp_path) == expected


@pytest.mark.parametrize("entries", [[""], [{"step": 4, "train_runtime": 1.0}], ['{"step": 1, "lo']])
def test_there_is_nothing_to_draw_yet(run_folder, entries):
    folder = run_folder(entries, end="")
    assert "training_log.jsonl: holds no loss yet" in refusal("--output_dir", folder)
    assert not (folder / "training.png").exists()


def test_the_log_is_never_drawn_over(run_folder):
    folder = run_folder(SHORT)
    log = folder / "training_log.jsonl"
    assert (
        refusal("--output_dir", folder, "--plot_addr", log) == f"{log}: is an input too; give the output its own name"
    )
    assert read(folder) == SHORT_LOG


def test_of_a_generator_the_metric_stands_below(tmp_path, capsys, monkeypatch):
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "eval_score": 0.25}, {"step": 4, "eval_score": 0.5}]
    path = tmp_path / "training_log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = read_log(path)
    assert log["eval_score"] == {2: 0.25, 4: 0.5}
    _, metric = make_figure(log, "MAE").axes
    assert list(lines_of(metric).values()) == [{2: 0.25, 4: 0.5}] and metric.get_ylabel() == "MAE in validation"
    (tmp_path / "manifest.json").write_text('{"fingerprint": {"metric": "MAE"}}')
    drawn = []
    monkeypatch.setattr("utils.plot_training.make_figure", lambda *given: drawn.append(make_figure(*given)) or drawn[0])
    assert main(["--output_dir", str(tmp_path)]) == 0
    assert drawn[0].axes[1].get_ylabel() == "MAE in validation"
    assert capsys.readouterr().out.endswith("training.png: 1 loss in training, 2 scores in validation\n")
