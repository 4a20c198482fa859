"""Human evaluation: the draw, the raters' page in Chromium with real clicks and keys, and the collected results."""

import json
import random
import re
from collections import Counter

import pytest
import scipy.stats
from browser import browser, needs_chromium, open_page  # noqa: F401 (fixtures)
from sklearn.metrics import cohen_kappa_score
from test_report import NASTY

from utils import compare_evaluators
from utils.base.errors import UserError
from utils.base.manifest import file_hash
from utils.benchmarks.lampqa.task import CATEGORIES
from utils.benchmarks.scoring import cohens_kappa, krippendorffs_alpha
from utils.human_evaluation import main
from utils.people.agreement import majority
from utils.people.rating_study import draw, draw_swapped, share_out
from utils.tables.formats import signed
from utils.tables.significance import share_interval

COMMUNITIES = {"rpg": 15, "diy": 30, "law": 45}  # questions, each community of another category


class Study:
    """A dataset of ninety questions with two aspects each, two systems' answers, and a study of them."""

    def __init__(self, folder):
        self.folder = folder
        self.records = [self.record(f"{name}_{i}", name) for name, count in COMMUNITIES.items() for i in range(count)]
        self.responses = {name: self.respond(name) for name in ("Alpha", "Beta")}
        self.page, self.key_addr = folder / "study.html", folder / "study_key.json"

    @staticmethod
    def record(question_id, community):
        aspects = [{"aspect": f"{name} of {question_id}", "evidence": f"says {name}", "reason": f"needs {name}"}
                   for name in ("cost", "time")]  # fmt: skip
        texts = {"question": f"Question {question_id}?", "narrative": f"Narrative of {question_id}."}
        return {"id": question_id, **texts, "category": community, "rubric_aspects": aspects, "profile": []}

    def cut(self, number):
        """Keep the first questions."""
        self.records = self.records[:number]
        self.responses = {name: self.respond(name) for name in self.responses}

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value), encoding="utf-8")
        return str(self.folder / name)

    def words(self, *more, ask="pairs"):
        names = {"pairs": ["Alpha", "Beta"], "verdicts": ["Alpha"], "aspects": []}[ask]
        systems = [word for name in names for word in ("--system", name, self.responses[name])]
        inputs = self.write("data.json", self.records)
        return ["--ask", ask, "--inputs_addr", inputs, *systems, "--output_addr", str(self.page), *map(str, more)]

    def make(self, *more, ask="pairs"):
        assert main(self.words("--raters", "Ann", "Bo", *more, ask=ask)) == 0
        assert self.key_addr.stat().st_mode & 0o777 == 0o600  # raters may share the machine
        return json.loads(self.key_addr.read_text())

    def result(self, by, decisions, name=None, **more):
        """Write a result file like the page: decisions by question and slot, as shown."""
        key = json.loads(self.key_addr.read_text())
        answers = [
            {"id": i, "decisions": {slot: {"value": value, "seconds": 2.5} for slot, value in its.items()},
             "comment": "", "changed": 1} for i, its in decisions.items()
        ]  # fmt: skip
        content = {"study": key["study"], "ask": key["ask"], "rater": by, "answers": answers} | more
        return self.write(name or f"{by}.json", content)

    def choose(self, rater, choices, name=None):
        """Write a result of pairs from {question: first, second or tie}."""
        questions = json.loads(self.key_addr.read_text())["questions"]
        numbers = {"first": (1, 2), "second": (2, 1), "tie": (0, 0)}
        shown = {i: {"choice": numbers[choice][questions[i]["swapped"]]} for i, choice in choices.items()}
        return self.result(rater, shown, name)

    def collect(self, *files):
        output = self.folder / "collected.json"
        words = ["--collect", *map(str, files), "--key_addr", str(self.key_addr), "--output_addr", str(output)]
        assert main([*words, "--overwrite"]) == 0
        return json.loads(output.read_text())

    def respond(self, name, **own):
        outputs = {record["id"]: f"{name[0]}-answer to {record['id']}" for record in self.records} | own
        return self.write(f"{name}.json", {i: [{"output": output, "plan": name}] for i, output in outputs.items()})


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def content(page):
    return json.loads(re.search(r'id="study">(.*?)</script', page.read_text("utf-8"), re.S)[1])


def refusal(*words):
    with pytest.raises(UserError) as error:
        main([*map(str, words)])
    return str(error.value)


class Rater:
    """A rater at the page, with mouse and keyboard."""

    def __init__(self, page, folder):
        self.page, self.folder = page, folder
        folder.mkdir(exist_ok=True)
        page.browser.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder),
                          browserContextId=page.profile)  # fmt: skip

    def click(self, selector, number=0):
        find = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.page.run(f"{find}.scrollIntoView({{block: 'center'}})")
        box = self.page.run(f"{find}.getBoundingClientRect().toJSON()")
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def status(self):
        return self.page.texts("#place")[0]

    def question(self):
        return re.search(r"Question (\w+)\?", self.page.run("$('main').innerText"))[1]

    def download(self):
        before = set(self.folder.iterdir())
        self.click("#download")
        new = lambda: [path for path in set(self.folder.iterdir()) - before if path.suffix == ".json"]  # noqa: E731
        [path] = self.wait(lambda: [path for path in new() if path.read_text().endswith("}")])
        return path

    def decide(self, plan, by="digits"):
        """Choose the planned system's answer by its text, because the page does not name systems."""
        question = self.question()
        first, second = self.page.texts(".answer .written")
        wanted = {"first": f"A-answer to {question}", "second": f"B-answer to {question}"}
        assert {first, second} == set(wanted.values())
        place = 0 if plan[question] == "tie" else [first, second].index(wanted[plan[question]]) + 1
        if by == "mouse":
            self.click(f".slot button[value='{place}']")
        else:
            self.press(["0", "ArrowLeft", "ArrowRight"][place] if by == "arrows" else str(place))
        return question

    def load(self, path):
        """Load a file before a rater is chosen, and wait for the page."""
        self.page.run("say('')")
        root = self.page.send("DOM.getDocument")["root"]["nodeId"]
        node = self.page.send("DOM.querySelector", nodeId=root, selector="#load")["nodeId"]
        self.page.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
        self.wait(lambda: self.page.run("rater !== null || !$('said').hidden"))

    def press(self, key):
        event = {"key": key, "windowsVirtualKeyCode": KEY_CODES.get(key, ord(key[0].upper()))}
        for kind in ("rawKeyDown", "keyUp"):
            self.page.send("Input.dispatchKeyEvent", type=kind, **event)

    def wait(self, find):
        """Wait for an element and return it."""
        for _ in range(3000):
            if found := find():
                return found
            self.page.run("new Promise((go) => setTimeout(go, 20))")  # a page behind another one paints nothing
        raise AssertionError(f"not so after a minute: {self.status()}")


@needs_chromium
def test_two_tabs_do_not_lose_each_others_decisions(study, open_page):
    study.make("--draw", 8)
    page = open_page(study.page)
    one = Rater(page, study.folder / "ratings")
    one.click("#main button")
    one.press("1")
    one.wait(lambda: one.status() == "Ann: question 2, 1 of 8 done")
    other_page = open_page(study.page, profile=page.profile)
    other = Rater(other_page, study.folder / "ratings")
    other_page.send("Page.bringToFront")
    other.wait(lambda: other.status())  # else the first key comes before the page listens
    for key, told in (("2", "question 3, 2 of 8 done"), ("0", "question 4, 3 of 8 done")):
        other.press(key)
        other.wait(lambda told=told: other.status() == f"Ann: {told}")
    page.send("Page.bringToFront")
    one.wait(lambda: one.status() == "Ann: question 2, 3 of 8 done")  # with the other tab's two
    for key in "jj1":
        one.press(key)
    one.wait(lambda: "4 of 8 done" in one.status())
    values = [its["decisions"]["choice"]["value"] for its in json.loads(one.download().read_text())["answers"]]
    assert values == [1, 2, 0, 1]


def test_two_raters_with_a_part_each_and_compare_evaluators(study, capsys):
    key = study.make("--draw", 40, "--overlap", 20)
    rng = random.Random(0)
    choices = {name: {i: rng.choice(["first", "second", "tie"]) for i in ids} for name, ids in key["raters"].items()}
    collected = study.collect(*[study.choose(name, its) for name, its in choices.items()])["choices"]
    assert collected == {i: [its[i] for its in choices.values() if i in its] for i in key["questions"]}
    both = [tuple(its) for its in collected.values() if len(its) == 2]
    kappa = signed(cohen_kappa_score(*zip(*both, strict=True)))
    out = capsys.readouterr().out
    counts = Counter(majority(its) for its in collected.values())
    p = scipy.stats.binomtest(counts["first"], counts["first"] + counts["second"]).pvalue
    assert f"(exact, two-sided, without ties): Alpha {counts['first']}, Beta {counts['second']}, p = {p:.4f};" in out
    same = sum(a == b for a, b in both) / 20
    assert f"| choice | Ann and Bo | 20 | 20 | {same:.4f} | Cohen's kappa | {kappa} |" in out
    more = {"answered": [True, True], "result": "tie", "details": [{"preferred": one} for one in ("first", "second")]}
    entries = [{"id": i, "question_sha256": i, **more} for i in key["questions"]]
    scores = {"strategy": "pairwise", "num_unanswered": [0, 0], "per_question_scores": entries}
    pairs = study.write("pairs.json", scores)
    words = ["--human_addr", str(study.folder / "collected.json"), "--evaluator", "Judge", pairs]
    assert compare_evaluators.main(words) == 0
    assert f"Cohen's kappa of the two raters: {kappa} (the paper's two raters: " in capsys.readouterr().out
    # It has the hashes of the answers that people saw, so scores of others are refused.
    settings = {"responses": [file_hash(study.responses["Alpha"]), "another's"]}
    study.write("pairs.json.manifest.json", {"settings": settings, "output_sha256": file_hash(pairs)})
    with pytest.raises(UserError, match="scores different answers from those in"):
        compare_evaluators.main(words)


def test_ratings_are_weighted_and_their_disagreements_listed(study, capsys):
    key = study.make("--draw", 10, "--raters", "Ann", "Bo", "Cy", ask="aspects")
    rng = random.Random(2)
    slots = [*(f"{aspect}.{scale}" for aspect in "01" for scale in ("valid", "important", "evidence")), "complete"]
    given = {name: {i: {slot: rng.randint(1, 5) for slot in slots} for i in ids} for name, ids in key["raters"].items()}
    collected = study.collect(*[study.result(name, its) for name, its in given.items()])
    out = capsys.readouterr().out
    values = [[its[i][f"{a}.valid"] for its in given.values()] for i in key["questions"] for a in "01"]
    ann, bo, _ = zip(*values, strict=True)
    kappa = cohen_kappa_score(ann, bo, weights="quadratic", labels=range(1, 6))
    rows = dict(re.findall(r"^\| valid \| ([^|]+) \| 10 \| 20 \| \S+ \| [^|]+ \| (\S+) \|", out, re.M))
    assert list(rows) == ["Ann and Bo", "Ann and Cy", "Bo and Cy", "all 3"] and rows["Ann and Bo"] == signed(kappa)
    assert collected["means"]["valid"] == pytest.approx(sum(map(sum, values)) / 60)
    lines = re.findall(r"^\| \w+_\d+ \| \w+ \| (?:Question|cost|time)[^|]* \| (\d) \| (\d) \| (\d) \|$", out, re.M)
    gaps = [max(map(int, its)) - min(map(int, its)) for its in lines]
    assert gaps == sorted(gaps, reverse=True)
    values = [{its[i][slot] for its in given.values()} for i in key["questions"] for slot in slots]
    assert len(lines) == sum(len(its) > 1 for its in values)


def judged(study, verdicts, name="scores.json", **more):
    """Write a judge's score file of Alpha's answers from {question: verdicts on its two aspects}."""
    entries = []
    for record in (one for one in study.records if one["id"] in verdicts):
        its = verdicts[record["id"]]
        pairs = zip(record["rubric_aspects"], its, strict=True)
        details = [{"aspect": one["aspect"], "score": score} for one, score in pairs]
        score = None if None in its else sum(its) / 4
        entry = {"id": record["id"], "category": record["category"], "question_sha256": "0", "answered": True}
        entries.append({**entry, "score": score, "details": details})
    return study.write(name, {"score": 0.5, "num_unanswered": 0, "per_question_scores": entries, **more})


def test_raters_are_compared_with_the_judge_by_aspect(study, capsys):
    """Against scikit-learn; one aspect has no verdict by the judge."""
    key = study.make("--draw", 90, ask="verdicts")
    draw_of = random.Random(0)
    said = {i: {"0": draw_of.randrange(3), "1": draw_of.randrange(3)} for i in key["questions"]}
    theirs = {i: [min(2, max(0, its[slot] + draw_of.choice((0, 0, 1)))) for slot in "01"] for i, its in said.items()}
    first = next(iter(said))
    theirs[first][1] = None
    files = [study.result("Ann", said), "--score_addr", judged(study, theirs)]
    found = study.collect(*files)["with_judge"]
    assert found == {i: [[its[slot], theirs[i][int(slot)]] for slot in "01"] for i, its in said.items()}
    pairs = [(i, *pair) for i, its in found.items() for pair in its if pair[1] is not None]
    same, ours, judges = [float(a == b) for _, a, b in pairs], [a for _, a, _ in pairs], [b for *_, b in pairs]
    low, high = share_interval(same, [i for i, *_ in pairs])
    printed = capsys.readouterr().out
    kappa = cohen_kappa_score(ours, judges, weights="quadratic")
    row = f"| All | 90 | 179 | {sum(same) / 179:.4f} | [{low:.4f}, {high:.4f}] | {signed(kappa)} | ["
    assert row in printed and f" | {sum(ours) / 179:.2f} | {sum(judges) / 179:.2f} |" in printed.partition(row)[2]
    assert f"| {CATEGORIES[0]} | 15 | " in printed
    counts = [[sum((a, b) == (one, other) for _, a, b in pairs) for other in range(3)] for one in range(3)]
    missing = [int(one == found[first][1][0]) for one in range(3)]
    for one in range(3):
        assert f"| raters {one} | {' | '.join(map(str, [*counts[one], missing[one]]))} |" in printed


def test_a_category_may_be_called_all_or_be_no_text(study, capsys):
    for number, record in enumerate(study.records):
        record["category"] = ["All", "ice", ["rpg"]][number % 3]
    key = study.make("--draw", 90, ask="verdicts")
    theirs = {record["id"]: [1, 2] if record["category"] == "All" else [0, 1] for record in study.records}
    said = {i: {"0": 1, "1": 2} for i in key["questions"]}
    study.records = [{**record, "category": "ice"} for record in study.records]  # as `judged` writes them
    study.collect(study.result("Ann", said), "--score_addr", judged(study, theirs))
    printed = capsys.readouterr().out
    assert "| All | 30 | 60 | 1.0000 | " in printed and "| All | 90 | 180 | 0.3333 | " in printed
    assert "| ice | 30 | 60 | 0.0000 | " in printed and "| (no category) | 30 | 60 | 0.0000 | " in printed


def test_scores_that_are_not_of_the_rated_answers_are_refused(study):
    study.make("--draw", 90, ask="verdicts")
    ids = [record["id"] for record in study.records]
    result = study.result("Ann", {ids[0]: {"0": 1, "1": 2}})
    words = ["--collect", result, "--key_addr", study.key_addr, "--score_addr"]
    scores = judged(study, {ids[0]: [1, 2]})
    manifest = {"settings": {"responses": "0" * 64}, "output_sha256": file_hash(scores)}
    study.write("scores.json.manifest.json", manifest)
    assert "has scores of different responses from the study's" in refusal(*words, scores)
    means = [{"aspect": one["aspect"], "score": 0.5} for one in study.records[0]["rubric_aspects"]]
    content = json.loads((study.folder / "scores.json").read_text())
    content["per_question_scores"][0] |= {"details": means, "score": 0.25}
    path = study.write("means.json", {**content, "num_verdicts": 2})
    assert "not a verdict" in refusal(*words, path) or "no written verdicts" in refusal(*words, path)
    study.make("--overwrite")
    result = study.result("Ann", {ids[0]: {"choice": 1}})
    assert "a judge is compared only with --ask verdicts" in refusal(*words[:1], result, *words[2:], scores)


def test_verdicts_of_two_raters_are_medians_with_a_seeded_choice(study, capsys):
    key = study.make("--draw", 90, ask="verdicts")
    pairs = [(0, 2), (1, 1), (0, 1), (1, 2)]
    given = [{i: {"0": pairs[n % 4][k], "1": 2} for n, i in enumerate(key["questions"])} for k in range(2)]
    last = list(key["questions"])[-1]
    del given[0][last], given[1][last]["1"]  # no verdict on its second aspect, so it is left out
    collected = study.collect(*map(study.result, ("Ann", "Bo"), given))
    assert "medians; 44 fell between two verdicts, and a fixed seed chose one." in capsys.readouterr().out
    assert collected["responses"] == file_hash(study.responses["Alpha"])
    assert collected["verdicts"].keys() == key["questions"].keys() - {last}
    for n, (one, other) in enumerate(pairs):
        found = Counter(collected["verdicts"][i]["0"] for i in list(key["questions"])[n:-1:4])
        assert found.keys() == ({one, other} if other - one == 1 else {1})
        assert max(found.values()) <= 18 or other - one != 1  # of 22 or 23


@needs_chromium
def test_pairs_are_rated_closed_resumed_and_collected(study, open_page, capsys):
    key = study.make("--draw", 6)
    assert "Alpha" not in study.page.read_text() and "Beta" not in study.page.read_text()
    cells = [("first", "first"), ("first", "first"), ("tie", "tie"), ("second", "second"), ("first", "tie")]
    cells.append(("second", "first"))
    plans = [dict(zip(key["questions"], its, strict=True)) for its in zip(*cells, strict=True)]

    page = open_page(study.page)
    ann = Rater(page, study.folder / "ann")
    assert page.texts("#main button") == ["Ann", "Bo"]
    ann.click("#main button")
    assert ann.status() == "Ann: question 1, 0 of 6 done"
    seen = [ann.decide(plans[0], by) for by in ("mouse", "arrows")]
    # Wrong decisions are undone twice, by key and mouse; in a comment, digits and keys are text.
    wrong = ann.question()
    ann.press("1")
    ann.press("0")
    assert ann.status() == "Ann: question 5, 4 of 6 done"
    ann.press("u")
    ann.click("#undo")
    assert (ann.question(), ann.status()) == (wrong, "Ann: question 3, 2 of 6 done")
    ann.press("c")
    page.send("Input.insertText", text="1 of these, but 2 <b>is</b> close")
    ann.press("u")
    ann.press("Escape")
    seen.append(ann.decide(plans[0]))
    ann.wait(lambda: ann.status() == "Ann: question 4, 3 of 6 done")
    # Another page is another process, and sees what the first one has saved after a while.
    first, page = page, open_page(study.page, profile=page.profile)
    ann = Rater(page, study.folder / "ann")
    while not ann.status():
        page.reload()
    first.send("Page.close")
    page.reload()
    assert ann.status() == "Ann: question 4, 3 of 6 done" and ann.question() not in seen
    seen += [ann.decide(plans[0]) for _ in range(3)]
    assert sorted(seen) == sorted(key["questions"]) and seen == key["raters"]["Ann"]
    assert ann.status() == "Ann: 6 of 6 done"
    anns = ann.download()
    assert page.complaints() == [] and {url.split(":")[0] for url in page.requests()} <= {"file", "blob"}

    bo = Rater(open_page(study.page), study.folder / "bo")  # a separate profile, like another browser
    bo.click("#main button", 1)
    bo.decide(plans[1])
    half = bo.download()
    bo = Rater(open_page(study.page), study.folder / "bo again")  # on another day, in a new browser
    bo.load(half)
    assert bo.status() == "Bo: question 2, 1 of 6 done"
    for _ in range(5):
        bo.decide(plans[1])

    capsys.readouterr()
    choices = study.collect(anns, half, bo.download())["choices"]
    out = capsys.readouterr().out
    assert choices == {i: [plan[i] for plan in plans] for i in key["questions"]}
    # Of both, by majority: first 2, second 1, tie 3. Ann: first 3, tie 1, second 2; Bo: first 3, tie 2, second 1.
    assert "| Alpha | 2 | 0.3333 | 6 |\n| Beta | 1 | 0.1667 | 3 |\n| tie | 3 | 0.5000 | 3 |" in out
    kappa = (4 / 6 - 13 / 36) / (1 - 13 / 36)
    assert f"| choice | Ann and Bo | 6 | 6 | 0.6667 | Cohen's kappa | +{kappa:.4f} | [" in out
    assert f"| {wrong} | Ann | 1 of these, but 2 \\<b>is\\</b> close |" in out


@needs_chromium
def test_texts_of_models_and_users_are_escaped(study, open_page):
    study.cut(2)
    for record in study.records:
        record |= {"question": NASTY, "narrative": NASTY}
        record["rubric_aspects"] = [{"aspect": NASTY, "evidence": NASTY, "reason": NASTY}]
    nasty = dict.fromkeys([record["id"] for record in study.records], NASTY)
    study.responses = {name: study.respond(name, **nasty) for name in ("Alpha", "Beta")}
    for ask, count in (("pairs", 7), ("aspects", 5)):
        more = ["--show", "aspects"] if ask == "pairs" else []
        study.make(*more, "--raters", NASTY, "--overwrite", ask=ask)
        page = open_page(study.page, width=400)
        assert page.run("document.querySelectorAll('img, b, iframe').length") == 0
        texts = page.run("[...document.querySelectorAll('#main .written')].map((part) => part.textContent)")
        assert len(texts) == count and all(NASTY.replace("\0", "␀") in text for text in texts)
        assert page.run("document.documentElement.scrollWidth") <= 400
        assert page.complaints() == [] and len(page.requests()) == 1


def test_draws_are_proportional_to_groups_with_half_of_the_pairs_swapped():
    groups = {f"{name}_{i}": name for name, count in COMMUNITIES.items() for i in range(count)}
    drawn = draw(groups, 100, seed=3)
    assert sorted(drawn) == sorted(groups)
    for length in range(1, 91):
        counts = Counter(groups[i] for i in drawn[:length])
        assert all(abs(counts[name] - length * count / 90) < 1 for name, count in COMMUNITIES.items()), length
    assert draw(dict(reversed(groups.items())), 30, seed=3) == drawn[:30] != draw(groups, 30, seed=4)
    # Studies of two systems are compared on the questions that both have drawn: a missing answer changes few.
    lacking = {question_id: its for question_id, its in groups.items() if question_id not in {"rpg_7", "law_8"}}
    assert len({*draw(groups, 60, seed=0)} & {*draw(lacking, 60, seed=0)}) >= 55
    swapped = draw_swapped(list(groups), groups, seed=1)
    counts = Counter(groups[i] for i in swapped)
    assert counts["rpg"] in (7, 8) and counts["diy"] == 15 and counts["law"] in (22, 23)
    assert swapped != draw_swapped(list(groups), groups, seed=2)
    shares = share_out(drawn[:30], ["Ann", "Bo", "Cy"], 12, seed=0)
    assert Counter(i for its in shares.values() for i in its) == {i: 3 if i in drawn[:12] else 1 for i in drawn[:30]}
    assert len({tuple(i for i in its if i in drawn[:12]) for its in shares.values()}) == 3  # each has its own order


def test_a_study_of_several_raters(study, capsys):
    study.records[0]["rubric_aspects"] = []
    study.responses = {"Alpha": study.respond("Alpha", rpg_1=None, rpg_2=" \n"), "Beta": study.respond("Beta")}
    words = "--draw", 30, "--overlap", 10, "--seed", 5
    key = study.make(*words)
    assert "left out: 2 without an answer\n" in capsys.readouterr().out
    assert [len(ids) for ids in key["raters"].values()] == [20, 20]
    groups = Counter(question["group"] for question in key["questions"].values())
    assert set(groups) == set(CATEGORIES) and abs(groups[CATEGORIES[2]] - 15) <= 1
    assert key["systems"] == [{"name": name, "responses": [file_hash(path)]} for name, path in study.responses.items()]
    for question in content(study.page)["questions"]:
        letters = [answer[0] for answer in question["answers"]]
        assert letters == (["B", "A"] if key["questions"][question["id"]]["swapped"] else ["A", "B"])
    first = study.page.read_bytes()
    study.make(*words)
    assert study.page.read_bytes() == first
    for show, details, aspects in (("question", [], 0), ("details", ["narrative"], 0), ("aspects", ["narrative"], 2)):
        study.make("--draw", 2, "--show", show, "--overwrite")
        for question in content(study.page)["questions"]:
            assert (list(question["details"]), len(question["aspects"])) == (details, aspects)
    study.make("--overwrite", ask="verdicts")
    assert "left out: 1 without aspects, 2 without an answer" in capsys.readouterr().out
    told = "--raters 'Ann' 'Ann': each rater needs a unique name"
    assert refusal(*study.words("--raters", "Ann", " Ann")).startswith(told)


def test_two_files_of_one_rater_are_joined_if_they_agree(study, capsys):
    key = study.make("--draw", 6)
    ids = key["raters"]["Ann"]
    one = study.choose("Ann", dict.fromkeys(ids[:4], "first"), "one.json")
    assert study.collect(one)["choices"] == {i: ["first"] for i in ids[:4]}
    out = capsys.readouterr().out
    assert "| Ann | 6 | 4 |" in out and "- No file from Bo." in out
    other = study.choose("Ann", dict.fromkeys(ids[2:], "first"), "other.json")
    assert study.collect(one, other)["choices"] == {i: ["first"] for i in ids}
    wrong = study.choose("Ann", {ids[0]: "tie"}, "wrong.json")
    message = refusal("--collect", one, wrong, "--key_addr", study.key_addr)
    assert message.startswith(f"{wrong}: id '{ids[0]}': 'choice' is 0, but ")


def test_coefficients_match_krippendorffs_example_and_scikit_learn():
    """Krippendorff 2011, example C and D: four observers, twelve units, missing values."""
    rows = ("111", "2232", "3333", "3333", "2222", "1234", "4444", "1121", "2222", "555", "11", "3")
    questions = [[[int(value) for value in row]] for row in rows]
    assert krippendorffs_alpha(questions).value == pytest.approx(0.743, abs=5e-4)
    assert krippendorffs_alpha(questions, steps=True).value == pytest.approx(0.849, abs=5e-4)
    rng = random.Random(7)
    for steps, weights in ((False, None), (True, "quadratic")):
        pairs = [(rng.randint(1, 5), rng.randint(1, 5)) for _ in range(80)]
        value, (low, high) = cohens_kappa([pairs[i : i + 2] for i in range(0, 80, 2)], steps)
        assert value == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True), weights=weights), abs=1e-12)
        assert low < value < high
    assert cohens_kappa([]) == cohens_kappa([[(1, 1)], [(1, 1)]]) == (None, None)
    # Ten questions without disagreement do not prove that there is none, so there is no interval.
    alike = [[(i % 3, i % 3)] for i in range(10)]
    for coefficient in (cohens_kappa, krippendorffs_alpha):
        assert coefficient(alike) == (1, None) and coefficient([*alike[1:], [(0, 1)]]).interval is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"study": "0" * 64}, "is from study '00000000', but the key is for study "),
        ({"rater": "Cy"}, "is from rater 'Cy', who is not in the study"),
        ({"answers": None}, "not a result file of a study's page"),
        ({"answers": [{"id": "other", "decisions": {}}]}, "the study does not ask 'Ann' this question"),
        ({"answers": [{"decisions": {"choice": {"value": True}}}]}, "Expected `int`, got `bool`"),
        ({"answers": [{"decisions": {"choice": {"value": "\ud800"}}}]}, "not a result file of a study's page"),
        ({"answers": [{"decisions": {"choice": {"value": 3, "seconds": 1}}}]}, "'choice': 3 is not a possible value"),
    ],
)
def test_a_file_that_is_not_a_result_of_the_study_is_refused(study, change, message):
    key = study.make("--draw", 4)
    for answer in change.get("answers") or ():
        answer.setdefault("id", key["raters"]["Ann"][0])
    path, output = study.result("Ann", {}, **change), study.folder / "out.json"
    output.write_text("mine")
    said = refusal("--collect", path, "--key_addr", study.key_addr, "--output_addr", output, "--overwrite")
    assert said.startswith(f"{path}: ") and message in said and output.read_text() == "mine"


def test_the_key_of_a_study_is_not_replaced(study):
    key = study.make("--draw", 4)
    before = study.key_addr.read_bytes(), study.page.read_bytes()
    message = refusal(*study.words("--draw", 5, "--raters", "Ann", "Bo"))
    told = f"{study.key_addr}: is the key of another study, whose results are useless without it"
    assert message.startswith(told)
    result = study.choose("Ann", {key["raters"]["Ann"][0]: "first"})
    words = ["--collect", result, "--key_addr", str(study.key_addr), "--output_addr", study.page]
    assert refusal(*words).startswith(f"{study.page}: ")
    assert (study.key_addr.read_bytes(), study.page.read_bytes()) == before


def test_a_changed_key_is_refused(study):
    study.cut(3)
    key = study.make("--overlap", 3)
    words = ["--collect", study.result("Ann", {}), "--key_addr", study.key_addr]
    key["questions"]["rpg_1"]["swapped"] = "false"
    study.key_addr.write_text(json.dumps(key))
    assert refusal(*words).startswith(f"{study.key_addr}: changed since it was written\n")


KEY_CODES = {"ArrowLeft": 37, "ArrowRight": 39, "Backspace": 8, "Escape": 27}


@needs_chromium
@pytest.mark.parametrize(
    ("ask", "digits", "values"),
    [
        ("verdicts", "20", {"0": 2, "1": 0}),  # as the judge has them
        # Of two aspects each three, and of both together one; 9 is not a value.
        ("aspects", "59432115", {"0.valid": 5, "0.important": 4, "0.evidence": 3, "1.valid": 2, "1.important": 1,
                                 "1.evidence": 1, "complete": 5}),
    ],
)  # fmt: skip
def test_aspects_are_rated_one_after_the_other(ask, digits, values, study, open_page):
    study.cut(2)
    [first, _] = study.make("--raters", "Ann", ask=ask)["raters"]["Ann"]
    ann = Rater(open_page(study.page), study.folder / "ann")
    for digit in digits:
        ann.press(digit)
    assert ann.status() == "Ann: question 2, 1 of 2 done"
    [answer] = json.loads(ann.download().read_text())["answers"]
    assert answer["id"] == first and {slot: its["value"] for slot, its in answer["decisions"].items()} == values
