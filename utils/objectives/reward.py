"""The reward of GRPO: a judge's score of each sampled answer, as evaluate_responses.py computes it."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils import cli
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.files.output import Piece, Pieces
from utils.generation.calls import Call
from utils.generation.chat import VERDICT_TOKENS
from utils.runs.ask import Ask
from utils.runs.judging import Judging, choose_judge, load_judge, size_judge
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared, Step
from utils.scoring.verdicts import no_answer


def judge_arguments(args: Namespace) -> cli.Arguments:
    """Return evaluate_responses.py's flags for the judge of a training, which keeps its verdicts in --output_dir."""
    parser = cli.make_parser("")
    cli.add_engine_arguments(parser, "--evaluator_llm", "judge")
    cli.add_sampling_arguments(parser, temperature_default=0.0, max_tokens=VERDICT_TOKENS, max_model_len="")
    cli.add_run_arguments(parser, shards=False)
    words = ["--openai", "--completions", str(Path(args.output_dir, "completions"))]
    for name in ("evaluator_llm", "base_url", "api_key_addr", "prompts_dir", "seed"):
        words += [] if getattr(args, name) is None else [f"--{name}", str(getattr(args, name))]
    return parser.parse_args(words).replaced(verdicts=None)


class JudgeReward:
    """Scores texts by the benchmark's first metric; a verdict that was given once is never requested again."""

    __name__ = "score"  # its name in the training's log

    def __init__(self, task: Task, records: Sequence[Record], args: cli.Arguments, judging: Judging, end_of_turn: int):
        """`args` are from `judge_arguments`; `end_of_turn` is the token at which a text is complete."""
        self._task, self._metric, self._args = task, task.first_metric, args
        self._records = {record["id"]: record for record in records}
        self._judging, self._end = load_judge(args, judging), end_of_turn

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float | None]:
        """Return each text's score, 0 to 1: 0 for one without an answer, None if the judge gave no usable verdict.

        Args:
            prompts: the questions' ids.
            completion_ids: the texts' tokens.
        """
        cut = [ids[-1:] != [self._end] for ids in map(list, completion_ids)]
        answers = [self._task.output.parse(text, is_cut).value for text, is_cut in zip(completions, cut, strict=True)]
        verdicts = self._judge([(self._records[key], answer) for key, answer in zip(prompts, answers, strict=True)])
        return [
            self._metric.entry(self._records[key], its)["score"] for key, its in zip(prompts, verdicts, strict=True)
        ]

    def _judge(self, answers: list[tuple[Record, str | None]]) -> list[list[Piece]]:
        """Return the verdicts on each answer, in the order of the metric's keys."""
        judge, chat = self._judging.judge, self._judging.chat
        places = [(number, key) for number, (record, _) in enumerate(answers) for key in self._metric.keys(record)]
        asked = [place for place in places if answers[place[0]][1] is not None]
        calls = []
        for number, key in asked:
            record, answer = answers[number]
            messages = judge.messages(self._judging.prompt, record, [answer], key[1])
            calls.append(Call(key, chat.render(messages), judge.output.parse))
        model, calls = size_judge(self._args, self._judging, calls)
        pieces: Pieces = {}

        async def one(call: Call, ask: Ask) -> Piece:
            return await ask.send("judge", lambda: (model, call, str))

        shared = Shared(self._task, {"judge": Role(self._args, model)}, self._args.seed, num_contexts=0)
        step = Step(one, lambda: dict(zip(asked, calls, strict=True)), "verdicts", pieces, "judge", is_shown=False)
        run_steps([step], shared, closes_stores=False)  # the next step would read all of the store again
        if lacking := len(asked) - len(pieces):
            raise UserError(
                f"the judge's server failed to give {lacking} verdicts; run the same command again to resume"
            )
        found = {place: pieces.get(place) or no_answer([False]) for place in places}
        return [[found[number, key] for key in self._metric.keys(record)] for number, (record, _) in enumerate(answers)]


def choose_reward_judge(args: Namespace, task: Task) -> tuple[cli.Arguments, Judging]:
    """Return the judge's flags and the judge, before anything is loaded; UserError if its key is missing."""
    judge = task.first_metric.judge
    if judge is None:
        raise UserError(f"--objective grpo: {task.name} has no judge; its scores are computed")
    its = judge_arguments(args)
    return its, choose_judge(its, judge)
