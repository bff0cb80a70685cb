"""For those with a Ray job of their own: answers as columns of a dataset.

ds.map_batches(bv.cluster.Predict, fn_constructor_kwargs={"model": "default"}, concurrency=4)
bv.cluster.predict(ds, "default", workers=4)
"""

from typing import Any

from bertvision.cluster.answers import ERROR, answer_arrays, answer_fields, answer_rows, open_answers
from bertvision.cluster.engine import use_cores
from bertvision.cluster.reading import Input, choose_columns, to_input
from bertvision.errors import UserError

BATCH = 1024


class Predict:
    """An actor for `map_batches`: adds the columns of a model's answers to a batch. It holds the model."""

    def __init__(self, model: str, cpus: float | None = None, **choice: Any) -> None:
        """`model` is a run, a fitted model or a kit, and `choice` selects what answers: `head`, `tasks`, `threshold`,
        `epochs`, `device`. `cpus` is the number of CPUs of the actor."""
        if cpus is not None:
            use_cores(cpus)
        self.answers = open_answers(model, **choice)

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        table = _to_table(batch)
        fields = answer_fields(self.answers.kinds)
        if taken := [field.name for field in fields if field.name in table.column_names]:
            raise UserError(f"the dataset has a column '{taken[0]}' already: rename it (`ds.rename_columns`).")
        cells = [(f"row {number}", row) for number, row in enumerate(table.to_pylist(), 1)]
        columns = choose_columns("the dataset", self.answers.choices, cells[:1]) if cells else None
        items: list[Input] = [to_input(one, columns) for one in cells] if columns else []
        good = iter(answer_rows(self.answers, [item.example for item in items if item.problem is None]))
        rows = [next(good) if item.problem is None else {ERROR: item.problem} for item in items]
        for field, array in zip(fields, answer_arrays(self.answers.kinds, rows), strict=True):
            table = table.append_column(field, pyarrow.chunked_array([array], field.type))
        return table


def predict(
    dataset: Any,
    model: str,
    workers: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    batch_size: int = BATCH,
    **choice: Any,
) -> Any:
    """A Ray Dataset with the answers of a model to the texts of another. `choice` is as in `Predict`."""
    import ray.data

    return dataset.map_batches(
        Predict,
        fn_constructor_kwargs={"model": model, "cpus": cpus, **choice},
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=cpus,
        num_gpus=gpus or None,
    )


def _to_table(batch: Any) -> Any:
    """A batch in any of Ray's formats as an Arrow table."""
    import pyarrow

    if isinstance(batch, pyarrow.Table):
        return batch
    if isinstance(batch, dict):
        return pyarrow.table({name: pyarrow.array(list(values)) for name, values in batch.items()})
    return pyarrow.Table.from_pandas(batch, preserve_index=False)
