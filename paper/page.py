"""Makes docs/results.md and its pictures of what was kept: python -m paper.page [--check]

With --check nothing is written: it says what would differ, and ends with 1 where something does.
"""

import argparse
import tempfile
from pathlib import Path

from bertvision.disk import write_text
from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block, Report, Section
from bertvision.report.markdown import render_markdown
from bertvision.report.pictures import draw_svg
from bertvision.report.wording import listed
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
from paper.names import ENCODERS, SECONDS, SQUAD
from paper.peers import peer_blocks
from paper.rates import rate_blocks
from paper.runs import again_block, runs_block, tell_missing
from paper.sentences import answerable_block, glue_block, glue_experiments
from paper.spans import folded_scores, span_blocks
from paper.summary import summary_block
from paper.untouched import untouched_blocks
from paper.zoo import sentence_zoo_block, zoo_blocks

PAGE, PICTURES = "results.md", "results"
ALL_ROWS = 10_000
FACTS = [
    "The papers: Jiang, Benge, King 2020 (arXiv 2202.12210: BERT-large, SQuAD 2.0) and its extension to GLUE in 2021. "
    "The heads are listed in the README; what figures mean is said under the tables. The control is a new linear layer "
    "on the last layer, trained like a head; the ladder is a head of ours. Of the papers' convolutions for spans only "
    "names and sizes are known: their layouts are ours.",
    "Made by “make paper” from the folder paper/kept, which holds the scores of runs of the experiments in "
    "paper/experiments.toml; “make paper-check” makes it again and finds no difference. “python -m paper.experiments "
    "run NAME --hub” runs one on the hub's data with BERT-base.",
    f"{SQUAD}: 52,716 training questions, 17,572 of them unanswerable (all that could be had, most of them of the "
    "public UnAnsQ set), and answerable ones drawn down to the official proportion. For every choice 5 % are held out, "
    "by whole articles. Dev has the official questions and answers, put together from other public copies of them.",
    "Heads for spans take one pass over the training set, unless passes are named; heads for SST-2 and answerability "
    "three, and for the other tasks ten.",
    "Encoders: gte-small (12 layers of 384, 33 million parameters) and all-MiniLM-L6-v2 (6 layers of 384, 23 million).",
    "On SQuAD 2.0 encoders are fine-tuned at a rate of 2e-4, LoRA at 3e-3 and BitFit at 1e-2, chosen on held-out "
    "questions (full fine-tuning: for decay to 1 epoch). Every head for spans side by side, decay to 2 epochs and "
    "answerability were run at 5e-5 only. Claims, and what heads add, are shown for both rates.",
    "Figures are means over seeds, ± their standard deviation; a seed changes what is held out, fine-tuning, batches "
    "and heads alike.",
    f"Seconds are {SECONDS}. Passes through the encoder do not depend on that.",
]
LIMITS = [
    "These are small encoders, trained for sentence similarity before, on a part of SQuAD 2.0's training questions: "
    "nothing here says what BERT-base or BERT-large would reach, and no figure may be quoted as one on SQuAD 2.0.",
    "Settings were searched in a few places. GLUE's rates of fine-tuning were chosen among 5e-5, 1e-4, 2e-4 and 3e-4 "
    "(SST-2: the first three) on a held-out fifth of the training examples, two seeds, 3 epochs. Shape and dropout of "
    "the ladders under “No fine-tuning at all” were chosen on held-out questions (LOG.md has what was tried). That "
    "heads may read means of tokens came from a look at CoLA's dev set, so these count as ours. Rates of full "
    "fine-tuning to 1 epoch, of LoRA and of BitFit were chosen on held-out questions, with one seed (“The rate of "
    "fine-tuning”). All else has one setting.",
    "What heads for spans add hangs on how well their encoder was fine-tuned: at 5e-5, which was too low, it is far "
    "more than at 2e-4, and where that rate decays to 0 within 1 epoch it is tenths of a point of answerable-only F1 and AUC "
    "(“The rate of fine-tuning”). What was run at 5e-5 only shows heads where they have it easier.",
    "At 2e-4 two runs of one seed differ more than at 5e-5 (“The same seed again”). Heads are held against encoder and "
    "control of their own run; which of two runs' heads is best on held-out questions is luck of the encoders, too. "
    "First runs of the seeds that decay to 1 epoch differ from those here by up to 0.4 points of answerable-only F1, more than "
    "heads add there, and of LoRA's seed 0 by 0.9 (LOG.md).",
    "Of the training questions one in three is unanswerable, of dev's one in two: thresholds chosen on held-out "
    "training questions suit dev badly, and figures at any threshold mix that with what a model knows; answerability's "
    "accuracy does too. Answerable-only F1 and AUC don't.",
    "Decay to 1 and to 2 epochs at 5e-5 ends below what was stopped there on the way to 3: being held against it is "
    "the easier test. At 2e-4 decay to 1 epoch ends above.",
    "On encoders as they came, only ladders and the control had six passes here; in a try with one seed, as many gave "
    "two of the heads with kernels along tokens −0.4 to +3.8 points of answerable-only F1 (LOG.md).",
    "All heads for spans but the main runs', the ladders on untouched encoders and the three with kernels along tokens "
    "have one seed, at 5e-5. Those three were given more when dev's figures of that seed had shown them ahead; no "
    "other had that chance.",
    "RTE is hardly above chance here, and CoLA's encoder had learnt nothing with most seeds after 1 epoch: large gaps "
    "there say little.",
    "SST-2's training examples are phrases, many of them parts of one sentence: held-out ones resemble those that were "
    "trained on, and choices by them are worth little.",
    "That heads are better on shorter passages holds at one rate by a few words in the median, and fails at the other: "
    "it says little.",
    "A few seeds show how much luck there is, not how likely a difference is: that a claim holds describes these runs. "
    "How many figures must agree for “partly” was settled when the first of them were known.",
]


def build_page(experiments: Experiments, seeds: dict[str, list[int]], rates: list[Experiment]) -> Report:
    """Of the experiments, of the seeds that were kept of each, and of runs at other rates."""
    lower = at_lower_rate(rates)
    beginning = summary_block(experiments, lower)
    sections = [Section("In short", [beginning] if beginning else [])]
    sections.append(Section("The papers' claims", claims_blocks(experiments, lower)))
    sections.append(Section("The rate of fine-tuning", rate_blocks(experiments, lower, rates, ENCODERS)))
    sections.append(Section("No fine-tuning at all", untouched_blocks(experiments, lower, ENCODERS)))
    for encoder, one in by_encoder(experiments, "squad2_{}"):
        kernels = experiments.get(f"{one.name}_kernels")
        further = folded_scores(kernels, encoder) if kernels is not None else []
        sections.append(Section(f"Spans, {encoder} ({SQUAD})", span_blocks(one, encoder) + further))
    title = f"Spans, encoders fine-tuned at {show_rate(LOWER)}: every head ({SQUAD})"
    sections.append(Section(title, zoo_blocks(lower, experiments, ENCODERS)))
    answerable = [answerable_block(one, encoder) for encoder, one in by_encoder(experiments, "answerable_{}")]
    sections.append(Section("Answerability", answerable))
    sections.append(Section("GLUE", _glue_blocks(experiments)))
    peers = [
        block for short, name in ENCODERS.items() for block in peer_blocks(experiments, lower, f"squad2_{short}", name)
    ]
    sections.append(Section("Other ways to the same scores", peers))
    again = again_block(experiments, lower)
    sections.append(Section("The runs", [runs_block(experiments, rates), *([again] if again else [])]))
    sections = [section for section in sections if section.blocks]
    limits = [*tell_missing(seeds), *LIMITS, *_describe_held_out(experiments)]
    return Report("Results", FACTS, limits, sections)


def _glue_blocks(experiments: Experiments) -> list[Block]:
    """Of each task the main heads, and every head."""
    found: list[Block | None] = []
    for title, main, zoo in glue_experiments(experiments):
        found += [glue_block(main)]
        found += [sentence_zoo_block(main, zoo, title), glue_block(zoo)] if zoo is not None else []
    return [block for block in found if block is not None]


def _describe_held_out(experiments: Experiments) -> list[str]:
    """How many of the held-out questions have no answer, seed by seed."""
    one = experiments.get("squad2_gte")
    if one is None:
        return []
    counts = [one.by_seed(1.0, ENCODER, key, "held_out") for key in ("NoAns_total", "total")]
    shares = listed([f"{100 * counts[0][seed] / counts[1][seed]:.0f}" for seed in one.seeds])
    return [f"Since whole articles are held out, of the held-out questions {shares} % have no answer (seeds in order)."]


def write_page(folder: Path) -> set[Path]:
    """The page in a folder and its pictures beside it, whose paths it gives."""
    report = build_page(load_kept(), kept_seeds(), load_rates())
    drawn = {folder / PICTURES / f"{block.key}.svg": block.picture for block in report.blocks() if block.picture}
    for path, picture in drawn.items():
        write_text(path, draw_svg(picture))
    limits = "## What may not be concluded"
    write_text(folder / PAGE, render_markdown(report, PICTURES, ALL_ROWS).replace("## Summary", limits, 1))
    return set(drawn)


def find_differences(made: Path, there: Path) -> list[str]:
    """Files that differ, are missing or are too many."""
    names = sorted(
        {PAGE} | {f"{PICTURES}/{path.name}" for at in (made, there) for path in (at / PICTURES).glob("*.svg")}
    )
    found = []
    for name in names:
        texts = [(at / name).read_text(encoding="utf-8") if (at / name).is_file() else None for at in (made, there)]
        if texts[0] != texts[1]:
            what = "is missing" if texts[1] is None else "is no longer made" if texts[0] is None else "differs"
            found.append(f"docs/{name} {what}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    docs = ROOT / "docs"
    if not parser.parse_args().check:
        before = set((docs / PICTURES).glob("*.svg"))
        for old in before - write_page(docs):
            old.unlink()
        return
    with tempfile.TemporaryDirectory() as folder:
        write_page(Path(folder))
        differences = find_differences(Path(folder), docs)
    if differences:
        raise SystemExit("\n".join([*differences, "make paper writes them again."]))
    print("docs/results.md and its pictures are what the kept scores give.")


if __name__ == "__main__":
    main()
