"""Print what LaMP-QA's studies request, as the table in docs/studies_and_slurm.md.

  python utils/study_costs.py

The numbers are computed from the sizes of the data in the paper, because the data are always the same.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prompts import FOLDER
from utils.base import cli
from utils.benchmarks.lampqa.task import paper_files

PER_WORD = 4 / 3  # tokens; a guess, typical of English text
ASPECT_WORDS = 73  # the mean of the 11 aspects in the paper's figures 8 and 9, with evidence and reason
ANSWER, PLAN, VERDICT = 400, 50, 15  # tokens written per request; guesses
PRICE_IN, PRICE_OUT = 0.15, 0.60  # US dollars per million tokens: OpenAI's prices of GPT-4o-mini
METHODS = {  # calls per question: prompt, tokens of the plan in it, tokens written
    "none": [("no_personalization", 0, ANSWER)],
    "rag": [("rag", 0, ANSWER)],
    "planpers": [("planner", 0, PLAN), ("planpers", PLAN, ANSWER)],
    "planpers_gold": [("planpers", PLAN, ANSWER)],
}
COLUMNS = ("study", "requests", "verdicts among them", "tokens in", "tokens out", "USD")


class System(NamedTuple):
    """A method on a split: how often each question is answered, in all and by an API, and judged."""

    method: str
    split: str = "test"
    posts: int = 10
    asked: float = 1
    paid: float = 0
    judged: float = 1


def of_paper(*methods: str, split: str = "test", posts: tuple[int, ...] = (10,)) -> list[System]:
    """Return the systems of a study with the paper's three models, one of them behind an API."""
    return [System(method, split, k, asked=3, paid=1, judged=3) for method in methods for k in posts]


def of_training(answers: int, judged: int, rounds: int = 3, method: str = "rag", share: float = 1) -> list[System]:
    """Return the systems of a study that trains on a share of the questions; numbers are per question and round.

    Each round's policy answers the validation set. The best policy and the baselines answer the test set.
    """
    sampled = System(method, "train", asked=rounds * answers * share, judged=rounds * judged * share)
    validated = System(method, "validation", asked=rounds, judged=rounds)
    return [System("none"), System("rag"), System(method), validated, sampled]


TABLE_2 = ("none", "rag", "rag", "planpers")  # with a random profile too
BY_POSTS = (0, 2, 4, 6, 8, 10)
ROUND = 3000 / 24_333  # QUESTIONS=1000 per category, of all training questions
STUDIES = {  # with the scripts' defaults (docs/beyond_planpers.md); calls are assumed to be as long as RAG's
    "table2.sh": of_paper(*TABLE_2),
    "table3.sh": of_paper(*TABLE_2, split="validation"),
    "figure2.sh": of_paper("planpers", posts=BY_POSTS),
    "figure16.sh": of_paper("planpers", split="validation", posts=BY_POSTS),
    "figure3.sh": [System("planpers"), System("planpers_gold")],
    "figure4.sh": [System("planpers", judged=4), System("rag", judged=4)],
    "random_profiles.sh": of_paper("rag", "rag"),
    "offline_rl.sh": of_training(16, 16),
    "vac.sh": of_training(35, 16),
    "grasp.sh": [*of_training(0, 0, rounds=1)[:4], System("rag", "train", asked=16 * ROUND, judged=8 * ROUND)],
    "pr2.sh": of_training(21, 5, share=ROUND),
    "iap.sh": of_training(9, 8, share=ROUND),
    "planner_rl.sh": [System("planpers"), *of_training(8, 8, method="planpers", share=ROUND)],
    "ranker.sh": [System("none"), System("rag"), System("rag", asked=16), System("rag", "train", asked=16, judged=16)],
}


def main(argv: list[str] | None = None) -> int:
    cli.make_parser(__doc__).parse_args(argv)
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    for name, systems in STUDIES.items():
        requests, verdicts, read, written, usd = map(sum, zip(*map(cost_of, systems), strict=True))
        counts = [f"{float(f'{count:.3g}'):,.0f}" for count in (requests, verdicts, read, written)]
        print(f"| {' | '.join([f'`{name}`', *counts, f'{usd:.2f}' if usd else '–'])} |")
    return 0


def cost_of(system: System) -> tuple[float, float, float, float, float]:
    """Return a system's requests in all, its requests to the judge, tokens in and out, and US dollars."""
    requests = verdicts = read = written = usd = 0.0
    for row in (row for row in paper_files().values() if row["split"] == system.split):
        (asks, _), (tells, _), (aspects, _) = (row[name] for name in ("question", "narrative", "rubric_aspects"))
        asked, judged = row["questions"] * system.asked, row["questions"] * aspects * system.judged
        for prompt, plan, output in METHODS[system.method]:
            text = text_of(prompt)
            # A guess: posts of the profile are as long as a question and its narrative.
            words = len(text.split()) + asks + ("{profile}" in text) * system.posts * (asks + tells)
            length = PER_WORD * words + plan
            requests, read, written = requests + asked, read + asked * length, written + asked * output
            usd += row["questions"] * system.paid * (length * PRICE_IN + output * PRICE_OUT) / 1e6
        words = len(text_of("aspect_judge").split()) + asks + tells + ASPECT_WORDS
        requests, verdicts = requests + judged, verdicts + judged
        read, written = read + judged * (PER_WORD * words + ANSWER), written + judged * VERDICT
    return requests, verdicts, read, written, usd


def text_of(prompt: str) -> str:
    return (FOLDER / f"lampqa/{prompt}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    cli.run_script(main)
