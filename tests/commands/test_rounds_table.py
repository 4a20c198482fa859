"""rounds_table.py: a row per round of a training, from its samples, their scores, and its policy."""

import json

import pytest

from utils import combine_scores, rounds_table
from utils.base.errors import UserError
from utils.base.manifest import describe_run, file_hash, publish, write_folder_manifest


@pytest.fixture
def round_of(tmp_path):
    """Write a round with two samples per question, {id: [(text, score), ...]}; return the words of --round_files."""

    def write(name, samples, validation, notes):
        folder = tmp_path / name
        (folder / "policy").mkdir(parents=True)
        content = {key: [{"output": text} for text, _ in answers] for key, answers in samples.items()}
        (folder / "samples.json").write_text(json.dumps(content))
        settings = {"responses": file_hash(folder / "samples.json")}
        scored = {key: [score for _, score in answers] for key, answers in samples.items()}
        publish(folder / "scores.json", scores_of(scored), describe_run({}, settings, None))
        publish(
            folder / "validation.json",
            scores_of({key: [score] for key, score in validation.items()}),
            describe_run({}, {}, None),
        )
        if notes is not None:
            write_folder_manifest(folder / "policy", {"settings": {}, "notes": notes})
        return [folder / "samples.json", folder / "scores.json", folder / "policy", folder / "validation.json"]

    return write


def scores_of(scores):
    entries = [
        {"id": key, "group": None, "subgroup": None, "question_sha256": key, "answered": True,
         "score": samples[0], "details": [{"score": samples[0]}], "samples": samples}
        for key, samples in scores.items()
    ]  # fmt: skip
    return {"task": "LaMP-QA", "strategy": "direct", "num_unanswered": 0, "per_question_scores": entries}


def test_a_row_per_round(round_of, tmp_path, capsys):
    """The mean is over the samples with a score; validation is compared on the questions that all rounds score."""
    first = {"a": [("one two", 1.0), ("one", 0.5)], "b": [(None, 0.0), ("one two three", None)]}
    second = {"c": [("one", 1.0), ("two", 1.0)]}
    rounds = [round_of("1", first, {"v": 0.5, "w": 1.0}, ["skipped: 1 question whose samples have equal scores"]),
              round_of("2", second, {"v": 0.75, "w": None}, None)]  # fmt: skip
    output = tmp_path / "rounds.md"
    words = [word for paths in rounds for word in ("--round_files", *paths)]
    assert rounds_table.main(list(map(str, ["--output_addr", output, *words]))) == 0
    text = output.read_text()
    assert capsys.readouterr().out.endswith(text)
    assert text.splitlines()[2:] == [
        "| 1 | 2 | 4 | 0.5000 | 2.0 | 1 | 0.5000 |", "| 2 | 1 | 2 | 1.0000 | 1.0 | 0 | 0.7500 |", "",
        "- Validation: 1 of 2 questions with a score in every file.",
        "- Round 1: skipped: 1 question whose samples have equal scores.",
        "- Round 2: unknown whether anything was skipped.",
    ]  # fmt: skip
    # Rewards, with an answer per word as a penalty.
    samples, scores, policy, validation = rounds[0]
    rewards = samples.with_name("rewards.json")
    words = ["--response_addr", samples, "--score_addr", scores, "--output_addr", rewards, "--length_weight", -0.1]
    assert combine_scores.main(list(map(str, words))) == 0
    words = ["--output_addr", tmp_path / "rewards.md", "--round_files", samples, rewards, policy, validation]
    assert rounds_table.main(list(map(str, words))) == 0
    of_samples = json.loads(rewards.read_text())["rewards"].values()
    known = [reward for of_question in of_samples for reward in of_question if reward is not None]
    assert f"| 1 | 2 | 4 | {sum(known) / 3:.4f} | 2.0 | 1 |" in (tmp_path / "rewards.md").read_text()


def test_scores_of_other_samples_are_refused(round_of, tmp_path):
    rounds = [round_of(name, {"a": [(name, 1.0), ("y", 0.5)]}, {"v": 0.5}, []) for name in ("1", "2")]
    words = ["--output_addr", tmp_path / "rounds.md", "--round_files"]
    for paths, message in (
        ([rounds[0][0], *rounds[1][1:]], "not the scores of"),
        ([*rounds[0], "--round_files", *rounds[0]], "two rounds have the same validation scores"),
    ):
        with pytest.raises(UserError, match=message):
            rounds_table.main(list(map(str, [*words, *paths])))
