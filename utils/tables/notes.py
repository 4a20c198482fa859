"""Notes: what a reader must know before comparing the numbers of systems, a line each."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations
from typing import Any

from prompts import FOLDER, load_prompt
from utils.benchmarks.lampqa import PUBLIC_CODE, VERBATIM
from utils.cli.errors import printable, quote
from utils.files.manifest import manifest_of
from utils.parsing.plans import one_line
from utils.parsing.thoughts import UNFINISHED_COUNT
from utils.scoring.means import mean, scores_by_group
from utils.tables import system_scores
from utils.tables.columns import MACRO, column_means
from utils.tables.divisions import divide
from utils.tables.formats import counted, number, plural
from utils.tables.judge_settings import check_same_judge
from utils.tables.system_scores import Board, System, few

NOT_KNOWN = "not known"
PUBLISHED = ("the paper's", "the public code's")

Told = dict[str, dict[str, dict[str, None]]]  # of a prompt or a kind of output what is told, and of which systems


def print_notes(notes: Iterable[str]) -> None:
    """To stderr, where the output itself has no place for them."""
    print("".join(f"note: {printable(note)}\n" for note in notes), file=sys.stderr, end="")


def read_compared(
    arguments: list[list[str]], unscored_as_zero: bool = False, allow_partial: bool = False, by: str | None = None
) -> tuple[list[Board], list[str]]:
    """The systems of every `[name, file, ...]`, by task and metric, and what of them is not in the numbers.

    Args:
        by: one of the benchmark's divisions, whose values are the groups; None: its own groups.

    Raises:
        UserError: as `read_boards`, or they are not scored alike, or, unless `allow_partial`, on other questions.
    """
    boards = system_scores.read_boards(arguments, unscored_as_zero)
    unknown: list[str] = []  # files of which it is not known how they were judged
    for board in boards:
        paths = check_same_judge(path for system in board.systems for path in system.paths)
        unknown += paths if board.metric.judge else []  # what is computed, is so in one way
    for name in dict.fromkeys(board.task.name for board in boards):
        systems = [system for board in boards if board.task.name == name for system in board.systems]
        contents = ((question, system.paths) for system in systems for question in system.questions)
        system_scores.check_same_content(contents)
        if not allow_partial:
            system_scores.check_same_questions(systems)
        system_scores.check_same_responses(systems)
    if by is not None:
        boards = [divide(board, by) for board in boards]
    notes = dict.fromkeys(board.note(note) for board in boards for note in _notes_on_board(board, unscored_as_zero))
    return boards, [*notes, *_notes_on_gaps(boards), *judge_notes(unknown)]


def _notes_on_board(board: Board, unscored_as_zero: bool) -> Iterator[str]:
    systems = board.systems
    for system in systems:
        yield from _notes_on_system(system, unscored_as_zero)
    if (strategy := systems[0].strategy_in_words) not in (None, board.metric_name):
        yield f"Verdicts of another kind than the paper's: {strategy}."
    if board.metric.lower_is_better:
        yield "Scores are errors: lower is better."
    yield from _notes_on_groups(systems)
    yield from _note_on_different_questions(systems)
    yield from _note_on_order(systems)


def _notes_on_gaps(boards: list[Board]) -> Iterator[str]:
    """Of which tasks and metrics a row has no scores."""
    for name in boards[0].rows:
        if lacking := [board.title for board in boards if name not in [system.name for system in board.systems]]:
            yield f"{name}: no scores of {'; '.join(lacking)}."


def _notes_on_system(system: System, unscored_as_zero: bool) -> Iterator[str]:
    unit = next(iter(system.task.metrics.values())).unit
    if unanswered := system.num_unanswered():
        verb = "counts" if unanswered == 1 else "count"
        yield f"{system.name}: {counted(unanswered, 'question')} without an answer, which {verb} {system.metric.worst}."
    if unreadable := sum(map(system.metric.is_unreadable, system.questions)):
        verb = "counts" if unreadable == 1 else "count"
        yield f"{system.name}: {counted(unreadable, 'unreadable answer')}, which {verb} {system.metric.worst}."
    if system.num_truncated:
        yield f"{system.name}: {counted(system.num_truncated, 'answer')} cut at --max_tokens, scored like whole ones."
    if system.num_selected:
        told = f"{counted(system.num_selected, 'response')} selected by their scores"
        yield f"{system.name}: {told}, so this is no fair system: no dagger, and never bold."
    if missing := system.unscored():
        units, questions = counted(sum(missing), unit), counted(len(missing), "question")
        treatment = "they count 0" if unscored_as_zero else "these questions are left out of its means"
        yield f"{system.name}: {units} without a verdict, in {questions}; {treatment}."
    manifests = [manifest_of(path) or {} for path in system.paths]
    origins = [origin or {} for manifest in manifests for origin in manifest.get("answers") or []]
    unfinished = {"answer": origins, "verdict": manifests}
    counts = {noun: sum(told.get(UNFINISHED_COUNT, 0) for told in its) for noun, its in unfinished.items()}
    if told := " and ".join(counted(count, noun) for noun, count in counts.items() if count):
        yield f"{system.name}: {told} missing because of unfinished thoughts."
    if any("chose_checkpoint" in origin for origin in origins):
        yield f"{system.name}: optimistic, for these questions chose its generator's checkpoint."
    for selection in dict.fromkeys(describe_selection(one["selected_by"]) for one in origins if "selected_by" in one):
        yield f"{system.name}: {selection}."
    if system.partial_files:
        yield f"{system.name}: scored only in part in {_few(system.partial_files)}."
    if empty := [question["id"] for question in system.questions if not question["details"]]:
        yield f"{system.name}: {counted(len(empty), 'question')} without {plural(unit)}, not scored: {_few(empty)}."


def describe_selection(by: dict[str, Any]) -> str:
    """What responses are worth that utils/select_responses.py selected, by `selected_by` of their manifest."""
    scorer, shown = (by["judge"], "rubric") if by["judge"] else (by["strategy"], "reference")
    bound = "an upper bound" if by["which"] == "best" else "a lower bound"
    which = f"the {by['which']} of {by['samples']} by the scores of {scorer}"
    unscored = f"; {counted(by['unscored'], 'sample')} had no score" if "unscored" in by else ""
    return f"{bound}, as each response is {which}, which saw the {shown} ({', '.join(by['saw'])}){unscored}"


def _notes_on_groups(systems: list[System]) -> Iterator[str]:
    """Of whom a file is not of one group, as a hub's may be, and which subgroups are of no known one."""
    task = systems[0].task
    group_word, _, subgroup_word = task.group_words
    mixed: dict[str, dict[str, None]] = {}  # names by what a file holds: those of all systems have the same questions
    for system in systems:
        for entries in system.files.values():
            places = {(one["group"], one["subgroup"]) for one in entries if one["group"] and "subgroup" in one}
            found = {group: sorted(name for its, name in places if its == group) for group in task.groups}
            held = [f"{group} ({', '.join(names)})" for group, names in found.items() if names]
            if len(held) > 1:
                mixed.setdefault("; ".join(held), {})[system.name] = None
    for held, names in mixed.items():
        yield f"Questions of more than one {group_word} in one score file, {_few(names)}: {held}."
    if unplaced := {e["id"]: e for system in systems for e in system.entries if e["group"] is None}.values():
        names = ", ".join(sorted({quote(entry.get("subgroup")) for entry in unplaced}))
        yield (
            f"Warning: {counted(len(unplaced), 'question')} in no column, for no {group_word} is known for the "
            f"{subgroup_word} {one_line(names)}; {task.facts} has the {plural(subgroup_word)}."
        )


def _note_on_different_questions(systems: list[System]) -> Iterator[str]:
    all_ids = set().union(*(system.asked_ids() for system in systems))
    lacking = {system.name: len(all_ids) - len(system.asked_ids()) for system in systems}
    if parts := ", ".join(f"{name} lacks {count} of {len(all_ids)}" for name, count in lacking.items() if count):
        yield f"Warning: not all systems were scored on the same questions; their numbers do not compare: {parts}."


def _note_on_order(systems: list[System]) -> Iterator[str]:
    """The means over questions, which evaluate_responses.py prints, where two systems change places by them."""
    over_questions = {}
    for system in systems:
        if system.metric.pooled is not None:
            return  # it has no mean over questions
        scores = scores_by_group(system.questions, system.task.groups)
        over_questions[system.name] = mean([score for its in scores.values() for score in its])
    macro = {system.name: column_means(system).get(MACRO) for system in systems}
    known = [(macro[name], over_questions[name]) for name in macro if macro[name] is not None]
    if any((one[0] - other[0]) * (one[1] - other[1]) < 0 for one, other in combinations(known, 2)):
        means = ", ".join(f"{name} {number(its_mean)}" for name, its_mean in over_questions.items())
        yield f"Over all questions, which is not the macro average, systems stand in another order: {means}."


def judge_notes(unknown: list[str]) -> list[str]:
    """On the files of which it is not known how they were judged."""
    told = f"Not known by which judge and prompt: {_few(unknown)} (no manifest beside it, or changed since)."
    return [told] if unknown else []


def _few(names: Iterable[str]) -> str:
    return few(list(map(one_line, names)))


# Whose words stood in the prompts behind score files, as manifests tell it, and what held outputs to a schema. Some of
# our prompts are in our own words (prompts/README.md): who compares with a published score has to know of which.


def wording_note(systems: Iterable[System]) -> str:
    """A line for the readers of a table that is set beside the paper's."""
    systems = list(systems)
    judge, answers, constrained = collect(systems)
    if any(system.metric.judge for system in systems):
        text = f"Wording of the judge's prompt: {_listed(judge)}; of the answers': {_listed(answers)}."
    else:
        text = f"Wording of the answers' prompts: {_listed(answers)}."
        del constrained["judge"]
    if any(told not in PUBLISHED for table in (judge, answers) for its in table.values() for told in its):
        text += " Levels need not be the paper's."
    return f"{text} Constrained decoding: {_listed(constrained)}; the paper's code has none."


def wording_columns(systems: Iterable[System]) -> dict[str, str]:
    """The same of one row, for CSV, which has no place for notes."""
    names = ("Judge prompt", "Answer prompts", "Constrained decoding")
    return {name: _listed(table) for name, table in zip(names, collect(systems), strict=True)}


def collect(systems: Iterable[System]) -> tuple[Told, Told, Told]:
    """By prompt whose words it was in, of the judge and of the answers; and --constrained_decoding of both."""
    tables: tuple[Told, Told, Told] = {}, {}, {}
    for system in systems:
        for path in system.paths:
            for table, facts in zip(tables, _facts(path), strict=True):
                for name, told in facts.items():
                    table.setdefault(name, {}).setdefault(told, {})[system.name] = None
    return tables


def _facts(path: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """What the manifest beside a score file tells."""
    manifest = manifest_of(path) or {"settings": {}}
    settings, [origin] = manifest["settings"], manifest.get("answers") or [None]
    answers = origin or {"prompt": {}, "constrained_decoding": NOT_KNOWN}
    told = [
        {name: wording(name, digest) for name, digest in prompts.items()} or {"prompt": NOT_KNOWN}
        for prompts in (settings.get("prompt", {}), answers["prompt"])
    ]
    judged = "no text" if settings.get("verdicts") else settings.get("constrained_decoding", NOT_KNOWN)
    return *told, {"judge": judged, "answers": answers["constrained_decoding"]}


@cache
def wording(name: str, digest: str) -> str:
    """Whose words a prompt of this name and hash is in, which a manifest's `prompt` has: one of `PUBLISHED`, or not."""
    if digest == PUBLIC_CODE.get(name):
        return "the public code's"
    if digest not in {hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob(f"*/{name}.txt")}:
        return "another"
    return "the paper's" if name in VERBATIM and digest == load_prompt(f"lampqa/{name}").digest else "our own"


def _listed(table: Told) -> str:
    """`rag the paper's, planpers our own (PlanPers), another (Ours)`"""
    parts = []
    for name, its in table.items():
        by_system = ", ".join(f"{told} ({', '.join(names)})" for told, names in its.items())
        parts.append(f"{name} {by_system if len(its) > 1 else next(iter(its))}")
    return ", ".join(parts)
