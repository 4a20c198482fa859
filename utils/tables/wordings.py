"""Whose words stood in the prompts behind score files, as manifests tell it, and what held outputs to a schema.

Some of our prompts are in our own words (prompts/README.md); who compares with a published score has to know of which.
"""

from collections.abc import Iterable

from prompts import wording
from utils.files.manifest import manifest_of
from utils.tables.system_scores import System

NOT_KNOWN = "not known"
PUBLISHED = ("the paper's", "the public code's")

Told = dict[str, dict[str, dict[str, None]]]  # of a prompt or a kind of output what is told, and of which systems


def wording_note(systems: Iterable[System]) -> str:
    """A line for the readers of a table that is set beside the paper's."""
    judge, answers, constrained = collect(systems)
    text = f"Wording of the judge's prompt: {_listed(judge)}; of the answers': {_listed(answers)}."
    if any(told not in PUBLISHED for table in (judge, answers) for its in table.values() for told in its):
        text += " Levels need not be the paper's."
    return f"{text} Constrained decoding: {_listed(constrained)}; the paper's code has none."


def wording_columns(system: System) -> dict[str, str]:
    """The same of one system, for a table without notes."""
    names = ("Judge prompt", "Answer prompts", "Constrained decoding")
    return {name: _listed(table) for name, table in zip(names, collect([system]), strict=True)}


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
    manifest = manifest_of(path) or {"fingerprint": {}}
    fingerprint, [origin] = manifest["fingerprint"], manifest.get("answers") or [None]
    answers = origin or {"prompt": {}, "constrained_decoding": NOT_KNOWN}
    told = [
        {name: wording(name, digest) for name, digest in prompts.items()} or {"prompt": NOT_KNOWN}
        for prompts in (fingerprint.get("prompt", {}), answers["prompt"])
    ]
    judged = fingerprint.get("constrained_decoding", NOT_KNOWN)
    return *told, {"judge": judged, "answers": answers["constrained_decoding"]}


def _listed(table: Told) -> str:
    """`rag the paper's, planpers our own (PlanPers), another (Ours)`"""
    parts = []
    for name, its in table.items():
        by_system = ", ".join(f"{told} ({', '.join(names)})" for told, names in its.items())
        parts.append(f"{name} {by_system if len(its) > 1 else next(iter(its))}")
    return ", ".join(parts)
