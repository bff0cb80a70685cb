"""Write docs/results.md, its appendix pages and pictures from the kept scores: python -m paper.page [--check]

With --check nothing is written: it lists the files that would change, and exits with 1 if there are any.
"""

import argparse
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from bertvision.disk import write_text
from bertvision.report.block import Block, Report, Section
from bertvision.report.markdown import paragraph, render_markdown
from bertvision.report.pictures import draw_svg
from paper.best_heads import best_heads_block, best_rows
from paper.claims import claims_blocks
from paper.kept import (
    LOWER,
    ROOT,
    Experiment,
    Experiments,
    at_lower_rate,
    by_encoder,
    kept_seeds,
    load_kept,
    load_rates,
    show_rate,
)
from paper.method import method_blocks
from paper.names import ENCODERS
from paper.peers import peer_blocks
from paper.questions import Question, all_questions
from paper.rates import rate_blocks
from paper.runs import again_block, runs_block, tell_missing
from paper.sentences import answerable_block, glue_block, glue_experiments
from paper.spans import folded_scores, span_blocks
from paper.untouched import untouched_blocks
from paper.zoo import sentence_zoo_block, zoo_blocks

MAIN, FOLDER = "results.md", "results"
ALL_ROWS = 10_000
INTRODUCTION = (
    "We trained the heads of two papers ([Jiang, Benge, King 2020](https://arxiv.org/abs/2202.12210) and its "
    "extension to GLUE) and a few of our own on all layers of two small encoders, gte-small (33 million parameters) "
    "and all-MiniLM-L6-v2 (23 million), with part of SQuAD 2.0's training set and five GLUE tasks. Scores are means "
    "over 3 (SQuAD) or 5 (GLUE) seeds on the official dev sets (±: standard deviation); the best head is always "
    "chosen on held-out data, and compared with the encoder alone and with a **control**, a linear layer on the last "
    "layer that is trained like the heads. **Small encoders, part of the training set: nothing here shows what "
    "BERT-base or BERT-large would reach, and no score may be quoted as a SQuAD 2.0 result.**"
)
END = (
    "All pages are generated from the scores in `paper/kept` by `make paper` ([how](../paper/README.md)). "
    "[What the results do not show](results/method.md#what-the-results-do-not-show)."
)


class Page(NamedTuple):
    """An appendix page."""

    name: str
    title: str
    about: str
    """One paragraph; the main page shows its first sentence."""
    blocks: list[Block]


def build_pages(experiments: Experiments, rates: list[Experiment]) -> list[Page]:
    """The appendix pages, from the experiments and from the runs at other learning rates."""
    lower, rate = at_lower_rate(rates), show_rate(LOWER)
    pages = [
        Page(
            "best_heads",
            "The best head of every task",
            "The best head of every task and snapshot, compared with the encoder alone and the control. Heads are "
            "chosen on held-out data.",
            [best_heads_block(rows)] if (rows := best_rows(experiments)) else [],
        ),
        Page(
            "claims",
            "The papers' claims",
            "Every claim of the papers with its verdict, and all scores behind it. Claims about spans are judged at "
            f"both learning rates of fine-tuning, the chosen one and {rate}.",
            claims_blocks(experiments, lower),
        ),
        Page(
            "learning_rates",
            "Learning rates of fine-tuning",
            "The learning rates of fine-tuning that were tried, and what heads add to better and worse encoders. The "
            "last tables have all scores of encoders whose learning rate decayed to 0 within 1 epoch.",
            rate_blocks(experiments, lower, rates, ENCODERS),
        ),
        Page(
            "untouched",
            "Untouched encoders",
            "Heads on encoders that were not fine-tuned, with their costs. They are compared with the same encoder "
            "after 1 and 3 epochs of fine-tuning, and with LoRA.",
            untouched_blocks(experiments, lower, ENCODERS),
        ),
    ]
    for (encoder, one), short in zip(by_encoder(experiments, "squad2_{}"), ENCODERS, strict=False):
        kernels = experiments.get(f"{one.name}_kernels")
        pages.append(
            Page(
                f"spans_{short}",
                f"SQuAD 2.0 spans with {encoder}",
                f"All span scores with {encoder}, fine-tuned at 2e-4: the fine-tuning curve, every head at every "
                "snapshot, less data, paired tests, kinds of errors and layer weights. Three seeds.",
                span_blocks(one, encoder) + (folded_scores(kernels, encoder) if kernels is not None else []),
            )
        )
    pages += [
        Page(
            "spans_all_heads",
            f"All span heads, encoders fine-tuned at {rate}",
            f"Every head for spans side by side, with one seed, on encoders fine-tuned at {rate}. This learning rate "
            "was too low, which favours heads. The folded tables have all scores of all runs at this rate.",
            zoo_blocks(lower, experiments, ENCODERS),
        ),
        Page(
            "answerability",
            "Answerability",
            "Heads that decide whether a SQuAD 2.0 question can be answered, with both encoders. Encoders were "
            f"fine-tuned at {rate} only.",
            [answerable_block(one, encoder) for encoder, one in by_encoder(experiments, "answerable_{}")],
        ),
        Page(
            "glue",
            "GLUE",
            "All heads on CoLA, SST-2, MRPC, STS-B and RTE, with all-MiniLM-L6-v2 and five seeds. For each task: the "
            "main heads, a picture of all heads, and the scores of the others.",
            _glue_blocks(experiments),
        ),
        Page(
            "alternatives",
            "Alternatives to heads",
            "Full fine-tuning, LoRA and BitFit next to heads: score by passes through the encoder, seconds and trained "
            "parameters.",
            [
                block
                for short, name in ENCODERS.items()
                for block in peer_blocks(experiments, lower, f"squad2_{short}", name)
            ],
        ),
        Page(
            "method",
            "Method and limits",
            "The data, encoders and settings behind all scores, and what the results do not show.",
            method_blocks(experiments),
        ),
        Page(
            "runs",
            "The runs",
            "Every run with its device and seconds, and how far two runs of the same seed differ.",
            [runs_block(experiments, rates), *([again] if (again := again_block(experiments, lower)) else [])],
        ),
    ]
    return [page for page in pages if page.blocks]


def _glue_blocks(experiments: Experiments) -> list[Block]:
    """The main heads of each task, then all heads."""
    found: list[Block | None] = []
    for title, main, zoo in glue_experiments(experiments):
        found += [glue_block(main)]
        found += [sentence_zoo_block(main, zoo, title), glue_block(zoo)] if zoo is not None else []
    return [block for block in found if block is not None]


# ---------------------------------------------------------------------- Markdown


def render_block(block: Block, folder: str) -> str:
    """A block under a heading of the second level."""
    whole = render_markdown(Report("", [], [], [Section("", [block])]), folder, ALL_ROWS)
    return whole[whole.index("### ") + 1 :].rstrip()


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def render_page(page: Page) -> str:
    contents = "\n".join(f"- [{block.title}](#{anchor(block.title)})" for block in page.blocks)
    head = [f"# {page.title}", f"{paragraph(page.about)} [Back to the results](../{MAIN}).", contents]
    return "\n\n".join([*head, *[render_block(block, ".") for block in page.blocks]]) + "\n"


def render_main(questions: list[Question], pages: list[Page], missing: list[str]) -> str:
    titles = {page.name: page.title for page in pages}
    parts = ["# Results", INTRODUCTION, *missing]
    for question in questions:
        links = [f"[{titles[name]}]({FOLDER}/{name}.md)" for name in question.pages if name in titles]
        parts += [render_block(question.block, FOLDER), f"All scores: {', '.join(links)}."]
    listing = [f"- [{page.title}]({FOLDER}/{page.name}.md). {_first_sentence(page.about)}" for page in pages]
    return "\n\n".join([*parts, "## Appendix", "\n".join(listing), END]) + "\n"


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].rstrip('.')}."


# ---------------------------------------------------------------------- files


def write_pages(docs: Path) -> set[Path]:
    """Write all pages and pictures, and return the paths of those in the folder next to the main page."""
    experiments, rates = load_kept(), load_rates()
    pages, questions = build_pages(experiments, rates), all_questions(experiments, at_lower_rate(rates))
    texts = {docs / FOLDER / f"{page.name}.md": render_page(page) for page in pages}
    blocks = [block for page in pages for block in page.blocks] + [question.block for question in questions]
    texts |= {docs / FOLDER / f"{block.key}.svg": draw_svg(block.picture) for block in blocks if block.picture}
    for path, text in texts.items():
        write_text(path, text)
    write_text(docs / MAIN, render_main(questions, pages, tell_missing(kept_seeds())))
    return set(texts)


def find_differences(made: Path, there: Path) -> list[str]:
    """The files that differ, are missing or are left over."""
    names = sorted({MAIN} | {f"{FOLDER}/{path.name}" for at in (made, there) for path in (at / FOLDER).glob("*.*")})
    found = []
    for name in names:
        texts = [(at / name).read_text(encoding="utf-8") if (at / name).is_file() else None for at in (made, there)]
        if texts[0] != texts[1]:
            what = "is missing" if texts[1] is None else "is left over" if texts[0] is None else "differs"
            found.append(f"docs/{name} {what}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; list the files that differ")
    docs = ROOT / "docs"
    if not parser.parse_args().check:
        before = set((docs / FOLDER).glob("*.*"))
        for old in before - write_pages(docs):
            old.unlink()
        return
    with tempfile.TemporaryDirectory() as folder:
        write_pages(Path(folder))
        differences = find_differences(Path(folder), docs)
    if differences:
        raise SystemExit("\n".join([*differences, "Run make paper to update them."]))
    print("docs/results.md, its appendix pages and pictures match the kept scores.")


if __name__ == "__main__":
    main()
