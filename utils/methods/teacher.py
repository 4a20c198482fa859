"""Answer with the rubric's aspects as private notes: the teacher of GRASP (arXiv 2609.35262), to make training data.

Needs --show_fields rubric_aspects. On a test set, its scores are an upper bound.
"""

from utils.benchmarks.lampqa.task import private_notes


async def answer(record, ask):
    return await ask("teacher", items=record.best(ask.num_contexts), aspects=private_notes(record))
