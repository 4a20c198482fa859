"""From a study to the steps it stands for: which commands make which files of which others. Nothing is looked at here.

  <output>/ranked/<category>_<split>.json, <output>/ranked/<category>_<split>_random.json
  <output>/planner/<category>, with the planner's best checkpoint as <output>/planner/<category>/best
  <output>/generator/<model>/<setting>/<task>/<method>, likewise, where generators are fine-tuned
  <output>/<model>/<split>/<category>/<method>.json and <method>_scores.json
  <output>/own/<split>/<category>/<name>_scores.json, of the user's own methods
  <output>/<model>/<split>/<study>.md, and .png and .pdf where it has a figure

A number of posts other than 10 adds _k4 to the method, a seed other than 0
_seed1, a judge other than Qwen2.5 32B _<judge> to `_scores`: the same piece of work has one name in all studies. A
ranker other than Contriever adds _by_<ranker> to the method and to the ranked file; where scores are computed, a metric
adds _<metric> to `_scores`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from utils.benchmarks import FIRST
from utils.cli import UserError
from utils.studies.study import FIGURES, JUDGE, NUM_CONTEXTS, Study, api_flags, file_name, short_name

TITLES = {
    "none": "No personalization",
    "rag_random": "RAG (random profile)",
    "rag": "RAG (asker's profile)",
    "planpers": "PlanPers",
    "planpers_gold": "PlanPers (gold plans)",
    "ipa": "IPA",
    "fid": "FiD",
}
RANKERS = {  # as rows are called
    "contriever": "Contriever",
    "bm25": "BM25 (Lucene)",
    "bm25-okapi": "BM25",  # as LaMP's paper has it
    "recency": "Recency",
    "random": "Random",
    "hybrid": "Contriever and recency",
}
ENCODED = (None, "contriever", "hybrid")  # rankers with an encoder
FID_CONTEXTS = 16  # of LaMP's paper
OWN = "own"  # in place of a model, in the path of what is scored of the user's own methods
BASELINES = ("none", "rag_random", "rag")
DRAWN = {  # kinds of steps that show score files: their script, and what stands behind the name of what they make
    "table": ("utils/make_table.py", ".md"),
    "agreement": ("utils/compare_evaluators.py", "_agreement.json"),
    "figure": ("utils/make_figures.py", ".png"),
}


@dataclass(frozen=True)
class Step:
    """A command and what it makes."""

    kind: str  # rank, train, answer, judge, table, agreement or figure
    job: str  # its name on a cluster, without the study's output in front
    script: str
    named: dict[str, str]  # the flags that have a variable in utils/slurm
    flags: list[str]  # the other ones
    # What it makes, each with the files it is made from. Several only where kind is judge: responses that are judged in
    # one load of the judge.
    outputs: dict[str, list[str]]
    given: list[str] = field(default_factory=list)  # flags of the study's [arguments]
    after: tuple[str, ...] = ()  # outputs of other steps that it does not read, and that are better made before
    task: str = FIRST  # the benchmark of what it reads

    def words(self, outputs: list[str], overwrite: bool) -> list[str]:
        """The command without the interpreter, for some of its outputs."""
        words = [self.script, *(word for pair in self.named.items() for word in pair), *self.flags, *self.given]
        if self.kind == "judge":
            responses = [self.outputs[output][1] for output in outputs]
            words += ["--response_addr", *responses, "--score_addr", *outputs]
        return [*words, *self.overwrite_flags()] if overwrite else words

    def overwrite_flags(self) -> list[str]:
        """What replaces outputs that were made otherwise, and leaves alone what is finished as the step has it."""
        return ["--overwrite", "changed"] if self.kind in ("rank", "answer", "judge") else ["--overwrite"]


class Answers(NamedTuple):
    """One file of answers: a model with a method on one split of one category."""

    model: str
    split: str
    category: str
    method: str
    num_contexts: int | None  # None without posts
    seed: int
    ranker: str | None = None  # None where the study names none
    given: str | None = None  # the file, where no step makes it

    @property
    def stem(self) -> str:
        if self.given:
            return file_name(self.method)
        posts = "" if self.num_contexts in (None, NUM_CONTEXTS) else f"_k{self.num_contexts}"
        return f"{ranked_by(self.method, self.ranker)}{posts}" + (f"_seed{self.seed}" if self.seed else "")


def plan_study(study: Study) -> list[Step]:
    """All steps of a study, each after those that make what it reads."""
    answers = [
        Answers(*which, method, num_contexts, seed, ranker)
        for *which, method in product(study.all_models, study.splits, study.categories, study.methods)
        for ranker in rankers_of(study, method)
        for num_contexts, seed in product(contexts_of(study, method), study.seeds)
    ]
    own = own_answers(study)
    steps = [step for category in study.categories for step in rank_steps(study, category)]
    if "planpers" in study.methods:
        steps += [train_step(study, category) for category in study.categories]
    if study.fine_tuned:
        chosen_on = {split.partition("_")[0]: split for split in reversed(study.splits)}  # by setting its first one
        steps += [train_generator_step(study, one) for one in answers if one.split in chosen_on.values()]
    steps += [answer_step(study, one) for one in answers]
    judges = study.all_judges or (None,)  # without any, scores are computed
    for judge, split, category in product(judges, study.splits, study.categories):
        mine = [a for a in [*answers, *own] if (a.split, a.category) == (split, category)]
        steps += [judge_step(study, judge, mine)] if judge else metric_steps(study, mine)
    folders = [[a for a in answers if (a.model, a.split) == one] for one in product(study.all_models, study.splits)]
    judged = list(product(folders, judges))
    steps += [table_step(study, mine, judge, [a for a in own if a.split == mine[0].split]) for mine, judge in judged]
    if study.figure == 4:
        steps += evaluator_steps(study, answers)
    elif study.figure:
        steps += [figure_step(study, mine, judge) for mine, judge in judged]
    return steps


def own_answers(study: Study) -> list[Answers]:
    """The response files of the study's [responses], which are judged and tabled as any other."""
    which = product(study.responses.items(), study.splits, study.categories)
    return [
        Answers(OWN, split, category, name, None, 0, given=pattern.format(split=split, category=category))
        for (name, pattern), split, category in which
    ]


def contexts_of(study: Study, method: str) -> tuple[int | None, ...]:
    return {"none": (None,), "ipa": study.ipa_contexts, "fid": (FID_CONTEXTS,)}.get(method, study.num_contexts)


def data_file(study: Study, category: str, split: str) -> str:
    return f"{study.data}/{category}_{split}.json"


def rankers_of(study: Study, method: str) -> tuple[str | None, ...]:
    """Of another user's profile LaMP's paper draws items at random, LaMP-QA's takes the encoder's best."""
    return {"rag": study.rankers or (None,), "rag_random": ("random",) if study.tasks else (None,)}.get(method, (None,))


def ranked_by(name: str, ranker: str | None) -> str:
    """What a split is called as a ranker has it, and a method that reads that."""
    return name if ranker in (None, "contriever") else f"{name}_by_{ranker}"  # _random is another user's profile


def ranked_file(study: Study, category: str, ranked: str) -> str:
    return f"{study.output}/ranked/{category}_{ranked}.json"


def planner_folder(study: Study, category: str) -> str:
    return f"{study.output}/planner/{category}"


def generator_folder(study: Study, answers: Answers) -> str:
    setting, model = answers.split.partition("_")[0], short_name(answers.model)
    return f"{study.output}/generator/{model}/{setting}/{answers.category}/{answers.stem}"


def inputs_of(study: Study, answers: Answers, split: str) -> str:
    """What a method reads of a split."""
    if answers.method == "none":
        return data_file(study, answers.category, split)
    profile = f"{split}_random" if answers.method == "rag_random" else split
    return ranked_file(study, answers.category, ranked_by(profile, answers.ranker))


def answer_file(study: Study, answers: Answers) -> str:
    return answers.given or f"{answers_folder(study, answers)}/{answers.stem}.json"


def answers_folder(study: Study, answers: Answers) -> str:
    return f"{study.output}/{short_name(answers.model)}/{answers.split}/{answers.category}"


def judge_suffix(judge: str | None) -> str:
    return "" if judge is None or short_name(judge) == short_name(JUDGE) else f"_{short_name(judge)}"


def score_file(study: Study, answers: Answers, suffix: str) -> str:
    return f"{answers_folder(study, answers)}/{answers.stem}_scores{suffix}.json"


def score_files(study: Study, answers: Answers, judge: str | None) -> list[str]:
    """One by the judge, or without any one by each metric."""
    suffixes = [judge_suffix(judge)] if judge else [f"_{name}" for name in metrics_of(study, answers.category)]
    return [score_file(study, answers, suffix) for suffix in suffixes]


def metrics_of(study: Study, category: str) -> list[str]:
    """Fine-tuned encoder-decoders are scored by LaMP's rule, from what they wrote."""
    flags = [word.partition("=")[0] for word in study.arguments["train"]]
    encoder_decoders = study.fine_tuned and "--lora_rank" not in flags
    return study.task_of(category).metric_names(official=encoder_decoders)


# Steps


def rank_steps(study: Study, category: str) -> Iterator[Step]:
    """Each split that is read with posts, and with _random the control with another user's profile."""
    splits = list(study.splits) if set(study.methods) != {"none"} else []
    if "planpers" in study.methods:
        splits += [split for split in ("train", "validation") if split not in splits]
    if study.fine_tuned and splits:
        splits += [split for split in (f"{setting}_train" for setting in study.settings) if split not in splits]
    for split in splits:
        yield from rankings(study, category, split)
        if "rag_random" in study.methods and (split in study.splits or study.fine_tuned):
            [ranker] = rankers_of(study, "rag_random")
            # Which has embedded the same posts.
            after = [ranked_file(study, category, split)] if ranker in ENCODED else []
            yield rank_step(study, category, split, f"{split}_random", ranker, ["--random_profile"], *after)


def rankings(study: Study, category: str, split: str) -> Iterator[Step]:
    """Of a split that is read as it is by each ranker that reads it."""
    rankers = rankers_of(study, "rag")
    own = {"none", "rag", *(["rag_random"] if study.tasks else [])}
    if study.rankers and set(study.methods) - own:  # which read what the encoder ranks
        read = "rag" in study.methods and (split in study.splits or study.fine_tuned)
        rankers = tuple(dict.fromkeys([*(rankers if read else ()), "contriever"]))
    for ranker in rankers:
        yield rank_step(study, category, split, split, ranker, [])


def rank_step(
    study: Study, category: str, split: str, name: str, ranker: str | None, flags: list[str], *after: str
) -> Step:
    """Of a split, which is called `name` as the flags have it."""
    ranked = ranked_by(name, ranker)
    inputs, output = data_file(study, category, split), ranked_file(study, category, ranked)
    named = {"--input_dataset_addr": inputs, "--output_dataset_addr": output}
    flags = [*(["--ranker", ranker] if ranker else []), *flags]
    if ranker in ENCODED:
        named = {"--model_name": study.encoder, **named}
        flags = [*(["--embedding_cache", f"{study.output}/embeddings"] if split in study.splits else []), *flags]
    if ranker == "random" or "--random_profile" in flags:
        flags += ["--seed", "0"]
    job, script = f"rank.{category}.{ranked}", "retrieval/rank_dataset.py"
    task = study.task_of(category).name
    return Step("rank", job, script, named, flags, {output: [inputs]}, study.arguments["rank"], after, task)


def train_step(study: Study, category: str) -> Step:
    train, validation = (ranked_file(study, category, split) for split in ("train", "validation"))
    folder = planner_folder(study, category)
    named = {"--model_addr": study.planner_base, "--inputs_addr": train, "--validation_addr": validation}
    named["--output_dir"] = folder
    outputs = {f"{folder}/best": [train, validation]}
    return Step("train", f"train.{category}", "train_planner.py", named, [], outputs, study.arguments["train"])


def train_generator_step(study: Study, answers: Answers) -> Step:
    """Of the model that writes these answers, on the training split with the same inputs."""
    train = inputs_of(study, answers, f"{answers.split.partition('_')[0]}_train")
    validation, folder = inputs_of(study, answers, answers.split), generator_folder(study, answers)
    named = {"--model_addr": answers.model, "--inputs_addr": train, "--validation_addr": validation}
    named["--output_dir"] = folder
    flags = ["--num_contexts", str(answers.num_contexts or 0), *(["--trim_items"] if answers.num_contexts else [])]
    flags += [*(["--fusion", "decoder"] if answers.method == "fid" else []), "--seed", str(answers.seed)]
    job = f"train.{short_name(answers.model)}.{answers.category}.{answers.split}.{answers.stem}"
    outputs, given = {f"{folder}/best": [train, validation]}, study.arguments["train"]
    task = study.task_of(answers.category).name
    return Step("train", job, "utils/train_generator.py", named, flags, outputs, given, task=task)


def answer_step(study: Study, answers: Answers) -> Step:
    category, split, method = answers.category, answers.split, answers.method
    inputs = inputs_of(study, answers, split)
    output = answer_file(study, answers)
    named = {"--model_addr": answers.model, "--inputs_addr": inputs, "--output_addr": output}
    flags = [] if method == "none" else ["--rag", "--num_contexts", str(answers.num_contexts)]
    made_from, script, given = [inputs], "baselines.py", study.arguments["answer"]
    if study.fine_tuned:
        named["--model_addr"] = f"{generator_folder(study, answers)}/best"
        made_from.append(named["--model_addr"])
        flags += ["--trim_items"] if flags else []
    elif method not in BASELINES:
        script, given = "planpers.py", given + study.arguments["planpers"]
    if method == "planpers":
        named["--planner_model"] = f"{planner_folder(study, category)}/best"
        made_from.append(named["--planner_model"])
    elif method == "planpers_gold":
        flags = ["--gold_plan", *flags]
    flags += ["--seed", str(answers.seed)]
    flags += api_flags(study, answers.model) if answers.model in study.openai_models else []
    job = f"answer.{short_name(answers.model)}.{category}.{split}.{answers.stem}"
    return Step("answer", job, script, named, flags, {output: made_from}, given, task=study.task_of(category).name)


def judge_step(study: Study, judge: str, answers: list[Answers]) -> Step:
    """All responses to one file's questions in one load of the judge."""
    category, split = answers[0].category, answers[0].split
    dataset = data_file(study, category, split)
    suffix = judge_suffix(judge)
    outputs = {score_file(study, one, suffix): [dataset, answer_file(study, one)] for one in answers}
    named = {"--evaluator_llm": judge, "--inputs_addr": dataset}
    flags = api_flags(study, judge) if judge in study.openai_judges else []
    job = f"judge.{category}.{split}{suffix.replace('_', '.', 1)}"
    return Step("judge", job, "evaluate_responses.py", named, flags, outputs, study.arguments["judge"])


def metric_steps(study: Study, answers: list[Answers]) -> Iterator[Step]:
    """All responses to one file's questions, by each metric of its task, which are computed."""
    category, split = answers[0].category, answers[0].split
    dataset, task = data_file(study, category, split), study.task_of(category)
    for name in metrics_of(study, category):
        outputs = {score_file(study, one, f"_{name}"): [dataset, answer_file(study, one)] for one in answers}
        job, flags = f"judge.{category}.{split}.{name}", ["--strategy", name]
        given, named = study.arguments["judge"], {"--inputs_addr": dataset}
        yield Step("judge", job, "evaluate_responses.py", named, flags, outputs, given, task=task.name)


# Tables and figures, of the answers of one model to one split


def table_step(study: Study, answers: list[Answers], judge: str | None, own: list[Answers]) -> Step:
    """A row a method, ranker, number of posts and seed, then one for each of the user's own methods."""
    pairs = [(row_title(study, one), path) for one in [*answers, *own] for path in score_files(study, one, judge)]
    names, files = [name for name, _ in pairs], [path for _, path in pairs]
    if taken := {row_title(study, one) for one in answers} & {one.method for one in own}:
        raise UserError(f"{study.path}: responses: {min(taken)!r} is a row of the study itself; give another name")
    baselines = baselines_of({row_title(study, one): one.method for one in [*answers, *own]})
    flags = system_flags(names, files) + (["--baseline", *baselines] if baselines else []) + unscored_flags(study)
    flags += seeds_flags(study, answers) if len(study.seeds) > 1 else []
    if study.paper is not None:
        setting = next(one for one in study.settings if answers[0].split.startswith(f"{one}_"))
        flags += ["--paper", study.paper, "--paper_table", setting]
    return drawn_step(study, "table", answers[0], judge_suffix(judge), flags, files)


def seeds_flags(study: Study, answers: list[Answers]) -> list[str]:
    """A --seeds for each method of these, with its rows."""
    one_seed = replace(study, seeds=(0,))
    methods = dict.fromkeys(row_title(one_seed, one) for one in answers)
    rows = {method: dict.fromkeys(f"{method}, seed {seed}" for seed in study.seeds) for method in methods}
    return [word for method, its in rows.items() for word in ("--seeds", method, *its)]


def row_title(study: Study, answers: Answers) -> str:
    """The method or its ranker, with the number of posts and the seed where the study has several."""
    if answers.given:
        return answers.method
    has_several = len(contexts_of(study, answers.method)) > 1
    title = RANKERS[answers.ranker] if answers.ranker else TITLES[answers.method]
    says_number = has_several or answers.ranker or study.fine_tuned
    if answers.method == "rag_random" and answers.ranker:  # one by the paper
        title, says_number = f"{title}, non-personalized", has_several
    if says_number and answers.num_contexts is not None:
        title += f", k = {answers.num_contexts}"
    return title + (f", seed {answers.seed}" if len(study.seeds) > 1 else "")


def baselines_of(methods: dict[str, str]) -> list[str]:
    """The rows that a table's daggers are against, from the rows' methods; empty where there is nothing to compare.

    Where all are the paper's baselines, the last of them in its order is compared with the others, such as RAG with no
    personalization.
    """
    compared = set(methods.values()).difference(BASELINES) or {max(methods.values(), key=BASELINES.index)}
    return [title for title, method in methods.items() if method in BASELINES and method not in compared]


def system_flags(names: list[str], files: list[str]) -> list[str]:
    """A --system for each name, with its files."""
    systems: dict[str, list[str]] = {}
    for name, path in zip(names, files, strict=True):
        systems.setdefault(name, []).append(path)
    return [word for name, paths in systems.items() for word in ("--system", name, *paths)]


def unscored_flags(study: Study) -> list[str]:
    return ["--unscored_as_zero"] if study.unscored_as_zero else []


def figure_step(study: Study, answers: list[Answers], judge: str) -> Step:
    """Figure 2, 3 or 16."""
    shown = [one for method in FIGURES[study.figure] for one in answers if one.method == method]
    names = [TITLES[one.method] if study.figure == 3 else str(one.num_contexts) for one in shown]
    files = [score_file(study, one, judge_suffix(judge)) for one in shown]
    flags = ["--figure", str(study.figure), *system_flags(names, files), *unscored_flags(study)]
    return drawn_step(study, "figure", answers[0], judge_suffix(judge), flags, files)


def evaluator_steps(study: Study, answers: list[Answers]) -> Iterator[Step]:
    """Figure 4: the judges' agreement with humans, and what they score; nothing without the humans' choices."""
    if study.human_addr is None:
        return
    flags, made_from = ["--human_addr", study.human_addr, *unscored_flags(study)], [study.human_addr]
    for judge, category in product(study.all_judges, study.categories):
        by_method = {one.method: one for one in answers if (one.category, one.seed) == (category, study.seeds[0])}
        files = [score_file(study, by_method[method], judge_suffix(judge)) for method in FIGURES[4]]
        flags += ["--evaluator", short_name(judge), *files]
        made_from += files
    step = drawn_step(study, "agreement", answers[0], "", flags, made_from)
    (agreement,) = step.outputs
    yield step
    yield drawn_step(study, "figure", answers[0], "", ["--figure", "4", "--agreement_addr", agreement], [agreement])


def drawn_step(study: Study, kind: str, one: Answers, suffix: str, flags: list[str], made_from: list[str]) -> Step:
    """What is drawn beside one of the answers that it shows."""
    (script, ending), model = DRAWN[kind], short_name(one.model)
    output = f"{study.output}/{model}/{one.split}/{study.name}{suffix}{ending}"
    job = f"{kind}.{model}.{one.split}.{study.name}{suffix}"
    return Step(kind, job, script, {"--output_addr": output}, flags, {output: made_from})
