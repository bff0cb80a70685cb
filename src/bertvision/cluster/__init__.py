"""Beyond one machine, on Ray Data: states of many tokens (`shards`), answers for many files (`files`)."""
