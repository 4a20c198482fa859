"""merge_shards.py on what the real scripts wrote, against a server on loopback."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from api_server import serve

import baselines
import evaluate_responses
import planpers
from retrieval import rank_dataset
from utils import merge_shards
from utils.cli import UserError
from utils.files.journal import Journal
from utils.files.journal_lines import read_journal
from utils.files.manifest import file_hash, read_manifest
from utils.records.datasets import shard_of

ROOT = Path(__file__).resolve().parents[2]
IDS = ["q1", "q2", "日本-’\u2028", "42", "q4", "q6", "q9"]
WITHOUT_ASPECTS = ("q2", "q6")
PLANS = ".plans.json"
# What can be merged: the script, and which of its files.
KINDS = {"answers": ("baselines", ""), "answers by plan": ("planpers", ""), "plans": ("planpers", PLANS)}
KINDS["scores"] = ("evaluate_responses", "")
WITHOUT_SCORES = [kind for kind in KINDS if kind != "scores"]
MAIN = {"baselines": baselines.main, "planpers": planpers.main, "evaluate_responses": evaluate_responses.main}


def make_question(question_id):
    titles = [] if question_id in WITHOUT_ASPECTS else [f"Cost of {question_id}", "Safety — 猫"]
    return {
        "id": 42 if question_id == "42" else question_id,  # a number is taken as its digits
        "question": f"What about {question_id}?",
        "narrative": f"The narrative of {question_id}.",
        "category": "law",
        "rubric_aspects": [{"aspect": title, "evidence": "e", "reason": "r"} for title in titles],
        "profile": [{"id": f"p{question_id}", "text": f"A post of the asker of {question_id}."}],
    }


def write_dataset(path, ids):
    path.write_text(json.dumps([make_question(question_id) for question_id in ids], ensure_ascii=False))
    return path


class Made:
    """Outputs of the scripts, each made once; a test works on copies."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.data = write_dataset(folder / "data.json", IDS)
        responses = {question_id: [{"output": f"Response to {question_id}."}] for question_id in IDS}
        responses["q9"] = [{"output": None, "truncated": True}]
        responses[IDS[0]][0]["truncated"] = responses[IDS[1]][0]["truncated"] = True
        (folder / "responses.json").write_text(json.dumps(responses))
        (folder / "key.txt").write_text("sk-test")

    def run(self, script, output, *flags, data=None):
        """Run a script in this process."""
        arguments = ["--openai", "--base_url", self.server.url, "--api_key_addr", self.folder / "key.txt"]
        arguments += ["--inputs_addr", data or self.data]
        if script == "evaluate_responses":
            arguments += ["--evaluator_llm", "judge", "--score_addr", output]
            arguments += ["--response_addr", self.folder / "responses.json"]
        else:
            arguments += ["--model_addr", "some-model", "--output_addr", output]
        if script == "planpers":
            arguments += ["--gold_plan", "--unranked"]
        # 1: of the few questions of a shard at least half may be among those that get no usable output.
        assert MAIN[script]([str(argument) for argument in [*arguments, *flags]]) in (0, 1)

    def output(self, kind, *flags):
        """The file of one run."""
        script, suffix = KINDS[kind]
        output = self.folder / f"{script} {' '.join(map(str, flags))}.json"
        if not output.exists():
            self.run(script, output, *flags)
        return Path(f"{output}{suffix}")

    def shard(self, kind, num_shards, index, *flags):
        return self.output(kind, "--num_shards", num_shards, "--shard_index", index, *flags)

    def shards(self, kind, num_shards, *flags):
        return [self.shard(kind, num_shards, index, *flags) for index in range(num_shards)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with serve() as server:
        yield Made(tmp_path_factory.mktemp("made"), server)


@pytest.fixture
def merged(tmp_path):
    return tmp_path / "merged.json"


@pytest.fixture
def merge(made, merged):
    """Merge files in this process into `merged`, by default."""

    def merge(*shards, output=merged, data=made.data, flags=()):
        arguments = ["--inputs_addr", data, "--shard_addr", *shards, "--output_addr", output, *flags]
        assert merge_shards.main([str(argument) for argument in arguments]) == 0

    return merge


@pytest.fixture
def refusal(merge, tmp_path):
    """What the user is told by a merge that is refused and changes nothing."""

    def refusal(*shards, **more):
        before = listing(tmp_path)
        try:
            merge(*shards, **more)
        except UserError as error:
            message = str(error)
        else:
            pytest.fail("no UserError")
        assert 1 <= len(message.splitlines()) <= 3
        assert listing(tmp_path) == before
        return message

    return refusal


def listing(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def journal_of(output):
    return Path(f"{output}.journal.jsonl")


def manifest_of(output):
    return Path(f"{output}.manifest.json")


def copy(path, folder, journal=True):
    """An output with its manifest and, maybe, its journal, in another folder."""
    target = folder / f"copy of {path.name}"
    shutil.copy(path, target)
    shutil.copy(manifest_of(path), manifest_of(target))
    if journal:
        shutil.copy(journal_of(path), journal_of(target))
    return target


def lines_of(journal):
    return journal.read_text(encoding="utf-8").split("\n")[:-1]


def write_lines(journal, lines):
    journal.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return journal


def with_ids(journal, target, keep):
    """A journal of some questions only."""
    header, *lines = lines_of(journal)
    return write_lines(target, [header, *(line for line in lines if json.loads(line)["key"][0] in keep)])


# Whole


def test_the_questions_of_these_tests_are_in_every_shard():
    for num_shards in (1, 2, 3, 4):
        assert {shard_of(question_id, num_shards) for question_id in IDS} == set(range(num_shards))


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
@pytest.mark.parametrize("script", MAIN)
def test_the_merged_file_is_the_one_of_a_single_process(made, merge, merged, script, num_shards, capsys):
    kinds = [kind for kind in KINDS if KINDS[kind][0] == script]
    for kind in kinds:
        output = Path(f"{merged}{KINDS[kind][1]}")
        merge(*made.shards(kind, num_shards), output=output)
        assert output.read_bytes() == made.output(kind).read_bytes()
    before, asked = listing(merged.parent), len(made.server.requests)
    capsys.readouterr()
    made.run(script, merged)
    assert capsys.readouterr().out == f"{merged}: already finished, left alone\n"
    assert (listing(merged.parent), len(made.server.requests)) == (before, asked)


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_is_that_of_a_single_process_but_for_the_run_itself(made, merge, merged, kind, capsys):
    shards = made.shards(kind, 3)
    capsys.readouterr()
    merge(*shards)
    pieces = 5 * 2 if kind == "scores" else 7  # two aspects each, and two questions have none
    noun = kind if kind in ("scores", "plans") else "answers"
    assert capsys.readouterr().out == f"{merged}: {pieces} {noun} of 3 shards, 7 questions\n"
    manifest, whole = read_manifest(merged), read_manifest(made.output(kind))
    for name in ("fingerprint", "tokens", "pieces", "keys_sha256", "output_sha256"):
        assert manifest[name] == whole[name], name
    assert manifest["output_sha256"] == file_hash(merged)
    assert manifest["counts"] == {noun: pieces}
    assert manifest["merged"] == [str(shard) for shard in shards]
    assert manifest["arguments"]["shard_addr"] == [str(shard) for shard in shards]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_shards_is_all_one(made, merge, merged, kind):
    merge(*reversed(made.shards(kind, 3)))
    assert merged.read_bytes() == made.output(kind).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_different_numbers(made, merge, merged, kind):
    # What is 1 of 2 is 1 or 3 of 4.
    merge(made.shard(kind, 4, 3), made.shard(kind, 2, 0), made.shard(kind, 4, 1))
    assert merged.read_bytes() == made.output(kind).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_several_shards_have_alike_is_fine(made, merge, merged, kind):
    first = made.shard(kind, 2, 0)
    merge(first, *made.shards(kind, 3), made.output(kind), first, journal_of(first))
    assert merged.read_bytes() == made.output(kind).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_and_the_journal_of_another(made, merge, merged, tmp_path, kind):
    unfinished = tmp_path / "unfinished.json.journal.jsonl"
    shutil.copy(journal_of(made.shard(kind, 2, 1)), unfinished)  # its run died before it published
    merge(made.shard(kind, 2, 0), unfinished)
    assert merged.read_bytes() == made.output(kind).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_runs_output_name_will_do(made, merge, merged, tmp_path, kind):
    shutil.copy(journal_of(made.shard(kind, 2, 1)), tmp_path / "unfinished.json.journal.jsonl")
    merge(made.shard(kind, 2, 0), tmp_path / "unfinished.json")  # a file that is not there yet
    assert merged.read_bytes() == made.output(kind).read_bytes()


@pytest.mark.parametrize("kind", WITHOUT_SCORES)
def test_outputs_whose_journals_were_deleted(made, merge, merged, tmp_path, kind):
    first, second = (copy(shard, tmp_path, journal=False) for shard in made.shards(kind, 2))
    merge(first, second)
    assert merged.read_bytes() == made.output(kind).read_bytes()
    assert read_manifest(merged)["tokens"] == read_manifest(made.output(kind))["tokens"]
    assert not journal_of(first).exists()


@pytest.mark.parametrize("kind", WITHOUT_SCORES)
def test_an_output_without_its_journal_is_like_one_with_it(made, merge, merged, tmp_path, kind):
    first, second = made.shards(kind, 2)
    merge(first, copy(second, tmp_path, journal=False), second)
    assert merged.read_bytes() == made.output(kind).read_bytes()


def test_scores_without_their_journal_are_refused(made, refusal, tmp_path):
    first, second = made.shards("scores", 2)
    alone = copy(second, tmp_path, journal=False)
    name = journal_of(alone).name
    assert refusal(first, alone) == (f"{alone}: its journal was deleted; scores are merged from journals ({name})")


@pytest.mark.parametrize("kind", WITHOUT_SCORES)
@pytest.mark.parametrize("journal", [True, False])
def test_several_outputs_a_question(made, merge, merged, tmp_path, kind, journal):
    shards = [copy(shard, tmp_path, journal) for shard in made.shards(kind, 2, "--num_generated_outputs", 2)]
    merge(*shards)
    whole = made.output(kind, "--num_generated_outputs", 2)
    assert merged.read_bytes() == whole.read_bytes()
    assert [len(outputs) for outputs in json.loads(merged.read_text()).values()] == [2] * 7


@pytest.mark.parametrize("kind", WITHOUT_SCORES)
def test_a_second_output_that_only_one_shard_has_is_a_gap(made, refusal, kind):
    first, second = made.shard(kind, 2, 0, "--num_generated_outputs", 2), made.shard(kind, 2, 1)
    lacking = [question_id for question_id in IDS if shard_of(question_id, 2) == 1]
    assert refusal(first, second) == gap(lacking, len(lacking), 14)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_the_first_questions(made, merge, merged, refusal, kind):
    shards = made.shards(kind, 2, "--limit", 3)
    merge(*shards, flags=["--limit", 3])
    assert merged.read_bytes() == made.output(kind, "--limit", 3).read_bytes()
    if kind == "scores":
        assert json.loads(merged.read_text())["partial"] == {"questions_in_dataset": 7, "questions_judged": 3}
        assert refusal(*shards) == gap(["42", "q4", "q9"], 3 * 2, 10)  # q6 has no aspects
    else:
        assert refusal(*shards) == gap(IDS[3:], 4, 7)
    merge(*made.shards(kind, 2))  # and now the others
    assert merged.read_bytes() == made.output(kind).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_questions_of_shards_of_all(made, merge, merged, kind):
    merge(*made.shards(kind, 2), flags=["--limit", 3])
    assert merged.read_bytes() == made.output(kind, "--limit", 3).read_bytes()


@pytest.fixture(scope="module")
def two_questions(made):
    """A dataset of two questions, and by script the shards (one of them without any question) and the whole."""
    folder = made.folder / "two"
    folder.mkdir()
    data = write_dataset(folder / "data.json", ["q1", "q4"])
    responses = folder / "responses.json"
    responses.write_text(json.dumps({"q1": [{"output": "One."}], "q4": [{"output": "Four."}]}))
    assert [shard_of(question_id, 4) for question_id in ("q1", "q4")] == [2, 3]
    found = {}
    for script in MAIN:
        flags = ["--response_addr", responses] if script == "evaluate_responses" else []
        shards = [folder / f"{script} {index}.json" for index in (0, 2, 3)]
        for index, shard in zip((0, 2, 3), shards, strict=True):
            made.run(script, shard, "--num_shards", 4, "--shard_index", index, *flags, data=data)
        whole = folder / f"{script}.json"
        made.run(script, whole, *flags, data=data)
        found[script] = (shards, whole)
    return data, found


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_without_any_question(merge, merged, two_questions, kind):
    (data, found), (script, suffix) = two_questions, KINDS[kind]
    shards, whole = found[script]
    merge(*(f"{shard}{suffix}" for shard in shards), data=data)
    assert merged.read_bytes() == Path(f"{whole}{suffix}").read_bytes()


@pytest.mark.parametrize("kind", WITHOUT_SCORES)
def test_a_shard_without_any_question_whose_journal_was_deleted(merge, merged, two_questions, tmp_path, kind):
    (data, found), (script, suffix) = two_questions, KINDS[kind]
    shards, whole = found[script]
    merge(*(copy(Path(f"{shard}{suffix}"), tmp_path, journal=False) for shard in shards), data=data)
    assert merged.read_bytes() == Path(f"{whole}{suffix}").read_bytes()


def test_a_journal_that_was_not_begun_holds_nothing_yet(made, refusal, tmp_path):
    first, path = made.shard("answers", 2, 0), tmp_path / "second.json.journal.jsonl"
    for header in ("", lines_of(journal_of(first))[0]):  # a torn one
        path.write_text(header, encoding="utf-8")
        assert refusal(first, path) == refusal(first, tmp_path / "second.json") == f"{path}: holds nothing yet"


# Gaps


def gap(ids, missing, total):
    """What a merge says that is not whole."""
    named = ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")
    return (
        f"--shard_addr: {missing} of {total} pieces are missing: {named}\n"
        "  run their shard again, which does only what is missing, or give its file too"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_was_not_given_is_a_gap(made, refusal, kind):
    of_third = [question_id for question_id in IDS if shard_of(question_id, 4) == 2]
    size = 1
    if kind == "scores":
        of_third = [question_id for question_id in of_third if question_id not in WITHOUT_ASPECTS]
        size = 2
    shards = [made.shard(kind, 4, index) for index in (0, 1, 3)]
    assert refusal(*shards) == gap(of_third, size * len(of_third), 10 if kind == "scores" else 7)


def test_the_first_five_of_a_gap_are_named_in_the_datasets_order(made, refusal, tmp_path):
    only = with_ids(journal_of(made.output("answers")), tmp_path / "a.journal.jsonl", {"q4"})
    assert refusal(only) == gap(["q1", "q2", "日本-’\u2028", "42", "q6", "q9"], 6, 7)
    only = with_ids(journal_of(made.output("answers")), tmp_path / "a.journal.jsonl", {"q4", "q1"})
    assert refusal(only) == gap(["q2", "日本-’\u2028", "42", "q6", "q9"], 5, 7)
    judged = with_ids(journal_of(made.output("scores")), tmp_path / "b.journal.jsonl", {"42", "q4"})
    assert refusal(judged) == gap(["q1", "日本-’\u2028", "q9"], 6, 10)  # an id once, however many aspects lack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0.5, -1], ids=["half", "all but the newline"])
def test_a_torn_last_line_is_a_gap(made, refusal, tmp_path, kind, kept):
    first, second = made.shard(kind, 2, 0), copy(made.shard(kind, 2, 1), tmp_path)
    whole = journal_of(second).read_bytes().splitlines(keepends=True)
    torn = whole[-1][: kept if isinstance(kept, int) else int(kept * len(whole[-1]))]
    journal_of(second).write_bytes(b"".join(whole[:-1]) + torn)
    total = 10 if kind == "scores" else 7
    assert refusal(first, second) == gap([json.loads(whole[-1])["key"][0]], 1, total)
    assert refusal(first, journal_of(second)) == gap([json.loads(whole[-1])["key"][0]], 1, total)


def test_the_remedy_for_a_gap(made, merge, merged, refusal, tmp_path):
    second = copy(made.shard("answers", 2, 1), tmp_path)
    write_lines(journal_of(second), lines_of(journal_of(second))[:-1])
    assert "1 of 7 pieces are missing" in refusal(made.shard("answers", 2, 0), second)
    asked = len(made.server.requests)
    made.run("baselines", second, "--num_shards", 2, "--shard_index", 1)
    assert 1 <= len(made.server.requests) - asked <= 4  # one answer, with retries
    merge(made.shard("answers", 2, 0), second)
    assert merged.read_bytes() == made.output("answers").read_bytes()


def test_a_journal_that_a_run_is_writing_is_merged_as_far_as_it_is(made, merge, merged, refusal, tmp_path):
    second = tmp_path / "second.json"
    finished = made.shard("answers", 2, 1)
    header, *lines = lines_of(journal_of(finished))
    journal = Journal(second, json.loads(header)["fingerprint"])
    for line in lines[:-1]:
        journal.add(tuple(json.loads(line)["key"]), json.loads(line)["value"])
    last = json.loads(lines[-1])
    assert refusal(made.shard("answers", 2, 0), second) == gap([last["key"][0]], 1, 7)
    journal.add(tuple(last["key"]), last["value"])
    merge(made.shard("answers", 2, 0), second)
    assert merged.read_bytes() == made.output("answers").read_bytes()
    journal.close()


# Scores of a part of the questions

ANSWERED = ["q2", "42", "q4", "q9"]  # q2 has no aspects; none of the third of four shards
STRATEGIES = ["aspect", "direct", "pairwise"]


class Part:
    """The scores of responses to some questions only: by a single process, and of four shards."""

    def __init__(self, made, strategy, folder):
        self.made, self.strategy, self.folder = made, strategy, folder
        folder.mkdir()
        self.responses = [folder / "first.json"]
        self.responses[0].write_text(json.dumps({name: [{"output": f"To {name}."}] for name in ANSWERED}))
        if strategy == "pairwise":  # the other system has answered one question less
            self.responses.append(folder / "second.json")
            self.responses[1].write_text(json.dumps({name: [{"output": "Well."}] for name in ANSWERED if name != "q4"}))
        self.whole = self.run(folder / "whole.json")
        self.shards = [self.run(folder / f"{i}.json", "--num_shards", 4, "--shard_index", i) for i in range(4)]

    def run(self, output, *flags):
        flags = ["--strategy", self.strategy, "--response_addr", *self.responses, "--allow_partial", *flags]
        self.made.run("evaluate_responses", output, *flags)
        return output


@pytest.fixture(scope="module")
def parts(made):
    return {strategy: Part(made, strategy, made.folder / f"part {strategy}") for strategy in STRATEGIES}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_scores_of_a_part_are_merged_into_those_of_a_single_process(made, merge, merged, parts, strategy, capsys):
    part = parts[strategy]
    merge(*part.shards)
    assert merged.read_bytes() == part.whole.read_bytes()
    judged = 3 if strategy == "pairwise" else 4
    assert json.loads(merged.read_text())["partial"] == {"questions_in_dataset": 7, "questions_judged": judged}
    assert f" scores of 4 shards, {judged} questions\n" in capsys.readouterr().out
    before, asked = listing(merged.parent), len(made.server.requests)
    part.run(merged)
    merge(*part.shards)
    assert capsys.readouterr().out == f"{merged}: already finished, left alone\n" * 2
    assert (listing(merged.parent), len(made.server.requests)) == (before, asked)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("missing", "ids"), [(0, ["q9"]), (1, ["42"]), (3, ["q2", "q4"])])
def test_a_shard_of_a_part_that_was_not_given_is_a_gap(refusal, parts, strategy, missing, ids):
    part = parts[strategy]
    not_asked = {"aspect": "q2", "direct": None, "pairwise": "q4"}[strategy]
    lacking = [name for name in ids if name != not_asked]
    size, total = {"aspect": (2, 6), "direct": (1, 4), "pairwise": (2, 6)}[strategy]
    kept = [shard for index, shard in enumerate(part.shards) if index != missing]
    assert refusal(*kept) == gap(lacking, size * len(lacking), total)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_shard_of_a_part_without_any_response_need_not_be_given(merge, merged, parts, strategy):
    part = parts[strategy]
    merge(*(part.shards[index] for index in (0, 1, 3)))
    assert merged.read_bytes() == part.whole.read_bytes()


def test_the_first_questions_of_a_part(merge, merged, parts, tmp_path):
    part = parts["aspect"]
    merge(*part.shards, flags=["--limit", 4])
    assert merged.read_bytes() == part.run(tmp_path / "whole.json", "--limit", 4).read_bytes()


def test_the_output_is_not_what_was_judged(refusal, parts):
    part = parts["aspect"]
    expected = f"{part.responses[0]}: is an input too; give the output its own name"
    assert refusal(*part.shards, output=part.responses[0], flags=["--overwrite"]) == expected


def test_merged_parts_are_merged_again(merge, merged, parts, tmp_path):
    part, unfinished = parts["direct"], tmp_path / "unfinished.json"
    shutil.copy(journal_of(part.shards[1]), journal_of(unfinished))
    merge(*part.shards, output=tmp_path / "merged before.json")
    merge(tmp_path / "merged before.json", unfinished)
    assert merged.read_bytes() == part.whole.read_bytes()


@pytest.mark.parametrize("strategy", ["aspect", "pairwise"])
def test_what_was_judged_lies_elsewhere_or_was_changed(made, merge, merged, refusal, tmp_path, strategy):
    part = Part(made, strategy, tmp_path / "part")
    last = part.responses[-1]
    kept = tmp_path / "kept.json"
    shutil.copy(last, kept)
    named = ", ".join(map(str, part.responses))
    expected = (
        f"{named}: not what {part.shards[0]} was made from: not there, or changed since\n"
        "  which questions were to be judged hangs on it: give it as it was judged, --response_addr FILE"
    )
    last.write_text(json.dumps({"q9": [{"output": "Now of one question only."}]}))
    assert refusal(*part.shards) == expected
    assert refusal(*part.shards, flags=["--response_addr", *part.responses]) == expected
    last.unlink()
    assert refusal(*part.shards) == expected
    merge(*part.shards, flags=["--response_addr", made.folder / "responses.json", kept, part.responses[0]])
    assert merged.read_bytes() == part.whole.read_bytes()
    assert read_manifest(merged)["arguments"]["response_addr"] == [
        str(kept) if p == last else str(p) for p in part.responses
    ]


def test_of_several_systems_judged_together_each_has_its_own_responses(made, merge, merged, tmp_path):
    for name, ids in (("one", ["42", "q9"]), ("two", ["q1", "q4"])):
        (tmp_path / f"{name}.json").write_text(json.dumps({question_id: [{"output": "Yes."}] for question_id in ids}))
    addresses = [str(tmp_path / f"{name}.json") for name in ("one", "two")]

    def judge(suffix, *flags):
        outputs = [tmp_path / f"{name} {suffix}.json" for name in ("one", "two")]
        flags = ["--response_addr", *addresses, "--allow_partial", "--score_addr", *outputs, *flags]
        made.run("evaluate_responses", outputs[0], *flags)
        return outputs

    whole = judge("whole")
    shards = [judge(index, "--num_shards", 2, "--shard_index", index) for index in range(2)]
    for number, output in enumerate(whole):
        target = tmp_path / f"merged {number}.json"
        merge(*(shard[number] for shard in shards), output=target)
        assert target.read_bytes() == output.read_bytes()


def test_without_allow_partial_every_question_is_expected(made, refusal, tmp_path):
    # Its journal's questions all have a response; the others were never asked for, or their shard is missing.
    responses = tmp_path / "responses.json"
    responses.write_text(json.dumps({"q1": [{"output": "One."}], "q9": [{"output": "Nine."}]}))
    shard = tmp_path / "shard.json"
    made.run("evaluate_responses", shard, "--response_addr", responses, "--num_shards", 2, "--shard_index", 0)
    expected = gap(["日本-’\u2028", "42", "q4"], 6, 10)
    assert refusal(shard) == refusal(shard, flags=["--response_addr", responses]) == expected


# What does not go together


def with_entries(output, entries):
    """Add pieces to a journal, or put them in place of its own."""
    fingerprint, _ = read_journal(journal_of(output))
    journal = Journal(output, fingerprint)
    for key, value in entries.items():
        journal.add(key, value)
    journal.close()


def with_other_values(output, ids):
    """Change the values of some questions in a journal, as other hardware might have made them."""
    _, entries = read_journal(journal_of(output))
    others = {key: {**value, "value": "Another answer."} for key, value in entries.items() if key[0] in ids}
    with_entries(output, others)


def test_different_values_of_one_piece_are_refused(made, refusal, tmp_path):
    whole, second = made.output("answers"), copy(made.output("answers"), tmp_path)
    with_other_values(second, {"q4"})
    assert refusal(whole, second) == (
        f"{whole} and {second}: differ in 1 pieces they both have: 'q4'\n  give one of them only"
    )
    with_other_values(second, set(IDS) - {"q9"})
    message = refusal(second, whole)
    assert message.startswith(f"{second} and {whole}: differ in 6 pieces they both have: ")
    assert message.splitlines()[0].endswith(", ...")


def test_other_settings_are_refused_by_name(made, refusal):
    first, second = made.shard("answers", 2, 0), made.shard("answers", 2, 1, "--temperature", 0.5)
    assert refusal(first, second) == f"{second}: made with other settings than {first}: temperature: 0.1, now 0.5"
    assert refusal(second, first) == f"{first}: made with other settings than {second}: temperature: 0.5, now 0.1"


@pytest.mark.parametrize(("one", "other"), [("answers", "answers by plan"), ("answers by plan", "plans")])
def test_files_of_different_kinds_are_refused(made, refusal, one, other):
    first, second = made.shard(one, 2, 0), made.shard(other, 2, 1)
    assert refusal(first, second).startswith(f"{second}: made with other settings than {first}: ")


@pytest.mark.parametrize("kind", KINDS)
def test_another_dataset_is_refused(made, refusal, tmp_path, kind):
    data = tmp_path / "other.json"
    data.write_text(made.data.read_text().replace("What about q4?", "What about q4, then?"))
    shards = made.shards(kind, 2)
    assert refusal(*shards, data=data) == f"{data}: not the dataset that {shards[0]} was made from"


def test_a_dataset_that_cannot_be_read_is_refused(made, refusal, tmp_path):
    assert refusal(*made.shards("answers", 2), data=tmp_path / "no.json") == f"{tmp_path}/no.json: no such file"


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_no_question_are_refused(made, refusal, tmp_path, kind):
    second = copy(made.shard(kind, 2, 1), tmp_path)
    _, entries = read_journal(journal_of(second))
    value = next(iter(entries.values()))
    with_entries(second, {(f"stranger {i}", 0): value for i in range(6)})
    named = ", ".join(f"'stranger {i}'" for i in range(5))
    assert refusal(made.shard(kind, 2, 0), second) == (
        f"--shard_addr: 6 pieces of no question of {made.data}: {named}, ..."
    )


# What is no shard


def test_a_ranked_dataset_is_no_shard(made, refusal, tmp_path):
    ranked = tmp_path / "ranked.json"
    data = tmp_path / "dated.json"
    records = json.loads(made.data.read_text())
    data.write_text(json.dumps(records))
    arguments = ["--input_dataset_addr", str(data), "--output_dataset_addr", str(ranked), "--ranker", "recency"]
    assert rank_dataset.main(arguments) == 0
    expected = f"{ranked}: only what baselines.py, planpers.py and evaluate_responses.py write can be merged"
    assert refusal(ranked) == expected
    first = made.shard("answers", 2, 0)
    assert refusal(first, ranked).startswith(f"{ranked}: made with other settings than {first}: script: ")
    journal_of(ranked).unlink(missing_ok=True)
    assert refusal(ranked) == expected


def test_a_file_without_a_manifest_is_no_shard(made, refusal, tmp_path):
    path = tmp_path / "answers.json"
    path.write_text('{"q1": [{"output": "An answer."}]}')
    expected = f"{path}: has no manifest, or was changed since it was written; only whole shards can be merged"
    assert refusal(made.shard("answers", 2, 0), path) == expected
    manifest_of(path).write_text("{}")
    assert refusal(path) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_was_changed_since_is_no_shard(made, refusal, tmp_path, kind):
    second = copy(made.shard(kind, 2, 1), tmp_path, journal=False)
    second.write_text(second.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    expected = f"{second}: has no manifest, or was changed since it was written; only whole shards can be merged"
    assert refusal(made.shard(kind, 2, 0), second) == expected


@pytest.mark.parametrize("name", ["missing.json", "missing.json.journal.jsonl", "missing.json/more.json"])
def test_a_missing_file_is_named(made, refusal, tmp_path, name):
    path = tmp_path / name
    assert refusal(made.shard("answers", 2, 0), path) == f"{path}: no such file"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (1, "every other line's checksum includes it: delete the file to begin anew"),
        (2, "delete that line to have its piece done again, or the file to begin anew"),
    ],
)
def test_a_damaged_journal_is_named(made, refusal, tmp_path, kind, number, remedy):
    second = copy(made.shard(kind, 2, 1), tmp_path)
    lines = lines_of(journal_of(second))
    lines[number - 1] = lines[number - 1][:-7]
    write_lines(journal_of(second), lines)
    assert refusal(made.shard(kind, 2, 0), second) == f"{journal_of(second)}: line {number} is damaged\n  {remedy}"


def test_the_output_is_none_of_the_inputs(made, refusal, tmp_path):
    second = copy(made.shard("answers", 2, 1), tmp_path)
    shards = [made.shard("answers", 2, 0), second]
    expected = "is an input too; give the output its own name"
    assert refusal(*shards, output=second, flags=["--overwrite"]) == f"{second}: {expected}"
    assert refusal(*shards, output=made.data) == f"{made.data}: {expected}"


# What is there already


def test_a_merge_that_was_made_is_left_alone(made, merge, merged, capsys):
    shards = made.shards("answers", 2)
    merge(*shards)
    before = listing(merged.parent)
    for flags in ([], ["--overwrite"]):
        capsys.readouterr()
        merge(*shards, flags=flags)
        assert capsys.readouterr().out == f"{merged}: already finished, left alone\n"
        assert listing(merged.parent) == before
    journal_of(merged).unlink()
    merge(*shards)
    assert capsys.readouterr().out == f"{merged}: already finished, left alone\n"


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_merge_of_what_the_shards_held_before_is_not_called_finished(made, merge, merged, tmp_path, flags):
    shards = [copy(shard, tmp_path) for shard in made.shards("answers", 2)]
    merge(*shards)
    with_other_values(shards[1], {"q4"})  # its shard was deleted and run again
    with suppress(UserError):  # a refusal would do
        merge(*shards, flags=flags)
        assert json.loads(merged.read_text())["q4"][0]["output"] == "Another answer."


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [1, 3])
def test_a_merge_that_died_is_ended(made, merge, merged, kind, lines):
    journal_of(merged).write_text("\n".join(lines_of(journal_of(made.output(kind)))[:lines]) + "\n", encoding="utf-8")
    merge(*made.shards(kind, 2))
    assert merged.read_bytes() == made.output(kind).read_bytes()


def test_an_output_of_other_settings_is_kept_unless_overwritten(made, merge, merged, refusal):
    merge(*made.shards("answers", 2, "--temperature", 0.5))
    shards = made.shards("answers", 2)
    expected = f"{merged}: was made with other settings: temperature: 0.5, now 0.1\n"
    assert refusal(*shards) == expected + "  give another output, or --overwrite to replace it"
    merge(*shards, flags=["--overwrite"])
    assert merged.read_bytes() == made.output("answers").read_bytes()


def test_an_unfinished_run_of_other_settings_is_kept_unless_overwritten(made, merge, merged, refusal):
    shutil.copy(journal_of(made.shard("answers", 2, 0, "--temperature", 0.5)), journal_of(merged))
    shards = made.shards("answers", 2)
    assert refusal(*shards) == (
        f"{journal_of(merged)}: an unfinished run with other settings: temperature: 0.5, now 0.1\n"
        "  repeat that run's command, give another output, or --overwrite to begin anew"
    )
    merge(*shards, flags=["--overwrite"])
    assert merged.read_bytes() == made.output("answers").read_bytes()


def test_a_file_of_the_users_is_kept_unless_overwritten(made, merge, merged, refusal):
    merged.write_text("mine")
    shards = made.shards("scores", 2)
    assert "exists, and was not written by this script or was changed since" in refusal(*shards)
    merge(*shards, flags=["--overwrite"])
    assert merged.read_bytes() == made.output("scores").read_bytes()


# As a process


def test_the_script_itself(made, merged, tmp_path):
    shards = made.shards("answers", 2)
    command = [sys.executable, "utils/merge_shards.py", "--inputs_addr", made.data, "--output_addr", merged]
    done = subprocess.run([*command, "--shard_addr", shards[0]], cwd=ROOT, capture_output=True, text=True)
    lacking = [question_id for question_id in IDS if shard_of(question_id, 2) == 1]
    expected = "error: " + gap(lacking, len(lacking), 7) + "\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)
    assert listing(tmp_path) == {}
    done = subprocess.run([*command, "--shard_addr", *shards], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{merged}: 7 answers of 2 shards, 7 questions\n", "")
    assert merged.read_bytes() == made.output("answers").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        "merged.json", "merged.json.journal.jsonl", "merged.json.manifest.json"
    }  # fmt: skip
