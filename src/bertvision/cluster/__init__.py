"""Beyond one machine, on Ray Data: states of many tokens (`shards`), answers for many files (`files`), and an actor for
a Ray job of one's own (`udf`).

    import bertvision as bv
    ds.map_batches(bv.cluster.Predict, fn_constructor_kwargs={"model": "default"}, concurrency=4)
    bv.cluster.predict_files("default", "s3://in/*.parquet", "s3://out/", bv.cluster.Cluster("auto"))
"""

from bertvision.cluster.engine import Cluster
from bertvision.cluster.files import Summary, predict_files
from bertvision.cluster.udf import Predict, predict

__all__ = ["Cluster", "Predict", "Summary", "predict", "predict_files"]
