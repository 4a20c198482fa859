"""The ranker of responses: its arithmetic by hand, what it learns from made-up states, kills, and what is refused."""

import json
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from scipy.special import erf
from test_select_responses import scored

from utils import make_figures, make_table, select_responses, train_ranker
from utils.base.errors import UserError
from utils.base.made import Made
from utils.base.manifest import describe_run, file_hash, publish, read_manifest
from utils.data.states import States, read_pools
from utils.training.ranker import inputs_of, loss_of, make_network, standardized

SIZE, SAMPLES = 8, 6


# By hand


def gelu(z):
    """Return x Φ(x) and its derivative Φ(x) + x φ(x)."""
    phi = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z * (1 + erf(z / np.sqrt(2))) / 2, (1 + erf(z / np.sqrt(2))) / 2 + z * phi


def test_loss_and_gradient_are_those_of_numpy():
    """Without dropout, by backpropagation through three layers."""
    torch.manual_seed(3)
    network = make_network(4).double().eval()
    drawn = np.random.default_rng(0)
    x, y = drawn.standard_normal((5, 4)), drawn.standard_normal(5)
    w1, b1, w2, b2, w3, b3 = (weights.detach().numpy() for weights in network.parameters())
    h1, d1 = gelu(x @ w1.T + b1)
    h2, d2 = gelu(h1 @ w2.T + b2)
    error = (h2 @ w3.T + b3)[:, 0] - y
    g3 = (2 / 5 * error)[:, None]
    g2 = g3 @ w3 * d2
    g1 = g2 @ w2 * d1
    expected = [g1.T @ x, g1.sum(0), g2.T @ h1, g2.sum(0), g3.T @ h2, g3.sum(0)]
    loss = loss_of(network, torch.from_numpy(x), torch.from_numpy(y))
    loss.backward()
    assert loss.item() == pytest.approx(np.mean(error**2), rel=1e-12)
    for weights, gradient in zip(network.parameters(), expected, strict=True):
        np.testing.assert_allclose(weights.grad.numpy(), gradient, atol=1e-12)


def test_targets_are_standardized_within_a_question():
    scores = [0.2, 0.8, 0.8, 0.4]
    expected = (np.array(scores) - np.mean(scores)) / np.std(scores, ddof=1)
    np.testing.assert_allclose(standardized(scores), expected, rtol=1e-12)
    assert standardized([0.5, 0.5, 0.5]) == [0.5, 0.5, 0.5] and standardized([0.3]) == [0.3]


def test_it_has_the_papers_number_of_parameters():
    assert round(sum(weights.numel() for weights in make_network(3 * 3584).parameters()), -4) == 2_820_000
    dropped = [layer.p for layer in make_network(2) if isinstance(layer, torch.nn.Dropout)]
    assert dropped == [0.1, 0.1]


def test_its_inputs_are_the_states_of_question_posts_and_response():
    arrays = {kind: np.arange(start, start + 2 * rows, dtype="<f2").reshape(rows, 2)
              for kind, start, rows in (("x", 0, 2), ("u", 10, 2), ("y", 20, 3))}  # fmt: skip
    states = States("", {}, [("a", "1", 0, 1), ("b", "2", 1, 3)], arrays)
    pools = [(1, [2], [0.0]), (0, [0], [0.0])]
    assert inputs_of(states, pools, "xuy").tolist() == [[2, 3, 12, 13, 24, 25], [0, 1, 10, 11, 20, 21]]
    assert inputs_of(states, pools, "xy").tolist() == [[2, 3, 24, 25], [0, 1, 20, 21]]
    assert inputs_of(states, pools, "y").tolist() == [[24, 25], [20, 21]]


# Made-up states


class World:
    """Response files with scores and states in which the best answer can be seen, in a folder.

    An answer's state is along one direction, by its quality; a profile's state says whether its user likes that
    direction or its opposite. The score is a multiple of 0.1, as of five aspects.
    """

    def __init__(self, folder):
        self.folder, self.drawn = folder, np.random.default_rng(0)

    def path(self, name):
        return self.folder / name

    def make(self, name, number, first=0, model="m@1", shuffled=False, missing=False):
        """Write NAME.json, NAME_scores.json and NAME.safetensors with this number of questions."""
        ids = [f"q{place}" for place in range(first, first + number)]
        likes = self.drawn.choice([-1.0, 1.0], number)
        quality = self.drawn.uniform(-1, 1, (number, SAMPLES))
        scores = np.round(5 + 5 * likes[:, None] * quality) / 10
        question, profile = self.drawn.normal(size=(2, number, SIZE))
        response = self.drawn.normal(size=(number, SAMPLES, SIZE)) * 0.3
        profile[:, 0], response[:, :, 0] = 2 * likes, 2 * quality
        table = (self.drawn.permutation(scores.ravel()).reshape(scores.shape) if shuffled else scores).tolist()
        answers = {key: [{"output": f"{key} {n}", "question_hash": f"hash of {key}"} for n in range(SAMPLES)]
                   for key in ids}  # fmt: skip
        if missing:
            answers[ids[0]][2]["output"], table[0][2] = None, "-"
        responses, score_addr = self.path(f"{name}.json"), self.path(f"{name}_scores.json")
        publish(responses, answers, {"settings": {"model": model}})
        entries = [scored(key, row) for key, row in zip(ids, table, strict=True)]
        content = {"score": 0.5, "num_unanswered": 0, "per_question_scores": entries}
        settings = {"judge": "J@1", "responses": file_hash(responses)}
        publish(score_addr, content, {"settings": settings, "arguments": {"evaluator_llm": "J"}})
        settings = {"script": "utils/embed_responses.py", "model": model, "dtype": "auto", "normalize": False}
        settings |= {"inputs": "0", "responses": file_hash(responses)}
        arrays = {"x": question, "u": profile, "y": response.reshape(-1, SIZE)}
        questions = [(key, f"hash of {key}", SAMPLES * place, SAMPLES * (place + 1)) for place, key in enumerate(ids)]
        made = Made(self.path(f"{name}.safetensors"), settings, overwrite=True)
        with made.writing(describe_run({}, {}, None)) as (staged, _):
            halves = {kind: array.astype("<f2") for kind, array in arrays.items()}
            staged.write_bytes(save(halves, {"questions": json.dumps(questions)}))
        return scores

    def files(self, name):
        return [self.path(f"{name}.json"), self.path(f"{name}_scores.json"), self.path(f"{name}.safetensors")]

    def training(self, name, *more, output="ranker"):
        flags = zip(("--response_addr", "--score_addr", "--states_addr"), self.files(name), strict=True)
        words = [word for flag in flags for word in flag]
        return list(map(str, [*words, "--output_dir", self.path(output), *more]))

    def train(self, name, *more, output="ranker"):
        assert train_ranker.main(self.training(name, *more, output=output)) == 0
        return self.path(output) / "ranker.safetensors"

    def selection(self, name, ranker="ranker", output="best.json"):
        responses, _, states = self.files(name)
        words = ["--ranker", self.path(ranker), states, "--response_addr", responses]
        return list(map(str, [*words, "--output_addr", self.path(output)]))

    def select(self, name, ranker="ranker"):
        """Return the number of the sample that is selected for each question."""
        assert select_responses.main(self.selection(name, ranker)) == 0
        return {key: answer["sample"] for key, [answer] in json.loads(self.path("best.json").read_text()).items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"))
    world.scores = {"train": world.make("train", 600), "test": world.make("test", 150, first=600)}
    world.make("shuffled", 600, shuffled=True)
    world.train("train")
    world.train("shuffled", output="shuffled_ranker")
    world.train("train", "--inputs", "y", output="blind")
    return world


@pytest.fixture
def world(made, tmp_path):
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    copied = World(tmp_path)
    copied.scores = made.scores
    return copied


def headroom(scores, selected):
    chosen = scores[range(len(scores)), list(selected.values())]
    return (chosen.mean() - scores.mean()) / (scores.max(axis=1).mean() - scores.mean())


def test_it_finds_the_best_answers_to_other_questions(world):
    """Unless the scores that it learned from were shuffled, or it did not see who likes what."""
    scores = world.scores["test"]
    selected = world.select("test")
    assert len(selected) == 150 and headroom(scores, selected) > 0.85
    assert abs(headroom(scores, world.select("test", "shuffled_ranker"))) < 0.3
    assert abs(headroom(scores, world.select("test", "blind"))) < 0.3


def test_the_figure_has_its_share_of_the_headroom(world, capsys):
    scores = world.scores["test"]
    responses, score_addr, states = map(str, world.files("test"))
    words = ["--figure", "best_of_n", "--response_addr", responses, "--score_addr", score_addr]
    words += ["--system", "R", str(world.path("ranker")), states, "--output_addr", str(world.path("figure"))]
    assert make_figures.main(words) == 0
    printed = capsys.readouterr().err
    # N = 4 of 6 samples is an expectation over choices, which tests/tables/test_best_of_n.py enumerates.
    means = re.search(r"best of N is 1: ([\d.]+), 2: ([\d.]+), 4: ([\d.]+)", printed)
    means = list(map(float, means.groups()))
    assert means[0] == pytest.approx(scores.mean(), abs=1e-4) and means[0] < means[1] < means[2]
    assert re.search(r"R: its share of the headroom, .*, is 2: [89]\d\.\d%, 4: [89]\d\.\d%", printed)
    with pytest.raises(UserError, match="needs for best_of_n one file of scores, or a ranker and its states"):
        make_figures.main([*words, "--system", "B", "1", "2", "3"])


def test_what_it_selects_is_marked_and_no_bound(world, capsys):
    world.select("test")
    best, made = world.path("best.json"), read_manifest(world.path("best.json"))
    assert made["settings"]["saw"] == {"when": "training", "fields": ["narrative", "rubric_aspects"]}
    assert made["settings"]["rewarded_by"] == ["J@1"] and made["settings"]["model"] == "m@1"
    answers = json.loads(best.read_text())
    entries = [scored(key, [0.4]) for key in answers]
    origin = {"prompt": {}, **{name: made["settings"][name] for name in ("selected_by", "saw", "rewarded_by")}}
    manifest = {"settings": {"judge": "J@1", "responses": file_hash(best)}, "answers": [origin]}
    publish(world.path("judged.json"), {"score": 0.4, "num_unanswered": 0, "per_question_scores": entries}, manifest)
    capsys.readouterr()
    assert make_table.main(["--system", "Best", str(world.path("judged.json"))]) == 0
    table = capsys.readouterr().out
    assert "| Best (best by ranker) |" in table and "bound" not in table
    assert "saw narrative, rubric_aspects in training" in table
    assert "trained or chosen by scores of the same judge that scores it here" in table
    assert "each response is the best of 6 by a ranker that learned from scores (aspect)" in table


def test_a_missing_answer_is_neither_learnt_nor_selected(world):
    world.make("holes", 2, first=2000, missing=True)
    pools, _ = read_pools(*map(str, world.files("holes")))
    assert [pool[:2] for pool in pools] == [(0, [0, 1, 3, 4, 5]), (1, [6, 7, 8, 9, 10, 11])]
    selected = world.select("holes")
    assert len(selected) == 2 and selected["q2000"] != 2
    assert read_manifest(world.path("best.json"))["counts"]["samples without a score"] == 1


def test_validation_picks_the_first_of_the_best_epochs(world):
    world.make("validation", 40, first=900)
    path = world.train("train", "--validation_addr", *world.files("validation"), output="chosen")
    figures = read_manifest(path)
    assert len(figures["selected"]) == len(figures["losses"]) == 15
    assert figures["epoch"] == 1 + int(np.argmax(figures["selected"]))
    world.select("validation", "ranker")  # which has not seen these questions
    with pytest.raises(
        UserError, match=r"validation\.safetensors: .*chosen was trained or chosen on 40 of this file's 40"
    ):
        world.select("validation", "chosen")
    # Validation changes no step, only which one is kept.
    last = read_manifest(world.path("ranker") / "ranker.safetensors")
    assert (last["epoch"], last["losses"]) == (15, figures["losses"]) and "selected" not in last


# Again, and killed

AFTER = """
import utils.training.ranker as ranker
whole, calls = ranker.{name}, []
def counted(*arguments):
    calls.append(1)
    if len(calls) == {number}:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*arguments)
ranker.{name} = counted
"""


def test_a_killed_training_starts_over_to_the_same_bytes(warm, world):
    flags = world.training("train", output="killed")
    run = warm.run("utils/train_ranker.py", flags, do=AFTER.format(name="loss_of", number=70))
    assert run.returncode == -signal.SIGKILL and not (world.path("killed") / "ranker.safetensors").exists()
    assert warm.run("utils/train_ranker.py", flags).returncode == 0
    [expected, again] = [(world.path(name) / "ranker.safetensors").read_bytes() for name in ("ranker", "killed")]
    assert again == expected
    done = warm.run("utils/train_ranker.py", flags)
    assert done.returncode == 0 and "already finished; skipped" in done.printed
    names = ["ranker.safetensors", "ranker.safetensors.manifest.json"]
    assert sorted(path.name for path in world.path("killed").iterdir()) == names


def test_a_killed_selection_leaves_nothing_and_is_repeated(warm, world):
    world.select("test")
    expected = world.path("best.json").read_bytes()
    flags = world.selection("test", output="again.json")
    run = warm.run("utils/select_responses.py", flags, do=AFTER.format(name="predict", number=70))
    assert run.returncode == -signal.SIGKILL and not world.path("again.json").exists()
    assert warm.run("utils/select_responses.py", flags).returncode == 0
    assert world.path("again.json").read_bytes() == expected


# Refused


def test_states_of_another_model_or_of_other_responses_are_refused(world):
    world.make("other", 3, first=3000, model="n@2")
    with pytest.raises(
        UserError, match=r"other\.safetensors: not made like the states on which .*ranker was trained: m"
    ):
        world.select("other")
    with pytest.raises(UserError, match=r"not made like the states on which the ranker was trained: model: .m@1."):
        world.train("train", "--validation_addr", *world.files("other"), output="x")
    shutil.copy(world.path("train.json"), world.path("test.json"))
    with pytest.raises(UserError, match=r"test\.safetensors: not made from the current .*test\.json, according"):
        world.select("test")
    with pytest.raises(UserError, match=r"train_scores\.json: not made from the current .*train\.json"):
        world.train(
            "train", "--validation_addr", *world.files("train")[:2], world.path("train_scores.json"), output="x"
        )
    world.path("other.safetensors").write_bytes(b"?")
    with pytest.raises(UserError, match=r"other\.safetensors: not made from the current .*other\.json"):
        world.select("other")
    assert not world.path("best.json").exists() and not world.path("x").exists()


def test_questions_of_the_training_are_refused(world):
    with pytest.raises(
        UserError, match=r"train\.safetensors: .*ranker was trained or chosen on 600 of this file's 600"
    ):
        world.select("train")
    with pytest.raises(
        UserError, match=r"train\.safetensors: the ranker was trained or chosen on 600 of this file's 600"
    ):
        world.train("train", "--validation_addr", *world.files("train"), output="x")
    assert not world.path("best.json").exists() and not world.path("x").exists()


def test_a_missing_ranker_or_one_of_other_settings_is_refused(world):
    with pytest.raises(UserError, match=r"x: has no ranker\.safetensors, or it was changed since; use a folder of"):
        world.select("test", "x")
    with pytest.raises(UserError, match=r'ranker\.safetensors: was made with other settings: vectors: "xuy", now "y"'):
        world.train("train", "--inputs", "y")


def test_single_answers_are_not_enough_to_learn_from(world):
    world.make("few", 2, first=4000)
    score_addr = world.path("few_scores.json")
    content, made = json.loads(score_addr.read_text()), read_manifest(score_addr)
    for entry in content["per_question_scores"]:
        entry["samples"][1:] = [None] * (SAMPLES - 1)
    publish(score_addr, content, made)
    with pytest.raises(UserError, match=r"few\.json: no question has two answers with a score\n  sample several"):
        world.train("few", output="x")
