"""utils/build_dataset.py, from made-up dumps to files that every command reads, with a server as the model."""

import json
import re
import shutil
import signal
from collections import Counter

import pytest
from api_server import Reply, default_reply, serve
from made_up_dump import make_dumps, write_xml

import baselines
import evaluate_responses
import planpers
from retrieval import rank_dataset
from utils import build_dataset
from utils.base.errors import UserError
from utils.data.datasets import read_dataset

SPLITS = ("train", "validation", "test")


def flags(dump, out, url, *more):
    posts = sorted(dump.glob("*/Posts.xml"))
    key = dump / "key.txt"
    key.write_text("sk-test")
    api = ["--openai", "--api_key_addr", key, "--base_url", url, "--model_addr", "some-model"]
    return list(map(str, ["--posts_addr", *posts, "--output_dir", out, *api, *more]))


def files_of(out):
    """Return a run's files by name, without the parts about the run itself."""
    ours = [path for path in out.iterdir() if path.suffix in (".json", ".html") and "manifest" not in path.name]
    return {path.name: path.read_bytes() for path in ours}


def dataset_of(out):
    """{(category's file, split): records}."""
    paths = sorted(path for path in out.glob("*_*.json") if path.stem.rpartition("_")[2] in SPLITS)
    return {tuple(path.stem.rpartition("_")[::2]): json.loads(path.read_text()) for path in paths}


@pytest.fixture(scope="module")
def server():
    with serve(default_reply) as server:
        yield server


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Three communities with 10,000 posts, and the counts of their difficult cases."""
    folder = tmp_path_factory.mktemp("dumps")
    return folder, make_dumps(folder, 10_000)


@pytest.fixture(scope="module")
def built(dump, server, tmp_path_factory):
    """A finished run's folder."""
    out = tmp_path_factory.mktemp("built")
    assert build_dataset.main(flags(dump[0], out, server.url)) == 0
    return out


def test_the_dataset_is_complete_and_consistent(dump, built):
    made, split_of, num_records = dump[1], {}, 0
    for (_, split), records in dataset_of(built).items():
        for record in records:
            num_records += 1
            author = made.authors[record["id"]]
            assert record["author"] == author and record["date"] == made.dates[record["id"]]
            assert split_of.setdefault(author, split) == split  # no author in two splits
            assert record["rubric_aspects"]
            for aspect in record["rubric_aspects"]:
                parts = aspect["evidence"].split(" [...] ")
                assert all(parts) and all(part in record["narrative"] for part in parts)
            assert 5 <= len(record["profile"]) <= 500
            for item in record["profile"]:
                assert made.dates[item["id"]] == item["date"] < record["date"]  # none later than its question
                assert made.authors[item["id"]] == author
                assert record["narrative"] not in item["text"]
                by = r"CC BY-SA [234]\.[05], by User <\d+> & Söhne \(https://\S+\), https://\S+"
                assert re.fullmatch(by, item["licence"])
            dates = [item["date"] for item in record["profile"]]
            assert dates == sorted(dates)  # the latest one last, as --ranker recency expects
            assert len({item["id"] for item in record["profile"]}) == len(dates)
            at = f"https://{record['category']}.stackexchange.com/q/{record['id'].split('_')[1]}"
            assert record["licence"].endswith(at)
    assert num_records == len(split_of) > 80 and {*split_of.values()} == {*SPLITS}
    profiles = [{item["category"] for item in record["profile"]} for record in records_of(built)]
    assert sum(len(communities) > 1 for communities in profiles) > num_records / 2 and len(set.union(*profiles)) == 3


def test_no_markup_is_left(built):
    texts = [record["narrative"] for record in records_of(built)]
    texts += [item["text"] for record in records_of(built) for item in record["profile"]]
    for text in texts:
        body = re.sub(r"<\w+> \d+\?", "", text)  # of the titles
        assert not re.search(r"</?\w+[ >]|&\w+;|&#\d+|alert|hidden", body), body
    assert any('    stir("soup")' in text for text in texts) and any("no break\nhere" in text for text in texts)
    page = (built / "to_read.html").read_text()
    sections = page.split("<section>")[1:]
    assert [section.count("<article>") for section in sections] == [30] * 4
    assert "<script" not in page and "User &lt;" in page and "&lt;b&gt;" in page and "default-src 'none'" in page
    tags = "h2 table tr td p article h3 mark ol li b br"
    assert {*re.findall(r"<(\w+)", sections[3])} == {*tags.split()}


def test_the_counts_add_up(dump, built):
    made, counts = dump[1], json.loads((built / "counts.json").read_text())
    questions = Counter()
    for of_input in counts["posts"].values():
        questions.update(of_input)
    assert questions["without author"] == made.deleted and questions["with a repeated number"] == made.repeated
    assert questions.total() == made.rows
    assert sum(counts["candidates"].values()) == questions["questions"]
    assert counts["candidates"]["copies of earlier posts"] >= made.copies * 0.9
    assert sum(counts["factoid_filter"].values()) == counts["candidates"]["candidates"]
    assert sum(counts["aspects"].values()) == counts["factoid_filter"]["need personalization"]
    evidence, dropped = counts["evidence"], "questions without remaining aspects, dropped"
    assert evidence["questions"] + evidence[dropped] == counts["aspects"]["with aspects"]
    assert sum(counts["splits"].values()) == evidence["questions"]
    assert sum(of_file["questions"] for of_file in counts["files"].values()) == evidence["questions"]


def test_a_finished_run_is_skipped(dump, built, server, capsys):
    before, num_requests = files_of(built), len(server.requests)
    times = {path: path.stat().st_mtime_ns for path in built.rglob("*.json*")}
    assert build_dataset.main(flags(dump[0], built, server.url)) == 0
    names = ("/factoid_filter.json", "/aspects.json", "")
    assert capsys.readouterr().out == "".join(f"{built}{name}: already finished; skipped\n" for name in names)
    assert len(server.requests) == num_requests and files_of(built) == before
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*.json*")} == times


def test_every_command_accepts_the_dataset(built, server, tmp_path):
    """Rank, answer in two ways, judge."""
    data = built / "Lifestyle_and_Personal_Development_test.json"
    (tmp_path / "key.txt").write_text("sk-test")
    api = ["--openai", "--api_key_addr", f"{tmp_path}/key.txt", "--base_url", server.url]
    ranked, answers, plans, scores = (str(tmp_path / name) for name in ("ranked.json", "a.json", "p.json", "s.json"))
    files = ["--input_dataset_addr", str(data), "--output_dataset_addr", ranked]
    assert rank_dataset.main([*files, "--ranker", "recency"]) == 0
    first = [record["profile"][0]["date"] for record in read_dataset(ranked, ["profile"])]
    assert first == [record["profile"][-1]["date"] for record in read_dataset(data, ["profile"])]
    common = [*api, "--model_addr", "some-model", "--inputs_addr", ranked]
    assert baselines.main([*common, "--rag", "--output_addr", answers]) == 0
    assert planpers.main([*common, "--gold_plan", "--output_addr", plans]) == 0
    judged = ["--inputs_addr", ranked, "--response_addr", answers, "--score_addr", scores]
    assert evaluate_responses.main([*api, "--evaluator_llm", "some-judge", *judged]) == 0
    scored = json.loads((tmp_path / "s.json").read_text())
    assert scored["num_questions"] == len(read_dataset(data)) and scored["num_unscored"] == 0


def test_a_resumed_run_writes_the_same_bytes(dump, built, server, warm_api, tmp_path):
    arguments, whole, num_requests = flags(dump[0], tmp_path / "out", server.url), files_of(built), len(server.requests)
    run = warm_api.start("utils.build_dataset", arguments)
    server.wait_for(num_requests + len(json.loads(whole["factoid_filter.json"])) * 3 // 2)  # in the aspects
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert not (tmp_path / "out" / "evidence.json").exists()
    done = warm_api.run("utils.build_dataset", arguments)
    assert done.returncode == 0, done.errors
    assert files_of(tmp_path / "out") == whole
    times = Counter(json.dumps(request) for request in server.requests[num_requests:])
    assert sum(count > 1 for count in times.values()) <= 32  # only the requests in flight when it was killed


def test_limit_takes_the_first_candidates_and_a_dry_run_asks_nothing(small, server, tmp_path, capsys):
    out, before = tmp_path / "out", len(server.requests)
    assert build_dataset.main(flags(small[0], out, server.url, *LENIENT, "--dry_run")) == 0
    candidates = [candidate["id"] for candidate in json.loads((out / "candidates.json").read_text())]
    printed = capsys.readouterr().out
    assert printed.count(f": {len(candidates)} requests, ") == 2 and len(server.requests) == before
    assert "  upper bound, because factoid_filter drops some posts\n" in printed
    assert {path.name.partition(".")[0] for path in out.iterdir()} == {"posts", "candidates"}
    assert build_dataset.main(flags(small[0], out, server.url, *LENIENT, "--limit", "20")) == 0
    assert list(json.loads((out / "factoid_filter.json").read_text())) == candidates[:20]
    assert {candidate.split("_")[0] for candidate in candidates[:20]} == {"cooking", "law"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return folder, make_dumps(folder, 600, seed=1, communities=("cooking", "law"))


LENIENT = ("--min_profile_posts", "2", "--min_body_words", "10", "--validation_share", "0.3", "--test_share", "0.3")


def test_adding_a_community_requests_only_its_posts(small, server, tmp_path):
    arguments = flags(small[0], tmp_path / "out", server.url, *LENIENT)
    without_law = [word for word in arguments if "law.stackexchange.com" not in word]
    others = len(server.requests)  # of other tests
    assert build_dataset.main(without_law) == 0
    prompts = {request["messages"][1]["content"] for request in server.requests[others:]}
    before = len(server.requests)
    assert build_dataset.main(arguments) == 0
    new = server.requests[before:]
    assert new and not prompts & {request["messages"][1]["content"] for request in new}
    assert build_dataset.main(flags(small[0], tmp_path / "whole", server.url, *LENIENT)) == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_steps_without_a_model_follow_changed_flags(small, server, tmp_path, capsys):
    """Other splits and shorter profiles request nothing again, and empty files are deleted."""
    out = tmp_path / "out"
    assert build_dataset.main(flags(small[0], out, server.url, *LENIENT)) == 0
    before, num_requests = dataset_of(out), len(server.requests)
    changed = flags(small[0], out, server.url, *LENIENT[:4], "--test_share", "0.9", "--validation_share", "0.01")
    assert build_dataset.main([*changed, "--split_seed", "3", "--max_profile_posts", "2"]) == 0
    assert len(server.requests) == num_requests
    after = dataset_of(out)
    assert "deleted, because this run has no questions for it" in capsys.readouterr().err
    assert after.keys() < before.keys()
    ids = [sorted(record["id"] for records in of.values() for record in records) for of in (before, after)]
    assert ids[0] == ids[1]
    latest = {record["id"]: record["profile"][-2:] for records in before.values() for record in records}
    for records in after.values():
        assert all(record["profile"] == latest[record["id"]] for record in records)


def test_files_of_removed_categories_are_deleted(small, server, tmp_path, capsys):
    """Otherwise `*_train.json` would match two datasets with different splits."""
    out, own = tmp_path / "out", tmp_path / "mine.toml"
    own.write_text('[Food]\ncommunities = ["cooking"]\n')
    assert build_dataset.main(flags(small[0], out, server.url, *LENIENT)) == 0
    before = {f"{category}_{split}.json" for category, split in dataset_of(out)}
    mine = out / "my_train.json"
    mine.write_text("[]")
    assert build_dataset.main(flags(small[0], out, server.url, *LENIENT, "--communities_addr", own)) == 0
    mine.unlink()  # another program's file is kept
    assert {category for category, _ in dataset_of(out)} == {"Food"} and not list(out.glob("Lifestyle*"))
    assert capsys.readouterr().err.count("deleted, because this run has no questions for it") == len(before)


@pytest.mark.parametrize(("step", "unit"), [("enough_details", "aspect"), ("needs_personalization", "filter")])
def test_requests_that_the_server_failed_are_retried(step, unit, small, server, tmp_path, capsys):
    """Without an output of the filter, a post is not asked about further, so the second step lacks nothing."""
    arguments = flags(small[0], tmp_path / "out", server.url, *LENIENT, "--max_retries", "0")

    def fail_some(request):
        system, user = (message["content"] for message in request["messages"])
        return Reply("busy", status=500) if step in system and len(user) % 3 == 0 else default_reply(request)

    server.reply = fail_some
    try:
        assert build_dataset.main(arguments) == 1
    finally:
        server.reply = default_reply
    assert f"{unit} outputs are missing because the server failed; run the same" in capsys.readouterr().err
    assert not (tmp_path / "out" / "evidence.json").exists()
    before = len(server.requests)
    assert build_dataset.main(arguments) == 0
    again = [request["messages"] for request in server.requests[before:]]
    assert all(len(user["content"]) % 3 == 0 for system, user in again if step in system["content"])
    assert build_dataset.main(flags(small[0], tmp_path / "whole", server.url, *LENIENT, "--max_retries", "0")) == 0
    assert dataset_of(tmp_path / "out") == dataset_of(tmp_path / "whole")


def test_a_server_that_fails_in_the_filter_is_asked_no_more(small, server, tmp_path, capsys):
    arguments = flags(small[0], tmp_path / "out", server.url, *LENIENT, "--max_retries", "0", "--max_concurrency", "1")
    before = len(server.requests)
    server.reply = lambda request: (
        Reply("no", status=503) if len(server.requests) > before + 9 else default_reply(request)
    )
    try:
        assert build_dataset.main(arguments) == 1
    finally:
        server.reply = default_reply
    # The posts that passed are not asked about: the server is gone for both steps.
    assert all("needs_personalization" in request["messages"][0]["content"] for request in server.requests[before:])
    assert "are missing because the server failed" in capsys.readouterr().err
    assert build_dataset.main(arguments) == 0


def test_a_lost_file_is_made_again_from_the_other(small, server, tmp_path, capsys):
    """The file of the filter says which posts pass: without the store, only the lost file's requests are paid again."""
    out = tmp_path / "out"
    arguments = flags(small[0], out, server.url, *LENIENT)
    assert build_dataset.main(arguments) == 0
    whole = files_of(out)
    for name, system in (("aspects", "enough_details"), ("factoid_filter", "needs_personalization")):
        (out / f"{name}.json").unlink()
        assert build_dataset.main(arguments) == 0 and files_of(out) == whole
        (out / f"{name}.json").unlink()
        shutil.rmtree(out / "completions")
        before = len(server.requests)
        assert build_dataset.main(arguments) == 0 and files_of(out) == whole
        assert len(server.requests) > before
        assert all(system in request["messages"][0]["content"] for request in server.requests[before:])


def refusal(*arguments):
    with pytest.raises(UserError) as error:
        build_dataset.main(list(map(str, arguments)))
    return str(error.value)


def test_a_community_without_a_category_is_used_in_profiles_only(small, server, tmp_path, capsys):
    own = tmp_path / "mine.toml"
    own.write_text('[Food]\ncategory = "Food"\ncommunities = ["cooking", "coking", "baking"]\n')
    arguments = flags(small[0], tmp_path / "out", server.url, *LENIENT, "--communities_addr", own)
    assert build_dataset.main(arguments) == 0
    dataset = dataset_of(tmp_path / "out")
    assert {name for name, _ in dataset} == {"Food"}
    notes = [line for line in capsys.readouterr().err.splitlines() if "communities with" in line]
    absent = "'baking', 'coking'"
    assert notes == [
        "note: communities without a category, used in profiles only: 'law'",
        f"note: {own}: communities without posts in the inputs: {absent}",
    ]
    records = [record for records in dataset.values() for record in records]
    assert {record["category"] for record in records} == {"cooking"}
    assert {item["category"] for record in records for item in record["profile"]} == {"cooking", "law"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a\n", "not TOML: "),
        ("a = " + "[" * 5000, "nested too deeply"),
        ('[a]\ncommunities = "law"\n', "field 'a.communities': Expected `array`, got `str`"),
        ("", "has no tables; add one per category, with communities = "),
        ('["a/b"]\ncommunities = ["law"]\n', "table 'a/b': not a valid file name"),
        ('[a]\ncommunities = ["law"]\n[b]\ncommunities = ["law"]\n', "'law' is in two tables"),
        ('[a]\ncommunities = ["law", "coo\\u0000king"]\n', "field 'a.communities[1]': Expected `str` matching regex"),
        ('["a\\u001B[2Jb"]\ncommunities = ["law"]\n', "table 'a\\x1b[2Jb': not a valid file name"),
    ],
)
def test_an_invalid_communities_file_is_refused(text, said, small, server, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    message = refusal(*flags(small[0], tmp_path / "out", server.url, "--communities_addr", tmp_path / "mine.toml"))
    assert message.startswith(f"{tmp_path}/mine.toml: ") and said in message and not (tmp_path / "out").exists()


def test_a_run_without_remaining_questions_reports_the_counts(small, server, tmp_path):
    message = refusal(*flags(small[0], tmp_path / "out", server.url, "--min_body_words", "5000"))
    assert re.match(r"no post qualifies as a question: 0 candidates, .*\d+ with fewer than 5000 words", message)
    for reply, said in (
        ('{"needs_personalization": true, "enough_details": false}',
         "9 need personalization; 9 without enough details, dropped\n  see the model's outputs in aspects.json"),
        ('{"needs_personalization": false}', "9 factoid, dropped\n  see the model's outputs in factoid_filter.json"),
    ):  # fmt: skip
        with serve(lambda request, reply=reply: Reply(reply)) as other:
            out = tmp_path / str(len(said))
            assert refusal(*flags(small[0], out, other.url, *LENIENT, "--limit", "9")).endswith(said)


def test_a_reposted_question_is_not_in_its_own_profile(tmp_path, capsys):
    """The newest post is the question; one of the two before it is the same without one line."""
    first = "We need a quiet flat near the station, cheap, for two old cats, and none of us has a car. "
    bodies = ["How long does dough keep in a cellar that is warm?", first, f"{first} Nobody has answered this so far."]
    rows = "".join(
        f'<row Id="{day}" PostTypeId="1" CreationDate="2019-01-0{day}T00:00:00.000" OwnerUserId="5" '
        f'Title="Where to {day}" Body="{body}"/>'
        for day, body in enumerate(bodies, 1)
    )
    (tmp_path / "cooking").mkdir()
    write_xml(tmp_path / "cooking" / "Posts.xml", "posts", rows)
    aspect = {"aspect": "a", "evidence": "quiet ... old cats", "reason": "r"}
    reply = json.dumps({"needs_personalization": True, "enough_details": True, "aspects": [aspect]})
    terms = ("--min_profile_posts", "2", "--min_body_words", "3", "--validation_share", "0.01", "--test_share", "0.9")
    with serve(lambda request: Reply(reply)) as server:
        assert build_dataset.main(flags(tmp_path, tmp_path / "out", server.url, *terms)) == 0
    ((record,),) = dataset_of(tmp_path / "out").values()
    assert record["id"] == "cooking_3" and record["rubric_aspects"][0]["evidence"] == "quiet [...] old cats"
    assert [item["id"] for item in record["profile"]] == ["cooking_1"]
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())["files"]
    error = capsys.readouterr().err
    assert "note: no authors in train or validation, so these files are not written; add posts, or " in error
    assert "without a category" not in error
    assert [*counts.values()] == [{"questions": 1, "posts in profiles": 1, "reposts of their question, dropped": 1}]


def records_of(out):
    return [record for records in dataset_of(out).values() for record in records]
