"""--verdicts probability and --num_verdicts: requests, storage, resuming, refusals and comparisons."""

import json
import math
import re
from array import array

import pytest
from api_server import Reply
from test_strategies import judging, make_question  # noqa: F401
from tiny_chat import save_tiny_chat

import evaluate_responses
from utils import compare_evaluators, make_table, show_answers
from utils.base.errors import UserError
from utils.generation.requests import Scored
from utils.generation.scoring import split_shared

BEGIN = '{"match_score": '
CATEGORIES = ("rpg", "cooking", "law")  # of each of the three groups, so that there is an average
PAIRS = [{"aspect": name, "evidence": "e", "reason": "r"} for name in ("Rules", "Costs")]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("model") / "chat")


class Weighing:
    """An engine for which 2 is the likeliest of the three verdicts, and that dies after a number of requests."""

    concurrency, device = 1, "none"

    def __init__(self, dies_after=None, log_probs=(0.1, 0.2, 0.5)):
        self.asked, self.dies_after, self.log_probs = [], dies_after, log_probs

    async def score(self, model, prompt, continuations):
        if len(self.asked) == self.dies_after:
            raise KeyboardInterrupt
        self.asked.append((prompt, continuations))
        means = [math.log(one) / len(its) for one, its in zip(self.log_probs, continuations, strict=True)]
        return Scored(means, 40, 30)

    async def close(self):
        pass


@pytest.fixture
def weighing(judging, model_folder, monkeypatch):
    """Judge locally by probability, with two questions with two aspects and one with one."""
    numbered = enumerate(CATEGORIES, 1)
    questions = [make_question(i, category=name, rubric_aspects=PAIRS[: 2 - i // 3]) for i, name in numbered]
    judging.write("data.json", questions)
    judging.responses("a", q1="A1", q2="A2", q3="A3")
    judging.model = model_folder

    def run(engine, *more, to="scores.json", code=0):
        words = ["--evaluator_llm", model_folder, "--inputs_addr", judging.folder / "data.json", "--verdicts"]
        words += ["probability", "--response_addr", judging.folder / "a.json", "--score_addr", judging.folder / to]
        with monkeypatch.context() as patch:
            patch.setattr("utils.generation.engines.VLLMEngine", lambda *_: engine)
            assert evaluate_responses.main(list(map(str, [*words, *more]))) == code
        return json.loads((judging.folder / to).read_text()) if (judging.folder / to).exists() else None

    judging.weigh = run
    return judging


def refused(call, *arguments):
    with pytest.raises(UserError) as error:
        call(*arguments)
    return str(error.value)


# By likelihoods


def test_a_score_is_an_expectation_with_its_origin(weighing, capsys):
    engine = Weighing()
    found = weighing.weigh(engine)
    expected = (2 + 2 * 5) / 8  # of 0.1, 0.2 and 0.5, which sum to 0.8
    assert found["verdicts"] == "probability" and found["score"] == pytest.approx(expected / 2)
    [first, *_] = found["per_question_scores"]
    assert first["score"] == pytest.approx(expected / 2)
    for detail in first["details"]:
        assert detail["score"] == pytest.approx(expected)
        assert detail["probabilities"] == pytest.approx({"0": 1 / 8, "1": 2 / 8, "2": 5 / 8})
        assert detail["outside"] == pytest.approx(0.2) and "raw" not in detail
        assert detail["entropy"] == pytest.approx(found["mean_entropy"])
    assert found["mean_outside"] == pytest.approx(0.2)
    assert "mean entropy 1.30 bits, 20.0% outside the verdicts" in capsys.readouterr().out
    assert weighing.settings()["verdicts"] == "probability"
    words = ["--inputs_addr", weighing.folder / "data.json", "--response_addr", weighing.folder / "a.json"]
    show_answers.main(list(map(str, [*words, "--score_addr", weighing.folder / "scores.json"])))
    assert "    1.50           Rules" in capsys.readouterr().out


def test_a_prompt_ends_with_the_output_up_to_the_number(weighing):
    from transformers import AutoTokenizer

    tokenizer, engine = AutoTokenizer.from_pretrained(weighing.model), Weighing()
    weighing.weigh(engine)
    [(prompt, continuations), *_] = engine.asked
    for number, tokens in enumerate(continuations):
        said = tokenizer.decode(list(prompt) + list(tokens)).rpartition("<|im_start|>assistant\n")[2]
        assert said == f"{BEGIN}{number}" and len(tokens) >= 1
        assert list(prompt)[-3:] + list(tokens) == tokenizer.encode(f"{BEGIN}{number}")[-3 - len(tokens) :]
    assert len({tokens[0] for tokens in continuations}) == 3  # without their common prefix
    # As of GPT-2's tokenizer, where " 2" is one token and the object without it ends in a space.
    begin, options = split_shared({str(i): array("i", [7, 8, 20 + i]) for i in range(3)})
    assert (list(begin), [list(its) for its in options.values()]) == ([7, 8], [[20], [21], [22]])


def test_a_killed_run_resumes_and_shards_make_the_whole(weighing):
    with pytest.raises(KeyboardInterrupt):
        weighing.weigh(Weighing(dies_after=2))
    engine = Weighing()
    whole = weighing.weigh(engine)
    assert len(engine.asked) == 3
    shared = ["--completions", weighing.folder / "shards"]
    for index in range(2):
        assert weighing.weigh(Weighing(), *shared, "--num_shards", "2", "--shard_index", index, to="0.json") is None
    assert weighing.weigh(None, *shared, "--cached_only", to="0.json") == whole
    drawn = drawing(weighing, 3, to="drawn.json")
    for index in range(2):
        assert drawing(weighing, 3, *shared, "--num_shards", "2", "--shard_index", index, to="1.json") is None
    assert drawing(weighing, 3, *shared, "--cached_only", to="1.json") == drawn
    assert len(weighing.server.requests) == 2 * 15


def test_kinds_of_verdicts_do_not_share_a_table_and_are_named(three_kinds, weighing, capsys):
    for with_manifests in (True, False):
        for others, words in (("weighed", "aspect, probability"), ("drawn", "aspect, 3 verdicts")):
            systems = ["--system", "A", three_kinds["counted"], "--system", "B", three_kinds[others]]
            told = f"{three_kinds[others]}: judged differently from {three_kinds['counted']}\n"
            assert refused(make_table.main, systems).startswith(f"{told}  strategy '{words}', not 'aspect'")
        for path in weighing.folder.glob("*.manifest.json" if with_manifests else "nothing"):
            path.unlink()
    for kind, told in (("weighed", True), ("counted", False)):
        assert make_table.main(["--system", "A", three_kinds[kind], "--format", "markdown"]) == 0
        printed = capsys.readouterr().out
        assert ("Verdicts differ in kind from the paper's: aspect, probability." in printed) == told


def test_a_missing_answer_counts_0_and_damaged_likelihoods_are_no_verdict(weighing, capsys):
    weighing.responses("a", q1="A1", q2=None, q3="A3")
    found = weighing.weigh(Weighing(log_probs=(math.inf, 0.2, 0.5)), code=1)
    printed = capsys.readouterr().err
    assert ": 3 of 3 verdicts unusable\n  3 × the model returned no likelihood for an option, such as 'q1'\n" in printed
    assert [entry["score"] for entry in found["per_question_scores"]] == [None, 0, None]
    assert (found["num_unanswered"], found["num_unscored"], found["mean_entropy"]) == (1, 3, None)
    [detail, *_] = found["per_question_scores"][0]["details"]
    assert detail["reason"] == "the model returned no likelihood for an option"


# By several verdicts


def by_seed(request):
    """A judge with one unusable verdict in seven; the others depend only on the seed."""
    drawn = request["seed"] % 7
    return Reply("I can't say." if drawn == 6 else json.dumps({"match_score": drawn % 3}))


def drawing(judging, number, *more, to="scores.json"):
    judging.server.reply = by_seed
    flags = ["--num_verdicts", number, "--temperature", "0.7", "--max_retries", "0"]
    flags += ["--constrained_decoding", "never", *more]
    return judging.run(None, [judging.folder / "a.json"], *flags, to=to)


def test_a_score_is_the_mean_of_verdicts_with_their_spread(weighing, capsys):
    found = drawing(weighing, 8)
    assert len(weighing.server.requests) == 8 * 5
    assert len({(request["seed"], request["messages"][1]["content"]) for request in weighing.server.requests}) == 40
    details = [detail for entry in found["per_question_scores"] for detail in entry["details"]]
    for detail in details:
        known = [one for one in detail["drawn"] if one is not None]
        assert len(detail["drawn"]) == 8 and detail["score"] == pytest.approx(sum(known) / len(known))
        assert 0 <= detail["spread"] <= 2 and len(set(known)) > 1
    assert found["num_verdicts"] == 8 and found["num_unscored"] == 0
    assert found["num_missing_verdicts"] == sum(detail["drawn"].count(None) for detail in details) > 0
    assert -1 < found["krippendorff_alpha_interval"] < 0.5  # because only the random seed distinguishes them
    told = f"; means of 8 verdicts, self-agreement {found['krippendorff_alpha_interval']:.3f}, "
    assert f"{told}{found['num_missing_verdicts']} verdict" in capsys.readouterr().out


# Beside each other


@pytest.fixture
def three_kinds(weighing):
    """Score files of one system: written verdicts, probabilities, and means of three."""
    weighing.weigh(Weighing(), to="weighed.json")
    weighing.server.reply = by_seed
    weighing.run(None, [weighing.folder / "a.json"], to="counted.json")
    drawing(weighing, 3, to="drawn.json")
    return {name: str(weighing.folder / f"{name}.json") for name in ("counted", "weighed", "drawn")}


def test_they_are_compared_as_evaluators(three_kinds, weighing, capsys):
    weighing.responses("a", q1="B1", q2="B2", q3="B3")
    weighing.weigh(Weighing(log_probs=(0.5, 0.2, 0.1)), to="weighed_b.json")
    drawing(weighing, 3, to="drawn_b.json")
    files = {name: (three_kinds[name], str(weighing.folder / f"{name}_b.json")) for name in ("weighed", "drawn")}
    human = weighing.write("human.json", {"q1": "first", "q2": "first", "q3": "second"})
    words = [word for name, its in files.items() for word in ("--evaluator", name, *its)]
    assert compare_evaluators.main([*words, "--human_addr", str(human)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"\| weighed \| aspect, probability \| 3 \| 0 \| 0\.6667 ", told)
    assert re.search(r"\| drawn \| aspect, 3 verdicts \| 3 ", told)
    mixed = ["--evaluator", "A", files["weighed"][0], files["drawn"][1], "--human_addr", str(human)]
    told = "of strategy aspect, probability and aspect, 3 verdicts, expected one pairwise file"
    assert told in refused(compare_evaluators.main, mixed)


@pytest.mark.parametrize(
    ("strategy", "more", "message"),
    [
        ("aspect", ["--verdicts", "probability"], "--verdicts probability: APIs do not return the likelihood of a "),
        ("direct", ["--verdicts", "probability"], "--verdicts probability: LaMP-QA's direct has no verdicts per "),
        ("aspect", ["--num_verdicts", "3"], "--num_verdicts 3: a greedy judge always gives the same verdict; "),
    ],
)
def test_strategies_without_such_verdicts_are_refused(weighing, strategy, more, message):
    assert refused(weighing.run, strategy, [weighing.folder / "a.json"], *more).startswith(message)
    assert weighing.server.requests == [] and not (weighing.folder / "scores.json").exists()
