"""Search: propose populations of heads, train each population in one pass, and score it on held-out data."""
