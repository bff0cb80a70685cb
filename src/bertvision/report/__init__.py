"""The report of finished runs: what they show beyond their scores, on one page.

analyses/       one analysis a file: a table, a picture and plain sentences, all from the same numbers
analysis.py     the decorator that registers one, with its section, order and needs
block.py        what an analysis gives; certainty.py: how sure the scores are
wording.py, ranking.py, drawing.py, curves.py, saved_heads.py    what analyses share: words, models to show, pictures,
                curves, the heads that were kept (strengths.py computes layer maps)
build.py        from runs to a report: summary.py, side_by_side.py (several runs), cards.py (model cards)
writing.py      its files: page.py (with page.html, .css, .js), markdown.py, pictures.py, toml.py
"""
