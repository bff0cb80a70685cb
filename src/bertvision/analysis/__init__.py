"""What a run shows beyond its scores: each analysis is a table, a picture and plain sentences, all from the numbers."""
