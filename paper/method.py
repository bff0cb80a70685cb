"""How the results were measured, and what they do not show."""

from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block
from bertvision.report.wording import listed
from paper.kept import Experiments
from paper.names import SECONDS

MEASURED = [
    "The papers: Jiang, Benge, King 2020 (arXiv 2202.12210: BERT-large, SQuAD 2.0) and its extension to GLUE in 2021. "
    "The ladder is a head of ours. Only the names and sizes of the papers' convolutional heads for spans are known: "
    "their layouts are ours.",
    "SQuAD 2.0: 52,716 training questions, 17,572 of them unanswerable. These are all the unanswerable ones we could "
    "get, most of them from the public UnAnsQ set; answerable ones were sampled down to the official proportion. 5 % "
    "are held out for all choices, by whole articles. Dev has the official questions and answers, assembled from "
    "other public copies.",
    "Encoders: gte-small (12 layers of 384, 33 million parameters) and all-MiniLM-L6-v2 (6 layers of 384, 23 million).",
    "Heads for spans take one pass over the training set unless a table says otherwise, heads for SST-2 and "
    "answerability three, heads for the other tasks ten. The control is a linear layer on the last layer, trained "
    "like the heads.",
    "On SQuAD 2.0, encoders are fine-tuned at a learning rate of 2e-4, LoRA at 3e-3 and BitFit at 1e-2, chosen on "
    "held-out questions (full fine-tuning: for decay to 1 epoch). The comparison of all span heads, decay to 2 epochs "
    "and answerability were run at 5e-5 only. Claims and gains are shown for both rates.",
    "Scores are means ± standard deviation over seeds. A seed affects the held-out questions, fine-tuning, batches and "
    "heads.",
    f"Seconds are those {SECONDS}. Passes through the encoder do not depend on that.",
]
LIMITS = [
    "These are small encoders that were first trained for sentence similarity, fine-tuned on part of SQuAD 2.0's "
    "training questions. They do not show what BERT-base or BERT-large would reach, and no score here may be quoted "
    "as a SQuAD 2.0 result.",
    "Few settings were searched. GLUE's learning rates of fine-tuning were chosen among 5e-5, 1e-4, 2e-4 and 3e-4 "
    "(SST-2: the first three) on a held-out fifth of the training examples, with two seeds and 3 epochs. The shape "
    "and dropout of the ladders on untouched encoders were chosen on held-out questions (LOG.md lists what was "
    "tried). The learning rates of full fine-tuning to 1 epoch, LoRA and BitFit were chosen on held-out questions "
    "with one seed (learning_rates.md). Reading means of tokens was suggested by CoLA's dev set, so such heads count "
    "as ours. Everything else was run with one setting.",
    "What span heads add depends on how well their encoder was fine-tuned: much more at 5e-5, which was too low, than "
    "at 2e-4, and only tenths of a point of answerable-only F1 and AUC where that rate decays to 0 within 1 epoch. "
    "Experiments run only at 5e-5 favour heads.",
    "At 2e-4, two runs of one seed differ more than at 5e-5 (runs.md). Heads are compared with the encoder and the "
    "control of their own run; which of two runs has the best head on held-out questions also depends on luck. The "
    "runs that decay to 1 epoch were made twice: the first ones differ from those here by up to 0.4 points of "
    "answerable-only F1, more than heads add there. LoRA's seed 0 differs by 0.9 (LOG.md).",
    "One in three training questions is unanswerable, but one in two on dev. Thresholds chosen on held-out questions "
    "fit dev badly, and scores at any threshold reflect that as well as what a model knows; so does answerability's "
    "accuracy. Answerable-only F1 and AUC do not.",
    "At 5e-5, decay to 1 and to 2 epochs ends below a run to 3 epochs stopped there, so it is easier to beat. At 2e-4, "
    "decay to 1 epoch ends above.",
    "On untouched encoders, only the ladders and the control took six passes. In a trial with one seed, six passes "
    "changed two of the heads with kernels along tokens by −0.4 to +3.8 points of answerable-only F1 (LOG.md).",
    "Span heads other than those of the main runs, the ladders on untouched encoders and the three with kernels along "
    "tokens have one seed, at 5e-5. Those three got more seeds after dev scores of the first had shown them ahead; no "
    "other head had that chance.",
    "RTE is barely above chance, and after 1 epoch CoLA's encoder had learned nothing with most seeds: large "
    "differences there mean little.",
    "SST-2's training examples are phrases, many from the same sentence. Held-out phrases resemble the training "
    "phrases, so choices based on them mean little.",
    "Passage lengths: the median passage where only a head is right is a few words shorter at one learning rate and a "
    "few words longer at the other, which is within chance.",
    "A few seeds show how much results vary, not how likely a difference is: a verdict describes these runs. The rule "
    "for “partly” was set after the first scores were known, and so were the rules that ask for p < 0.05 and for "
    "agreement on held-out questions.",
]


def method_blocks(experiments: Experiments) -> list[Block]:
    return [
        Block("measured", "How it was measured", MEASURED),
        Block("limits", "What the results do not show", [*LIMITS, *_describe_held_out(experiments)]),
    ]


def _describe_held_out(experiments: Experiments) -> list[str]:
    """The share of held-out questions without an answer, by seed."""
    one = experiments.get("squad2_gte")
    if one is None:
        return []
    counts = [one.by_seed(1.0, ENCODER, key, "held_out") for key in ("NoAns_total", "total")]
    shares = listed([f"{100 * counts[0][seed] / counts[1][seed]:.0f}" for seed in one.seeds])
    return [
        f"Whole articles are held out, so the share of held-out questions without an answer varies: {shares} % by seed."
    ]
