"""Notes: what a reader must know before comparing the numbers of systems, a line each."""

from collections.abc import Sequence
from itertools import combinations

from utils.cli.errors import quote
from utils.parsing.plans import one_line
from utils.scoring.means import mean, scores_by_group
from utils.tables.columns import MACRO, column_means
from utils.tables.formats import counted, number, plural
from utils.tables.system_scores import (
    System,
    check_same_content,
    check_same_judge,
    check_same_questions,
    read_systems,
)


def read_compared(
    arguments: list[list[str]], unscored_as_zero: bool = False, allow_partial: bool = False
) -> tuple[list[System], list[str]]:
    """The systems of every `[name, file, ...]`, and what of them is not in the numbers.

    Raises:
        UserError: as `read_systems`, or they are not scored alike, or, unless `allow_partial`, on other questions.
    """
    systems = read_systems(arguments, unscored_as_zero)
    unknown_judge = check_same_judge(path for system in systems for path in system.paths)
    check_same_content((question, system.paths) for system in systems for question in system.questions)
    if not allow_partial:
        check_same_questions(systems)
    notes = [note for system in systems for note in _notes_on_system(system, unscored_as_zero)]
    notes += ["Scores are errors: lower is better."] if systems[0].metric.lower_is_better else []
    notes += [*_notes_on_groups(systems), *_note_on_different_questions(systems), *_note_on_order(systems)]
    return systems, notes + judge_notes(unknown_judge)


def _notes_on_system(system: System, unscored_as_zero: bool) -> list[str]:
    notes = []
    unit = next(iter(system.task.metrics.values())).unit
    worst = system.metric.worst
    treatment = "they count 0" if unscored_as_zero else "these questions are left out of its means"
    if unanswered := system.num_unanswered():
        verb = "counts" if unanswered == 1 else "count"
        notes.append(f"{system.name}: {counted(unanswered, 'question')} without an answer, which {verb} {worst}.")
    if missing := system.unscored():
        units, questions = counted(sum(missing), unit), counted(len(missing), "question")
        notes.append(f"{system.name}: {units} without a verdict, in {questions}; {treatment}.")
    if system.partial_files:
        notes.append(f"{system.name}: scored only in part in {_first_five(system.partial_files)}.")
    if empty := [question["id"] for question in system.questions if not question["details"]]:
        questions = counted(len(empty), "question")
        notes.append(f"{system.name}: {questions} without {plural(unit)}, not scored: {_first_five(empty)}.")
    return notes


def _notes_on_groups(systems: list[System]) -> list[str]:
    """Of whom a file is not of one group, as a hub's may be, and which subgroups are of no known one."""
    task = systems[0].task
    group_word, _, subgroup_word = task.group_words
    mixed: dict[str, dict[str, None]] = {}  # names by what a file holds: those of all systems have the same questions
    for system in systems:
        for entries in system.files.values():
            places = {
                (entry["group"], entry["subgroup"]) for entry in entries if entry["group"] and "subgroup" in entry
            }
            found = {group: sorted(name for its, name in places if its == group) for group in task.groups}
            held = [f"{group} ({', '.join(names)})" for group, names in found.items() if names]
            if len(held) > 1:
                mixed.setdefault("; ".join(held), {})[system.name] = None
    notes = [
        f"Questions of more than one {group_word} in one score file, {_first_five(list(names))}: {held}."
        for held, names in mixed.items()
    ]
    unplaced = {e["id"]: e for system in systems for e in system.entries if e["group"] is None}.values()
    if unplaced:
        names = ", ".join(sorted({quote(entry.get("subgroup")) for entry in unplaced}))
        notes.append(
            f"Warning: {counted(len(unplaced), 'question')} in no column, for no {group_word} is known for the "
            f"{subgroup_word} {one_line(names)}; {task.facts} has the {plural(subgroup_word)}."
        )
    return notes


def _note_on_different_questions(systems: list[System]) -> list[str]:
    all_ids = set().union(*(system.asked_ids() for system in systems))
    lacking = {system.name: len(all_ids) - len(system.asked_ids()) for system in systems}
    if not any(lacking.values()):
        return []
    parts = ", ".join(f"{name} lacks {count} of {len(all_ids)}" for name, count in lacking.items() if count)
    return [f"Warning: not all systems were scored on the same questions; their numbers do not compare: {parts}."]


def _note_on_order(systems: list[System]) -> list[str]:
    """The means over questions, which evaluate_responses.py prints, where two systems change places by them."""
    over_questions = {}
    for system in systems:
        if system.metric.pooled is not None:
            return []  # it has no mean over questions
        scores = scores_by_group(system.questions, system.task.groups)
        over_questions[system.name] = mean([score for its in scores.values() for score in its])
    macro = {system.name: column_means(system).get(MACRO) for system in systems}
    known = [(macro[name], over_questions[name]) for name in macro if macro[name] is not None]
    if not any((one[0] - other[0]) * (one[1] - other[1]) < 0 for one, other in combinations(known, 2)):
        return []
    means = ", ".join(f"{name} {number(its_mean)}" for name, its_mean in over_questions.items())
    return [f"Over all questions, which is not the macro average, systems stand in another order: {means}."]


def judge_notes(unknown: list[str]) -> list[str]:
    """On the files of which it is not known how they were judged."""
    if not unknown:
        return []
    return [f"Not known by which judge and prompt: {_first_five(unknown)} (no manifest beside it, or changed since)."]


def _first_five(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names[:5])) + (", ..." if len(names) > 5 else "")
