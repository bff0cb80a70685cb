"""A user's own questions on their own passages: `fit` with 50 to 3,000 questions, scored on articles it has not seen.

    BERTVISION_REAL_DATA=… python benchmarks/own_questions.py squad --questions 200 --results own_questions.jsonl
    python benchmarks/own_questions.py --results own_questions.jsonl --table

| source | what it is |
|---|---|
| squad | articles of SQuAD 2.0 dev, which the shipped head has not seen; it was trained on other articles of SQuAD |
| demo | the synthetic demo corpus, whose sentences and questions are unlike SQuAD's |

A draw chooses the user's articles and the test articles. The first 12 articles of dev, and the demo corpora with seeds
from 50 on, are left out: the defaults of `fit` were chosen on them. The test set is `fit`'s dev set, so that every row
of the leaderboard is scored on it, once. CPU seconds are the user and system time of the process, with the test set.
Measurements are appended to the results file, one JSON object per line. Add --heads kit continued ladder_128_deep for a
fresh ladder, which `fit` leaves out where questions are few.
"""

import argparse
import json
import os
import resource
import tempfile
from pathlib import Path
from random import Random
from typing import Any

TUNED_ON = 12
"""Articles of dev on which the defaults were chosen."""
USER_ARTICLES = {50: 3, 200: 4, 1000: 6}
MOST_ARTICLES = 12
"""Of a user with more questions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", choices=("squad", "demo"), default="squad")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--test", type=int, default=500, help="questions of the test set")
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--heads", nargs="+", default=["auto"])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the table of the results file")
    arguments = parser.parse_args()
    if not arguments.table:
        with arguments.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measure(arguments)) + "\n")
    print_table([json.loads(line) for line in arguments.results.read_text(encoding="utf-8").splitlines()])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from bertvision.models.fit import Options
    from bertvision.models.spans.fit import fit_questions
    from bertvision.models.spans.save import summary
    from bertvision.tasks.own_questions import read_own_questions

    make = {"squad": squad_questions, "demo": demo_questions}[arguments.source]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("user.json", "test.json")]
        for path, document in zip(paths, make(arguments.questions, arguments.test, arguments.draw), strict=True):
            path.write_text(json.dumps(document), encoding="utf-8")
        user, test = read_own_questions(paths[0]), read_own_questions(paths[1], training=False)
        heads = "auto" if arguments.heads == ["auto"] else arguments.heads
        fit = fit_questions(user, Options(heads=heads, seed=arguments.draw), test)
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = summary(fit)
    return {
        "source": arguments.source, "questions": len(user), "test": len(test), "draw": arguments.draw,
        "cpu": round(used.ru_utime + used.ru_stime, 1), "chosen": found["chosen"], "choice": found["choice"],
        "leaderboard": found["leaderboard"],
    }  # fmt: skip


def squad_questions(questions: int, test: int, draw: int) -> tuple[dict[str, Any], dict[str, Any]]:
    from bertvision.tasks.text_files import read_json

    articles = read_json(Path(os.environ["BERTVISION_REAL_DATA"]) / "squad/dev-v2.0.json.gz")["data"][TUNED_ON:]
    Random(draw).shuffle(articles)
    count = USER_ARTICLES.get(questions, MOST_ARTICLES)
    return take(articles[:count], questions, draw), take(articles[count:], test, draw)


def take(articles: list[Any], count: int, draw: int) -> dict[str, Any]:
    """Some of the articles' questions, drawn at random."""
    ids = [qa["id"] for article in articles for passage in article["paragraphs"] for qa in passage["qas"]]
    kept = set(Random(draw).sample(ids, min(count, len(ids))))
    data = [
        {
            "title": article["title"],
            "paragraphs": [
                {"context": passage["context"], "qas": [qa for qa in passage["qas"] if qa["id"] in kept]}
                for passage in article["paragraphs"]
            ],
        }
        for article in articles
    ]
    return {"version": "v2.0", "data": data}


def demo_questions(questions: int, test: int, draw: int) -> tuple[dict[str, Any], dict[str, Any]]:
    from bertvision.tasks.demo import build_corpus

    return build_corpus("train", questions, draw), build_corpus("dev", test, draw)


def print_table(found: list[dict[str, Any]]) -> None:
    print("| source | questions | draw | CPU s | model | judged F1 | test F1 | test EM | test answerable-only F1 |")
    print("|---|---:|---:|---:|---|---:|---:|---:|---:|")
    for one in sorted(found, key=lambda one: (one["source"], one["questions"], one["draw"])):
        for line in one["leaderboard"]:
            name = f"**{line['name']}**" if line["name"] == one["chosen"] else line["name"]
            scores = (line[key] for key in ("f1", "dev_f1", "dev_exact", "dev_answerable_f1"))
            shown = " | ".join("–" if score is None else f"{score:.1f}" for score in scores)
            place = f"{one['source']} | {one['questions']:,} | {one['draw']} | {one['cpu']:.0f}"
            print(f"| {place} | {name} | {shown} |")


if __name__ == "__main__":
    main()
