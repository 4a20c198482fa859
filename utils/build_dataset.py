"""Build a dataset in LaMP-QA's form from questions of StackExchange communities (paper, section 3).

  python utils/build_dataset.py --model_addr google/gemma-2-27b-it --output_dir built \\
      --posts_addr dumps/cooking/Posts.xml dumps/travel/Posts.xml dumps/law/Posts.xml
  python utils/build_dataset.py --model_addr gpt-4o-mini --openai --api_key_addr key.txt --output_dir built \\
      --posts_addr SE-PQA/train/data.jsonl SE-PQA/val/data.jsonl SE-PQA/test/data.jsonl

Each step writes a file to --output_dir: posts.sqlite (all posts), candidates.json, factoid_filter.json (whether a good
answer depends on who asks), aspects.json (what the asker cares about), evidence.json (the aspects whose evidence is in
the post), splits.json, and <category>_<split>.json, the dataset for all other scripts. counts.json has the numbers of
kept and dropped records of each step, and to_read.html shows a sample of each. Run the same command again to resume;
with more --posts_addr, it asks only about new posts. --dry_run makes the files up to candidates.json, which need no
model.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, first_five, quote
from utils.base.json_files import read_json, read_toml
from utils.base.made import say_finished
from utils.base.manifest import file_hash
from utils.base.writing import Lock, write_array
from utils.benchmarks.checks import Record, check_field
from utils.benchmarks.lampqa import task as lampqa
from utils.building import asking as parsing
from utils.building import reading_page
from utils.building.asking import Question, count_outputs, stages_of
from utils.building.candidates import SPLITS, Terms, choose, draw_order, profile_of, split_of
from utils.building.evidence import keep_found
from utils.building.index import PostIndex
from utils.building.posts import COMMUNITY, Post
from utils.building.reading_page import Section, Shown
from utils.building.steps import Counts, Steps, format_counts
from utils.runs.driver import are_complete, run_stages

SCRIPT = "utils/build_dataset.py"
Files = dict[str, list[str]]  # by the name of a category's files, its communities
FOUND = {  # counts of aspects, by how their evidence was found
    "exact": "aspects with exact evidence",
    "tolerant": "aspects with evidence that is exact except for white space and quotation marks",
    "shortened": "aspects with evidence that leaves out some of the post",
    "nowhere": "aspects without evidence in the post, dropped",
}

FILTER = Question(
    step="factoid_filter",
    prompt="lampqa/factoid_filter",
    schema=parsing.NEEDS_SCHEMA,
    parse=parsing.parse_needs,
    field="needs_personalization",
    unit="filter outputs",
    describe=lambda needs: "need personalization" if needs else "factoid, dropped",
    stand_in=True,
)
ASPECTS = Question(
    step="aspects",
    prompt="lampqa/aspect_extraction",
    schema=parsing.ASPECTS_SCHEMA,
    parse=parsing.parse_aspects,
    field="aspects",
    unit="aspect outputs",
    describe=lambda aspects: "with aspects" if aspects else "without enough details, dropped",
    stand_in=None,
)


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--posts_addr", nargs="+", required=True, metavar="FILE",
        help="a dump's Posts.xml in a folder named after its community, with Users.xml beside it; or SE-PQA's *.jsonl")
    add("--output_dir", required=True, metavar="DIR", help="folder for the files of all steps")
    add("--communities_addr", metavar="FILE",
        help="TOML with a table per category, which names its files and has a list `communities` (default: the "
        "paper's 47 in three categories)")
    add("--min_body_words", type=cli.non_negative_int, default=30,
        help="minimum number of words in a question's body (%(default)s)")
    add("--min_profile_posts", type=cli.non_negative_int, default=5,
        help="minimum number of earlier posts by a question's author (%(default)s)")
    add("--max_profile_posts", type=cli.positive_int, default=500,
        help="maximum number of earlier posts in a profile, the newest ones (%(default)s)")
    add("--questions_per_author", type=cli.positive_int, default=1,
        help="maximum number of questions per author, the newest ones; the paper has one per user (%(default)s)")
    add("--validation_share", type=cli.fraction, default=0.1, help="share of the authors in validation (%(default)s)")
    add("--test_share", type=cli.fraction, default=0.1, help="share of the authors in test (%(default)s)")
    add("--split_seed", type=cli.non_negative_int, default=0,
        help="seed of the splits, and of the choice of records in to_read.html (%(default)s)")
    cli.add_engine_arguments(parser, "--model_addr", "hub name, model folder, LoRA adapter folder, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.1, max_tokens=2048, max_model_len="8192, or the model's limit if less"
    )
    cli.add_run_arguments(parser, shards=False)
    parser.not_a_setting("--posts_addr --output_dir", "the hashes of the posts' texts are in the keys")
    parser.not_a_setting(
        "--communities_addr --min_body_words --min_profile_posts --max_profile_posts --questions_per_author"
        " --validation_share --test_share --split_seed",
        "they only select posts, and are settings of the steps that select",
    )
    # fmt: on
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    folder = Path(args.output_dir)
    args = cli.prepare_run(args, [str(folder / "posts.sqlite")], args.posts_addr)
    if args.validation_share + args.test_share >= 1:
        raise UserError("--validation_share and --test_share leave nothing for training; their sum must be below 1")
    files = read_communities(Path(args.communities_addr or lampqa.COMMUNITIES_FILE))
    lock = Lock(folder / "posts.sqlite")
    index, steps = PostIndex(folder / "posts.sqlite"), Steps(SCRIPT, args)
    try:
        index.fill([Path(path) for path in args.posts_addr])
        note_communities(args.communities_addr, index.communities(), files)
        counts = {"posts": index.counts(), "candidates": make_candidates(args, steps, index, files)}
        candidates = read_json(folder / "candidates.json")[: args.limit]
        stages = stages_of(args, SCRIPT, candidates, FILTER, ASPECTS)
        code = run_stages(stages, args)
        if args.dry_run or not are_complete(stages):
            return code
        for question in (FILTER, ASPECTS):
            counts[question.step] = count_outputs(question, read_outputs(folder, question))
        counts["evidence"] = check_evidence(args, steps, counts, candidates)
        counts["splits"] = make_splits(args, steps)
        counts["files"] = write_files(args, steps, index, files)
        write_counts(args, steps, counts)
        write_page(args, steps, counts, candidates)
    finally:
        index.close()
        lock.release()
    if not steps.written:
        say_finished(folder)
    return code


class _Category(msgspec.Struct):
    communities: Annotated[list[Annotated[str, msgspec.Meta(pattern=COMMUNITY)]], msgspec.Meta(min_length=1)]


def read_communities(path: Path) -> dict[str, list[str]]:
    """Return the communities of each category; UserError if the TOML file is invalid."""
    files: dict[str, list[str]] = {}
    for name, table in (tables := read_toml(path)).items():
        check_field(tables, str(path), name, _Category)
        if not name.isprintable() or Path(name).name != name or name in ("", ".."):
            raise UserError(
                f"{path}: table {quote(name)}: not a valid file name; use no slash and no control characters"
            )
        if shared := set(table["communities"]) & {community for others in files.values() for community in others}:
            raise UserError(f"{path}: community {min(shared)!r} is in two tables; each community must be in one")
        files[name] = table["communities"]
    if not files:
        raise UserError(f'{path}: has no tables; add one per category, with communities = ["...", ...]')
    return files


def note_communities(path: str | None, present: list[str], files: Files) -> None:
    """Print which communities have posts but no category, and which in the user's file have no posts."""
    wanted = {community for communities in files.values() for community in communities}
    if unplaced := [community for community in present if community not in wanted]:
        remedy = "" if path else "; use --communities_addr to add categories"
        what = "communities without a category, used in profiles only"
        print(f"note: {what}: {first_five(unplaced)}{remedy}", file=sys.stderr)
    absent = sorted(wanted - {*present})
    if path and absent and present:  # without the user's file, inputs may have any of the paper's 47
        print(f"note: {path}: communities without posts in the inputs: {first_five(absent)}", file=sys.stderr)


# The steps that need no model


def make_candidates(args: argparse.Namespace, steps: Steps, index: PostIndex, files: Files) -> Counts:
    """Write candidates.json: the posts that may become questions, in random order."""
    communities = sorted({community for names in files.values() for community in names})
    terms = Terms(args.min_body_words, args.min_profile_posts, args.questions_per_author)

    def write(target: Path) -> Counts:
        places, counts = choose(index, set(communities), terms)
        if not places:
            raise UserError(
                f"no post qualifies as a question: {format_counts(counts)}\n"
                "  lower --min_body_words or --min_profile_posts, or add posts"
            )
        write_array(target, map(as_candidate, draw_order(index.posts(places))), indent=2)
        return counts

    settings = {"posts": index.identity(), "communities": communities, **vars(terms)}
    return steps.make(Path(args.output_dir) / "candidates.json", settings, write)


def as_candidate(post: Post) -> Record:
    question = {"id": post.id, "question": post.title, "narrative": post.body, "category": post.community}
    return question | {"author": post.author, "date": post.date, "licence": post.licence}


def read_outputs(folder: Path, question: Question) -> dict[str, Any]:
    """Return the content of a question's file, by post id."""
    return read_json(folder / f"{question.step}.json")


def check_evidence(
    args: argparse.Namespace, steps: Steps, earlier: dict[str, Counts], candidates: list[Record]
) -> Counts:
    """Write evidence.json: posts with the aspects whose evidence they contain, without profiles."""
    folder = Path(args.output_dir)
    outputs = read_outputs(folder, ASPECTS)

    def write(target: Path) -> Counts:
        records, counts = [], Counter()
        for candidate in candidates:
            aspects = outputs.get(candidate["id"], {}).get(ASPECTS.field)
            if not aspects:
                continue
            kept, how_found = keep_found(aspects, candidate["narrative"])
            counts.update(FOUND[how] for how in how_found)
            counts["questions" if kept else "questions without remaining aspects, dropped"] += 1
            if kept:
                head = {name: candidate[name] for name in ("id", "question", "narrative", "category")}
                records.append({**head, "rubric_aspects": kept, "profile": [], **candidate})
        if not records:
            all_counts = [earlier[FILTER.step], earlier[ASPECTS.step], counts]
            reasons = "; ".join(map(format_counts, filter(None, all_counts)))
            last = (ASPECTS if outputs else FILTER).step
            raise UserError(f"{folder}: no question is left: {reasons}\n  see the model's outputs in {last}.json")
        write_array(target, iter(records), indent=2)
        return counts

    made_from = {name: file_hash(folder / f"{name}.json") for name in ("candidates", ASPECTS.step)}
    return steps.make(folder / "evidence.json", {**made_from, "limit": args.limit}, write)


def make_splits(args: argparse.Namespace, steps: Steps) -> Counts:
    """Write splits.json: the split of each author, and so of all their questions."""
    folder = Path(args.output_dir)

    def write(target: Path) -> Counts:
        authors = sorted({record["author"] for record in read_json(folder / "evidence.json")})
        drawn = {
            author: split_of(author, args.split_seed, args.validation_share, args.test_share) for author in authors
        }
        target.write_text(json.dumps(drawn, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        return {f"authors in {split}": list(drawn.values()).count(split) for split in SPLITS}

    shares = {"seed": args.split_seed, "validation_share": args.validation_share, "test_share": args.test_share}
    made_from = {"evidence": file_hash(folder / "evidence.json")}
    counts = steps.make(folder / "splits.json", {**made_from, **shares}, write)
    if empty := [split for split in SPLITS if not counts[f"authors in {split}"]]:
        which = f"no authors in {' or '.join(empty)}, so these files are not written"
        print(f"note: {which}; add posts, or change the shares or --split_seed", file=sys.stderr)
    return counts


def write_files(args: argparse.Namespace, steps: Steps, index: PostIndex, files: Files) -> dict[str, Counts]:
    """Write <category>_<split>.json: the dataset, each question with its author's earlier posts."""
    folder, counts = Path(args.output_dir), {}
    records, splits = read_json(folder / "evidence.json"), read_json(folder / "splits.json")
    made_from = {name: file_hash(folder / f"{name}.json") for name in ("evidence", "splits")}
    settings = {**made_from, "posts": index.identity(), "max_profile_posts": args.max_profile_posts}
    for name, communities in files.items():
        for split in SPLITS:
            path = folder / f"{name}_{split}.json"
            chosen = [
                record for record in records if record["category"] in communities and splits[record["author"]] == split
            ]
            if chosen:
                write = partial(write_file, index, chosen, args.max_profile_posts)
                counts[path.name] = steps.make(path, {**settings, "communities": communities, "split": split}, write)
    for path in sorted(path for split in SPLITS for path in folder.glob(f"*_{split}.json")):
        if path.name not in counts:  # its split is now empty, or its category was removed
            steps.remove(path)
    return counts


def write_file(index: PostIndex, records: list[Record], most: int, target: Path) -> Counts:
    counts: Counter[str] = Counter(questions=len(records))

    def with_profile(record: Record) -> Record:
        profile, num_reposts = profile_of(index, record["author"], record["date"], record["narrative"], most)
        counts["posts in profiles"] += len(profile)
        counts["reposts of their question, dropped"] += num_reposts
        return {**record, "profile": profile}

    write_array(target, map(with_profile, records), indent=2)
    return counts


# Counts and the page


def write_counts(args: argparse.Namespace, steps: Steps, counts: dict[str, Any]) -> None:
    """Write counts.json: the counts of each step and of each input."""

    def write(target: Path) -> Counts:
        target.write_text(json.dumps(counts, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        return {"steps": len(counts)}

    steps.make(Path(args.output_dir) / "counts.json", {"counts": counts}, write)


def write_page(args: argparse.Namespace, steps: Steps, counts: dict[str, Any], candidates: list[Record]) -> None:
    """Write to_read.html: a sample of each step's records to check; the paper's authors read 500 and 100 records."""
    folder = Path(args.output_dir)

    def write(target: Path) -> Counts:
        needs, aspects = read_json(folder / f"{FILTER.step}.json"), read_json(folder / f"{ASPECTS.step}.json")
        filtered = [candidate for candidate in candidates if needs[candidate["id"]][FILTER.field]]
        with_aspects = [(candidate, aspects[candidate["id"]][ASPECTS.field]) for candidate in filtered]
        sections = [
            Section("Candidates", "Is this a complete, readable question?", counts["candidates"],
                    [as_shown(candidate) for candidate in candidates]),
            Section("Factoid filter", "Does a good answer depend on who asks?", counts[FILTER.step],
                    [as_shown(candidate) for candidate in filtered]),
            Section("Aspects", "Are these the things that the asker wants, and is none missing?", counts[ASPECTS.step],
                    [as_shown(candidate, rubric) for candidate, rubric in with_aspects if rubric]),
            Section("Evidence", "Do the marked words support the aspects?", counts["evidence"],
                    [as_shown(record, record["rubric_aspects"]) for record in read_json(folder / "evidence.json")]),
        ]  # fmt: skip
        target.write_text(reading_page.make_page(sections, args.split_seed), encoding="utf-8")
        return {"steps": len(sections)}

    names = ("candidates", FILTER.step, ASPECTS.step, "evidence")
    made_from = {name: file_hash(folder / f"{name}.json") for name in names}
    settings = {**made_from, "counts": counts, "seed": args.split_seed, "limit": args.limit}
    steps.make(folder / "to_read.html", settings, write)


def as_shown(record: Record, aspects: Sequence[Mapping[str, str]] = ()) -> Shown:
    return Shown(record["id"], record["question"], record["narrative"], record["licence"], aspects)


if __name__ == "__main__":
    cli.run_script(main)
