"""What a run shows beyond its scores: each analysis is a table, a picture and plain sentences, all from the numbers.

`pipeline.finished` reads the run, certainty.py says how sure its scores are, block.py is what an analysis gives.
words.py, ranking.py and drawing.py are what analyses share: how things are said, which models are shown, how they are
drawn.
The rest is named by what it shows: scores, comparisons and choices; spending; finetuning_curve, data_share, epochs and
lengths; layer_weights, layer_importance and layer_map (on layers and strengths); answers, thresholds and passages of
spans, labels, values of scores; disagreements.
"""
