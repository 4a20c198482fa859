"""select_responses.py: which response is best and worst, what is dropped and counted, and where that is reported."""

import json
import shutil

import pytest
from api_server import Reply
from lamp_samples import read_sample
from test_strategies import judging  # noqa: F401

import evaluate_responses
from utils.base.errors import UserError
from utils.base.manifest import file_hash, publish, read_manifest
from utils.select_responses import main

# By question the four samples' scores; None has no score, and "-" no answer, which scores 0.
SCORES = {
    "q1": [0.2, 0.8, 0.8, 0.4],
    "q2": [0.5, 0.5, 0.5, 0.5],
    "q3": [None, 0.6, 0.4, 0.6],
    "q4": ["-", 0.3, 0.7, "-"],
    "q5": [None, None, None, None],
    "q6": ["-", "-", "-", "-"],
    "q7": [0.1, 0.3],
    "q8": [1.0, 0.9, 0.9, 1.0],
}
BEST = {"q1": (1, 0.8), "q3": (1, 0.6), "q4": (2, 0.7), "q7": (1, 0.3), "q8": (0, 1.0)}
WORST = {"q1": (0, 0.2), "q3": (2, 0.4), "q4": (1, 0.3), "q7": (0, 0.1), "q8": (1, 0.9)}
COUNTS = {
    "questions": 8,
    "kept": 5,
    "dropped, all scores equal": 1,  # q2
    "dropped, no scored answer": 2,  # q5, q6
    "questions with fewer samples": 1,  # q7
    "samples without a score": 5,  # 1 of q3, 4 of q5
    "samples without an answer": 6,  # 2 of q4, 4 of q6
    "ties for the best": 3,  # q1, q3, q8
    "ties for the worst": 1,  # q8
}


class Samples:
    """Sampled responses in a folder, and the command run on them."""

    def __init__(self, folder, scores):
        self.folder, self.table = folder, scores
        outputs = {
            key: [{"output": None if one == "-" else f"{key} {i}", "raw": "r"} for i, one in enumerate(row)]
            for key, row in scores.items()
        }
        self.write("all.json", outputs)

    def write(self, name, content):
        (self.folder / name).write_text(json.dumps(content))

    def read(self, name):
        return json.loads((self.folder / name).read_text())

    def run(self, *words):
        return main(["--response_addr", str(self.folder / "all.json"), *map(str, words)])

    @property
    def score_addr(self):
        return self.folder / "all_scores.json"

    def judge(self):
        """A score file as evaluate_responses.py --samples all writes it."""
        entries = [scored(key, row) for key, row in self.table.items()]
        content = {"score": 0.5, "num_unanswered": 0, "per_question_scores": entries}
        settings = {"judge": "Café@1", "responses": file_hash(self.folder / "all.json")}
        publish(self.score_addr, content, {"settings": settings, "arguments": {"evaluator_llm": "Café"}})

    def select(self, *words, worst=True):
        """The selection by the samples' scores."""
        words += ("--worst_addr", self.folder / "worst.json") if worst else ()
        assert self.run("--score_addr", self.score_addr, "--output_addr", self.folder / "best.json", *words) == 0
        return self.read("best.json")

    def counts(self):
        return read_manifest(self.folder / "best.json")["counts"]


def scored(key, row):
    """An entry of a score file with five aspects; its samples have these scores."""
    first = row[0]
    points = None if first is None else 0 if first == "-" else round(first * 10)
    verdicts = [None] * 5 if points is None else [min(2, max(0, points - 2 * i)) for i in range(5)]
    details = [{"aspect": f"a{i}", "score": one} for i, one in enumerate(verdicts)]
    its = {"id": key, "category": "cooking", "question_sha256": "0", "answered": first != "-"}
    samples = [0.0 if one == "-" else one for one in row]
    unanswered = {"unanswered_samples": row.count("-")} if "-" in row else {}
    return {**its, "score": samples[0], "details": details, "samples": samples, **unanswered}


def chosen(selection):
    return {key: (one["sample"], one["score"]) for key, [one] in selection.items()}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A folder with samples and their scores; every test has a copy."""
    made = Samples(tmp_path_factory.mktemp("judged"), SCORES)
    made.judge()
    return made.folder


@pytest.fixture
def samples(tmp_path, judged):
    shutil.copytree(judged, tmp_path, dirs_exist_ok=True)
    return Samples(tmp_path, SCORES)


def test_best_and_worst_by_hand(samples, capsys):
    best = samples.select()
    assert chosen(best) == BEST and chosen(samples.read("worst.json")) == WORST
    assert best["q4"] == [{"output": "q4 2", "raw": "r", "sample": 2, "score": 0.7}]
    manifest = read_manifest(samples.folder / "best.json")
    assert manifest["counts"] == COUNTS == read_manifest(samples.folder / "worst.json")["counts"]
    by = {
        "which": "best",
        "samples": 4,
        "judge": "Café",
        "identity": "Café@1",
        "judges": ["Café@1"],
        "strategy": "aspect",
    }
    by |= {"saw": ["narrative", "rubric_aspects"], "unscored": 5}
    assert manifest["settings"]["selected_by"] == by
    printed = capsys.readouterr().out
    assert "best.json: 5 of 8 questions; each response is the best of 4 by the scores of Café" in printed
    best = samples.select("--overwrite", worst=False)
    assert chosen(best) == BEST | {"q2": (0, 0.5), "q5": (0, None), "q6": (0, 0.0)}
    own = {"kept": 8, "ties for the best": 4, "ties for the worst": 0}
    own |= {"without a scored answer, the first one kept": 2}
    assert samples.counts() == {key: its for key, its in COUNTS.items() if "dropped" not in key} | own


SPOILT = {  # by what is spoilt, or a flag, what is said
    "other responses": r"all_scores\.json: not the scores of .*all\.json, according to the manifest beside it",
    "no manifest": r"all_scores\.json: has no manifest beside it that names the responses; judge them again$",
    "only the first": r"all_scores\.json: id 'q1': has 1 of 4 samples' scores\n  judge the responses with",
    "other samples": r"all_scores\.json: question 'q1': field 'samples' does not begin with the score 0\.2$",
    "texts": r"all_scores\.json: question 'q1': field 'samples' is not a list of scores, or null for a missing one$",
    "one response": r"all\.json: has no more than one response to any question\n  sample several",
    "--min_score 1.01": r"all\.json: no question is left\n  .*dropped, below --min_score: 6",
    "--worst_addr all.json": r"all\.json: is also an input; choose another output path$",
}
SPOILT_SAMPLES = {"only the first": None, "other samples": [0.3, 0.8, 0.8, 0.4], "texts": [0.2, "0.8", 0.8, 0.4]}


@pytest.mark.parametrize("how", SPOILT)
def test_what_cannot_be_selected_from_is_refused(samples, how):
    manifest = samples.folder / "all_scores.json.manifest.json"
    if how == "other responses":
        samples.write("all.json", {key: its[::-1] for key, its in samples.read("all.json").items()})
    elif how == "no manifest":
        manifest.unlink()
    elif how in SPOILT_SAMPLES:
        content = samples.read("all_scores.json")
        content["per_question_scores"][0]["samples"] = SPOILT_SAMPLES[how]
        if SPOILT_SAMPLES[how] is None:
            del content["per_question_scores"][0]["samples"]
        publish(samples.score_addr, content, json.loads(manifest.read_text()))
    elif how == "one response":
        samples.write("all.json", {"q1": [{"output": "A"}]})
    flags = [samples.folder / one if one.endswith(".json") else one for one in how.split() if how.startswith("--")]
    with pytest.raises(UserError, match=SPOILT[how]):
        samples.select(*flags, worst=False)
    assert not (samples.folder / "best.json").exists() and not (samples.folder / "worst.json").exists()


def test_a_threshold_drops_questions_and_counts_them(samples):
    assert list(samples.select("--min_score", 0.75)) == ["q1", "q8"]
    assert samples.counts()["dropped, below --min_score"] == 3


def test_every_question_of_a_test_set_can_be_judged(judging, tmp_path):
    """Also those that no sample answers, which score 0, or whose answers the judge gives no verdict on."""
    made = Samples(tmp_path, {"q1": [0.5, 0.7], "q2": ["-", "-"], "q3": ["-", None]})
    made.judge()
    assert chosen(made.select(worst=False)) == {"q1": (1, 0.7), "q2": (0, 0.0), "q3": (1, None)}
    judging.data(1, 2, 3)
    judging.server.reply = lambda request: Reply("no verdict" if "q3 1" in str(request) else '{"match_score": 2}')
    entries = judging.run(None, [tmp_path / "best.json"], code=1)["per_question_scores"]
    assert [one["score"] for one in entries] == [1.0, 0.0, None]


def test_of_errors_the_lowest_is_best(tmp_path, capsys):
    records = read_sample("LaMP-3", "dev")[:2]
    (tmp_path / "data.json").write_text(json.dumps(records))
    made = Samples(tmp_path, {})
    ratings = [[1, 3, 2], [5, 4, 5]]
    outputs = {r["id"]: [{"output": str(i)} for i in its] for r, its in zip(records, ratings, strict=True)}
    made.write("all.json", outputs)
    targets = [float(record["target"]) for record in records]
    words = ["--inputs_addr", tmp_path / "data.json", "--strategy", "MAE", "--samples", "all"]
    words += ["--response_addr", tmp_path / "all.json", "--score_addr", made.score_addr]
    assert evaluate_responses.main(list(map(str, words))) == 0
    with pytest.raises(UserError, match="--min_score: MAE is an error, so lower is better; remove the flag"):
        made.select("--min_score", 1)
    best, worst = made.select(), made.read("worst.json")
    for record, its, target in zip(records, ratings, targets, strict=True):
        errors = [abs(rating - target) for rating in its]
        assert chosen(best)[record["id"]] == (errors.index(min(errors)), min(errors))
        assert chosen(worst)[record["id"]] == (errors.index(max(errors)), max(errors))
    assert "by the scores of MAE, which saw target" in capsys.readouterr().out
