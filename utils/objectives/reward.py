"""The reward of GRPO: a judge's score of each sampled answer, as evaluate_responses.py computes it."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils import cli
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.files.output import Output, Piece
from utils.generation.chat import VERDICT_TOKENS
from utils.generation.engines import open_api
from utils.records.responses import are_answered
from utils.runs.ask import Ask
from utils.runs.judging import JudgeModel, Request, choose_judge
from utils.runs.runner import make_pieces
from utils.runs.stage import Stage
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

    def __init__(self, task: Task, records: Sequence[Record], model: JudgeModel, end_of_turn: int):
        """`end_of_turn` is the token at which a text is complete."""
        self._task, self._metric, self._args = task, task.first_metric, model.flags
        self._records = {record["id"]: record for record in records}
        self._model, self._end = model, end_of_turn

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
            self._metric.entry(self._records[key], answer_verdicts)["score"]
            for key, answer_verdicts in zip(prompts, verdicts, strict=True)
        ]

    def _judge(self, answers: list[tuple[Record, str | None]]) -> list[list[Piece]]:
        """Return the verdicts on each answer, in the order of the metric's keys."""
        requests = {
            key if len(answers) == 1 else (number, *key): Request(record, [answer], key[1])
            for number, (record, answer) in enumerate(answers)
            for key in self._metric.keys(record)
        }
        outputs = [Output("", {}, self._metric.keys(record), None, "verdicts", self._args) for record, _ in answers]

        async def judge(request: Request, ask: Ask) -> Piece:
            if not all(answered := are_answered(request.outputs)):
                return no_answer(answered)
            return await ask.messages(self._model.messages(request), self._model.judge.output)

        stage = Stage(self._task, lambda: requests, judge, outputs, {"judge": self._model})
        make_pieces([stage], self._args, open_api, is_inner=True)
        if lacking := sum(len(output.missing()) for output in outputs):
            raise UserError(
                f"the judge's server failed to give {lacking} verdicts; run the same command again to resume"
            )
        return [[output.pieces[key] for key in output.keys] for output in outputs]


def choose_reward_judge(args: Namespace, task: Task) -> JudgeModel:
    """Return the judge, before anything is loaded; UserError if its key is missing."""
    if (judge := task.first_metric.judge) is None:
        raise UserError(f"--objective grpo: {task.name} has no judge; its scores are computed")
    return choose_judge(judge_arguments(args), judge)
