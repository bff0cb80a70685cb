"""Search: populations of heads are proposed, each trains in one pass, and held-out training data judges them."""
