"""Average scores over the same questions, computed as in a table, to choose between models."""

from utils.base.errors import UserError, count_noun
from utils.benchmarks import tasks
from utils.data.scores import Scores
from utils.tables.columns import MACRO, mean_score, scored, strata_of
from utils.tables.comparable import check_same_content, check_same_judge
from utils.tables.groups import with_own_groups
from utils.tables.system_scores import System


def compare_averages(scores: dict[str, Scores]) -> tuple[list[float], str]:
    """Return each file's average over the questions that have a score in all files, and their number in words.

    The macro average is over the groups with such questions. UserError if the files are not comparable.
    """
    check_same_judge(scores)
    first_addr, first = next(iter(scores.items()))
    task, scores = with_own_groups(tasks()[first["task"]], scores)
    systems = {path: System(path, task, first["strategy"], {path: file_scores}) for path, file_scores in scores.items()}
    check_same_content((entry, system.files) for system in systems.values() for entry in system.entries)
    ids = [{entry["id"] for entry in system.entries} for system in systems.values()]
    for path, judged_ids in zip(systems, ids, strict=True):
        if judged_ids != ids[0]:
            raise UserError(f"{path}: has scores of different questions from {first_addr}; judge the same questions")
    common = set.intersection(*({entry["id"] for entry in scored(system.questions)} for system in systems.values()))
    if not common:
        raise UserError(f"{', '.join(scores)}: no question has a score in every file; judge the answers again")
    averages = []
    for system in systems.values():
        entries = [entry for entry in system.questions if entry["id"] in common]
        strata = strata_of(task, entries)
        average = strata.get(MACRO) or list(strata.values())[-1]
        averages.append(mean_score(system.metric, [stratum for stratum in average if stratum]))
    return averages, f"{len(common)} of {count_noun(len(ids[0]), 'question')} with a score in every file"
