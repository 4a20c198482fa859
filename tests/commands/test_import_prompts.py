"""utils/import_prompts.py on a made-up clone, with the public code's names and structure but other texts."""

from pathlib import Path

import pytest

from prompts import choose_lead_in, join_posts, load_prompt, parse_prompt
from utils.base.errors import UserError
from utils.benchmarks.lampqa.plans import gold_text, plan_parser
from utils.benchmarks.lampqa.task import aspect_messages, gold_plan
from utils.import_prompts import main

ROOT = Path(__file__).resolve().parents[2]
FORMATTERS, EVALUATOR = "data/formetters.py", "evaluation/evaluator.py"
NAMES = ["aspect_judge", "no_personalization", "planner", "planpers", "rag"]

# Run or imported, either file would leave a file named "ran", and fail.
RUN = 'open("ran", "w").close()\nraise RuntimeError("this was run")\n'
FORMATTERS_TEXT = (
    RUN
    + '''
import nothing_that_exists

_RAG_SYSTEM_PROMPT = """Greet like a neighbour.
  Reply as {"personalized_answer": ...}.
"""

_RAG_WITH_PLAN_SYSTEM_PROMPT = ("Greet like a neighbour, "
    "and mind the list. ")

_PLANNER_PROMPT = """List what matters.

"""

_RAG_USER_PROMPT = """
~ Earlier ~
{profile}
~ Now ~
{question} {{sic}}
"""

_RAG_WITH_PLAN_USER_PROMPT = """
~ Earlier ~
{profile}

~ Now ~
{question}
~ To cover ~
{aspects}
"""


def get_baseline_no_rag_formatter(tokenizer, proprietary_llm=False):
    def formatter(data):
        for i in range(len(data["question"])):
            user_prompt = data["question"][i]
            chat = [
                {"role": "system", "content": "Just reply.\\n - shortly", "type": "text"},
                {"role": "user", "content": user_prompt, "type": "text"},
            ]
    return formatter


def get_baseline_rag_formatter(tokenizer, num_contexts, train=False):
    def formatter(data):
        for i in range(len(data["question"])):
            user_prompt = data["question"][i]
            profile = "\\n\\n".join(post["text"] for post in best_posts(data, i))
            chat = [
                {"role": "system", "content": _RAG_SYSTEM_PROMPT},
                {"role": "user", "content": _RAG_USER_PROMPT.format(profile=profile, question=user_prompt)},
            ]
            wanted = data["expected_output"][i]
            chat.append({"role": "assistant", "content": wanted})
    return formatter


def get_planner_formatter(tokenizer, num_contexts, train=False):
    def formatter(data):
        for i in range(len(data["question"])):
            user_prompt = data["question"][i]
            profile = "\\n\\n".join(post["text"] for post in best_posts(data, i))
            chat = [
                {"role": "system", "content": _PLANNER_PROMPT},
                {"role": "user", "content": _RAG_USER_PROMPT.format(profile=profile, question=user_prompt)},
            ]
            aspects = ""
            for aspect in data["rubric_aspects"][i]:
                aspects += "- " + aspect["aspect"] + "\\n"
            chat.append({"role": "assistant", "content": f"Here (I think) is what counts.\\n{aspects}"})
    return formatter


def get_generation_with_plan_rag_formatter(tokenizer, num_contexts):
    def formatter(data):
        for i in range(len(data["question"])):
            user_prompt = data["question"][i]
            profile = "\\n\\n".join(post["text"] for post in best_posts(data, i))
            plan = data["plan"][i]
            chat = [
                {"role": "system", "content": _RAG_WITH_PLAN_SYSTEM_PROMPT},
                {"role": "user", "content":
                    _RAG_WITH_PLAN_USER_PROMPT.format(profile=profile, question=user_prompt, aspects=plan)},
            ]
    return formatter
'''
)
EVALUATOR_TEXT = (
    RUN
    + '''
_EVAL_PROMPT_SYSTEM = "Weigh it.\\n" "Reply as {'match_score': 0}."

_EVAL_PROMPT_USER = """
asked: {question}
meant: {details}
said: {response}
sought: {aspects}

Only the number.
"""


def create_eval_prompt(question, details, response, aspect, tokenizer):
    block = f'* {aspect["aspect"]}\\n  why: {aspect["reason"]}\\n  where: {aspect["evidence"]}'
    chat = [
        {"role": "system", "content": _EVAL_PROMPT_SYSTEM},
        {
            "role": "user",
            "content": _EVAL_PROMPT_USER.format(question=question, details=details, response=response, aspects=block),
        },
    ]
'''
)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The folder of a clone, LaMP-QA in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in ((FORMATTERS, FORMATTERS_TEXT), (EVALUATOR, EVALUATOR_TEXT)):
        path = tmp_path / "LaMP-QA" / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "LaMP-QA"


def run(*more):
    return main(["--code_dir", "LaMP-QA", "--output_dir", "prompts_paper", *more])


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def refusal(clone):
    """Return the error for an incomplete clone; nothing may be written."""
    before = sorted(clone.parent.rglob("*"))
    with pytest.raises(UserError) as raised:
        run()
    assert sorted(clone.parent.rglob("*")) == before
    assert len(str(raised.value).splitlines()) <= 3
    return str(raised.value)


QUESTION = "Why {plan}?"
RECORD = {
    "question": QUESTION,
    "narrative": "I wonder.\n",
    "rubric_aspects": [
        {"aspect": "Cost  of it", "reason": "Poor.", "evidence": "wonder"},
        {"aspect": "Time", "reason": "", "evidence": ""},
    ],
}


def contents(messages):
    assert [message["role"] for message in messages] == ["system", "user"]
    return tuple(message["content"] for message in messages)


@pytest.mark.parametrize(
    ("name", "posts", "system", "user"),
    [
        ("no_personalization", [], "Just reply.\n - shortly", "Why {plan}?"),
        ("rag", [], 'Greet like a neighbour.\n  Reply as {"personalized_answer": ...}.\n',
         "\n~ Earlier ~\n\n~ Now ~\nWhy {plan}? {sic}\n"),
        ("planner", ["First.\n\nIts body {profile}.", "Second."], "List what matters.\n\n",  # asked like RAG
         "\n~ Earlier ~\nFirst.\n\nIts body {profile}.\n\nSecond.\n~ Now ~\nWhy {plan}? {sic}\n"),
        ("planpers", ["First."], "Greet like a neighbour, and mind the list. ",
         "\n~ Earlier ~\nFirst.\n\n~ Now ~\nWhy {plan}?\n~ To cover ~\n- Cost\n- Time\n\n"),
    ],
)  # fmt: skip
def test_a_prompt_matches_the_code_exactly(clone, name, posts, system, user):
    run()
    values = {"question": QUESTION, "profile": join_posts(posts), "plan": "- Cost\n- Time\n"}
    prompt = load_prompt(f"lampqa/{name}", "prompts_paper")
    needed = {field: value for field, value in values.items() if f"{{{field}}}" in prompt.user}
    assert contents(prompt.messages(**needed)) == (system, user)


def test_judge_and_planner_target_match_the_code_exactly(clone):
    run()
    prompt = load_prompt("lampqa/aspect_judge", "prompts_paper")
    first, second = (aspect_messages(prompt, RECORD, ["It {aspect}."], i) for i in range(2))
    assert contents(first) == (
        "Weigh it.\nReply as {'match_score': 0}.",
        "\nasked: Why {plan}?\nmeant: I wonder.\n\nsaid: It {aspect}.\nsought: * Cost  of it\n"
        "  why: Poor.\n  where: wonder\n\nOnly the number.\n",
    )
    assert contents(second)[1].endswith("sought: * Time\n  why: \n  where: \n\nOnly the number.\n")
    planner = load_prompt("lampqa/planner", "prompts_paper")
    lead_in = choose_lead_in("reference", planner)
    assert gold_text(gold_plan(RECORD), lead_in) == "Here (I think) is what counts.\n- Cost  of it\n- Time\n"
    assert choose_lead_in("paper", planner) is None
    assert gold_text(gold_plan(RECORD)) == "Cost of it\nTime"
    with pytest.raises(UserError, match=r"(?s)^--planner_target reference: .*utils/import_prompts\.py --code_dir"):
        choose_lead_in("reference", load_prompt("lampqa/planner"))


def test_it_writes_the_five_prompts_once_and_runs_nothing_of_the_clone(clone, capsys):
    assert run() == 0
    out, err = capsys.readouterr()
    assert out == "prompts_paper: no_personalization, rag, planpers, planner, aspect_judge\n"
    assert (
        err == "note: wording differs from commit 504410d: no_personalization, rag, planpers, planner, aspect_judge\n"
    )
    assert sorted(path.name for path in Path("prompts_paper").iterdir()) == [f"{name}.txt" for name in NAMES]
    assert sorted(path.name for path in clone.parent.iterdir()) == ["LaMP-QA", "prompts_paper"]  # and nothing ran
    assert run() == 0
    assert capsys.readouterr().out == "prompts_paper: already finished; skipped\n"
    Path("prompts_paper/rag.txt").write_text("mine")
    assert refusal(clone).startswith("prompts_paper: exists, but does not have these prompts\n")
    assert Path("prompts_paper/rag.txt").read_text() == "mine"


LEAD_IN = "What (she) wants: a+b?\n"


@pytest.mark.parametrize(
    ("text", "cut", "titles", "how"),
    [
        (f"{LEAD_IN}- Cost\n- Time\n", False, ["Cost", "Time"], "strict"),
        (f"{LEAD_IN}- Cost\n- Tim", True, ["Cost"], "repaired"),
        ("- Cost\n- Time", False, ["Cost", "Time"], "strict"),
        (LEAD_IN, False, None, "none"),
    ],
)
def test_titles_are_read_without_the_lead_in(text, cut, titles, how):
    parsed = plan_parser(LEAD_IN)(text, cut)
    assert (parsed.value, parsed.how) == (titles, how)


def test_unreadable_files(clone):
    (clone / FORMATTERS).write_bytes(FORMATTERS_TEXT.replace("neighbour", "voisin bien aimé").encode("latin-1"))
    assert refusal(clone).startswith(f"LaMP-QA/{FORMATTERS}: not UTF-8 text (byte ")
    (clone / FORMATTERS).unlink()
    remedy = "use the supported commit: git -C LaMP-QA checkout 504410d"
    assert "no such file" in refusal(clone) and refusal(clone).endswith(f"\n  {remedy}")
    clone.rename("elsewhere")
    assert refusal(clone) == "LaMP-QA: no such folder\n  clone the public code first (docs/deviations.md)"


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (FORMATTERS, "\n_PLANNER_PROMPT", "\nOLD", "has no constant _PLANNER_PROMPT"),
        (FORMATTERS, "\n_PLANNER_PROMPT", "\n_PLANNER_PROMPT = _PLANNER_PROMPT\nOLD",  # made from itself
         "has no constant _PLANNER_PROMPT"),
        (EVALUATOR, "def create_eval", "def eval", "has no function create_eval_prompt"),
        (EVALUATOR, '"Weigh it.\\n"', 'open("x").read() +', "is not a text"),
        (FORMATTERS, "{profile}\n~ Now", "~ Now", "must contain each of {profile}, {question} exactly once"),
        (FORMATTERS, "{{sic}}", "{{sic}", "ValueError(\"Single '}'"),
        (FORMATTERS, "{{sic}}", "{other}", "KeyError('other')"),
        (FORMATTERS, "{{sic}}", "{question}", "must contain each of {profile}, {question} exactly once"),
        (EVALUATOR, '{aspect["reason"]}', '{why(aspect)}', "is not a text"),
        (FORMATTERS, '"role": "system"', '"role": "developer"', "KeyError('system')"),
        (FORMATTERS, "def get_planner", "\0def get_planner", "without running the code: "),
    ],
)  # fmt: skip
def test_differences_in_the_code_are_named(clone, path, old, new, expected):
    change(clone / path, old, new)
    said = refusal(clone)
    assert said.startswith(f"LaMP-QA/{path}") and expected in said


EXACT = "[system]\n S \n\n\n[user]\n\n{question}\n\n\n[end]\n"


def test_an_exact_prompt_is_everything_between_the_marker_lines():
    prompt = parse_prompt("lampqa/no_personalization", EXACT, "f")
    assert contents(prompt.messages(question="Q")) == (" S \n\n", "\nQ\n\n")
    assert contents(prompt.messages(question="")) == (" S \n\n", "\n\n\n")
    without = parse_prompt("lampqa/no_personalization", EXACT.removesuffix("[end]\n"), "f")
    assert (without.user, without.exact) == ("\n{question}", False)
    for name, target, told in (
        ("planner", "Here:\n{plan} and so on", r"\[assistant\] part must end with \{plan\}$"),
        ("planner", "Here:", r"\[assistant\] part: must contain each of \{plan\} exactly once"),
        ("rag", "Here:\n{plan}", r"must have a \[system\] line with its text, then a \[user\] line with its text$"),
    ):
        text = f"[system]\nS\n[user]\n{{profile}}{{question}}\n[assistant]\n{target}\n[end]\n"
        with pytest.raises(UserError, match=f"^f: .*{told}"):
            parse_prompt(f"lampqa/{name}", text, "f")
