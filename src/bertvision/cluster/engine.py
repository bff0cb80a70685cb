"""Ray, as this package uses it: rows go to workers that hold a model, and small results come back, through Ray Data.

    with open_cluster(Cluster("local"), reporter) as engine:
        for result in engine.run(rows, open_worker, settings): …

`local` starts Ray on this machine alone, and leaves nothing behind. The dataset runs in a thread of its own, so that a
signal, or Ray when it hangs, ends the command with one sentence.
"""

import atexit
import contextlib
import fcntl
import json
import logging
import os
import queue
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision import interrupts
from bertvision.disk import host_name
from bertvision.errors import UserError, shorten
from bertvision.progress import Reporter
from bertvision.tables import counted
from bertvision.threads import usable_cores

LOCAL = "local"
PATIENCE = 900
"""Seconds without progress after which a command ends."""
LOCAL_STORE = 192 << 20
"""Bytes of Ray's object store on one machine: rows of token ids and file names are small, and spill to disk."""
LEFTOVERS = "bertvision-ray-"
"""Beginning of the names of Ray's folders in the system's temporary folder."""
LONGEST_PLACE = 40
"""Characters of such a folder's path. Ray's sockets are inside, and the system takes 107 characters for those."""
POLL, END = 2.0, 30.0
"""Seconds between two looks at the beats of the workers, and for Ray to shut down."""
NAMESPACE = b"bertvision"
Work = Callable[[dict[str, Any], Callable[[float], None]], dict[str, Any]]
"""What a worker does with a row, which has a `number`. It calls the function now and then with how much of the row is
done. What it returns can have the whole `amount`, and travels as JSON."""


@dataclass(frozen=True)
class Cluster:
    """Where to run, and on how much of it."""

    address: str = LOCAL
    """`local`, `auto`, or the HOST:PORT of a cluster that is running."""
    workers: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    """Of each worker."""
    patience: float = PATIENCE


# ---------------------------------------------------------------------- begin and end


@contextlib.contextmanager
def open_cluster(cluster: Cluster, reporter: Reporter | None = None) -> Iterator["Engine"]:
    """Start Ray on this machine, or connect to a cluster, or use the connection that this process has already."""
    ray = import_ray(cluster.address == LOCAL)
    say = (reporter or Reporter()).say
    if ray.is_initialized():
        yield Engine(cluster, *_shares(cluster))
        return
    with _leaving_at_once(), contextlib.ExitStack() as stack:
        if cluster.address == LOCAL:
            say("starting Ray on this machine; this takes up to half a minute.")
            note_children = stack.enter_context(_ending_children())
            place = stack.enter_context(_place_for_ray())
            start: dict[str, Any] = _local_settings(cluster, place)
        else:
            _check_address(cluster.address)
            start = {"address": cluster.address}
        stack.callback(_shut_down, ray)
        if cluster.address == LOCAL:
            stack.callback(note_children)
        with _clear_start_errors(cluster.address), _keeping_signals(), _without_stderr():
            ray.init(**start, log_to_driver=False, logging_level=logging.CRITICAL)
        yield Engine(cluster, *_shares(cluster))


def import_ray(only_here: bool = False) -> Any:
    """Ray, quiet and without usage statistics. UserError if it is not installed. With `only_here`, its processes listen
    on the loopback interface, if nothing has imported it before."""
    if only_here:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # or Linux: else 127.0.0.1 is not taken
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a thread that is left over must not start Ray again
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(f"--cluster needs another package (pip install 'bertvision[ray]'): {error}.") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ray


def _local_settings(cluster: Cluster, place: Path) -> dict[str, Any]:
    # Ray's ports are open to other users of the machine, so it asks for a token. Without one in the environment, it
    # would write one to the home folder, readable by everyone.
    if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    workers, cpus, gpus = _local_shares(cluster)
    return {
        "num_cpus": max(1, round(workers * cpus)) + 1,  # one for what Ray Data does itself
        "num_gpus": max(_gpus(), round(workers * gpus)),
        "include_dashboard": False,
        "object_store_memory": LOCAL_STORE,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(place),
    }


def _local_shares(cluster: Cluster) -> tuple[int, float, float]:
    """The number of workers, and the CPUs and GPUs of each: one worker for each GPU, else for each core."""
    gpus = (1.0 if _gpus() else 0.0) if cluster.gpus is None else cluster.gpus
    cpus = cluster.cpus or 1.0
    most = int(_gpus() / gpus) if gpus else int(usable_cores() / cpus)
    return cluster.workers or max(1, most), cpus, gpus


def _shares(cluster: Cluster) -> tuple[int, float, float]:
    if cluster.address == LOCAL:
        return _local_shares(cluster)
    import ray

    there = ray.cluster_resources()
    gpus = (1.0 if there.get("GPU") else 0.0) if cluster.gpus is None else cluster.gpus
    cpus = cluster.cpus or 1.0
    most = int(there.get("GPU", 0) / gpus) if gpus else int(there.get("CPU", 1) / cpus)
    return cluster.workers or max(1, most), cpus, gpus


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _check_address(address: str) -> None:
    """Raise UserError for an address at which nothing listens: Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(
            f"--cluster is {shorten(address)}: expected local, auto, or the HOST:PORT of a Ray cluster, such as "
            "10.0.0.1:6379. Run the command on a machine of the cluster (`ray job submit` does)."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise UserError(f"no Ray cluster answers at {address} ({error}): check the address (`ray status`).") from None


@contextlib.contextmanager
def _clear_start_errors(address: str) -> Iterator[None]:
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # of many kinds: no server, another version, another token
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = (
            "Ray can't be started on this machine" if address == LOCAL else f"the Ray cluster '{address}' can't be used"
        )
        raise UserError(f"{what}: {why}") from error


@contextlib.contextmanager
def _keeping_signals() -> Iterator[None]:
    """Ray replaces the handlers of SIGTERM and others, also those of the system, as it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    set_signal: Any = signal.signal
    unchanged: Any = lambda number, handler: None if number in before else set_signal(number, handler)  # noqa: E731
    signal.signal = unchanged
    try:
        yield
    finally:
        signal.signal = set_signal
        for number, handler in before.items():
            set_signal(number, handler)


@contextlib.contextmanager
def _leaving_at_once() -> Iterator[None]:
    """After an error in a command, end the process without Ray's own end: a thread may still wait for it, and Python
    would abort. Everything that is ours is cleaned up by then."""
    try:
        yield
    except BaseException as error:
        if signal.getsignal(signal.SIGTERM) is interrupts.handle:  # in a command
            code = interrupts.exit_code(error.number) if isinstance(error, interrupts.Interrupted) else 2
            atexit.register(_leave, code)
        raise


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def _place_for_ray() -> Iterator[Path]:
    """A private folder for Ray's logs and sockets, removed at the end; those of killed commands by the next one."""
    above = Path(tempfile.gettempdir())
    above = above if len(str(above)) + len(LEFTOVERS) < LONGEST_PLACE - 8 else Path("/tmp")
    for left in above.glob(f"{LEFTOVERS}*"):
        with contextlib.suppress(OSError), open(left / "lock", "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by the command that made it, until it ends
            shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=LEFTOVERS, dir=above))
    with open(place / "lock", "xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file.fileno(), False)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _ending_children() -> Iterator[Callable[[], None]]:
    """End the processes that were started inside and are still there. Those whose parent ends first are only found if
    the function was called before."""
    import psutil

    me = psutil.Process()
    before, found = set(me.children(recursive=True)), set[Any]()

    def note() -> None:
        found.update(child for child in me.children(recursive=True) if child not in before)

    try:
        yield note
    finally:
        note()
        for child in found:
            with contextlib.suppress(psutil.Error):
                child.kill()  # not another process with the same number
        psutil.wait_procs(found, timeout=5)


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Ray's native code prints to the terminal as it starts, whatever it is told."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _shut_down(ray: Any) -> None:
    """Leave the cluster, or end the local one. Ray may hang while it does."""
    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    ending.join(END)


# ---------------------------------------------------------------------- work


class Engine:
    """A connection to Ray, which runs rows through workers."""

    def __init__(self, cluster: Cluster, workers: int, cpus: float, gpus: float) -> None:
        self.cluster, self.workers, self.cpus, self.gpus = cluster, workers, cpus, gpus

    @property
    def is_local(self) -> bool:
        return self.cluster.address == LOCAL

    def hosts(self) -> set[str]:
        """The machines of the cluster, also those that it has lost, as they are called in temporary names."""
        import ray

        return {host_name(node["NodeManagerHostname"]) for node in ray.nodes()}

    def describe(self) -> str:
        where = "this machine" if self.is_local else self.cluster.address
        each = f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"Ray on {where}: {counted(self.workers, 'worker')} with {each} each."

    def run(
        self,
        blocks: Sequence[Any],
        open_worker: Callable[..., Work],
        settings: dict[str, Any],
        advance: Callable[[float], None] = lambda _: None,
    ) -> Iterator[dict[str, Any]]:
        """Send rows (pyarrow tables, each a unit of work that is repeated if its worker dies) to workers, and yield
        what they return. `open_worker(**settings)` loads what a worker holds; `advance` hears of progress."""
        results: queue.Queue[Any] = queue.Queue()
        key = f"{secrets.token_hex(8)}/".encode()
        stop = threading.Event()
        arguments = (blocks, open_worker, settings, key, results, stop)
        threading.Thread(target=self._feed, args=arguments, daemon=True).start()
        rows = sum(block.num_rows for block in blocks)
        beats, last = _Beats(key), time.monotonic()
        try:
            while rows:
                try:
                    found = results.get(timeout=min(POLL, self.cluster.patience))
                except queue.Empty:
                    found = None
                if isinstance(found, Exception):
                    raise _as_user_error(found) from found
                if (done := beats.read()) or found is not None:
                    last = time.monotonic()
                    advance(done)
                if found is not None:
                    rows -= 1
                    advance(beats.finish(found))
                    if "failed" in found:
                        raise UserError(found["failed"])
                    yield found
                elif time.monotonic() - last > self.cluster.patience:
                    raise UserError(
                        f"nothing has moved on the Ray cluster for {self.cluster.patience:,.0f} seconds (--patience). "
                        "Finished work is kept: run the same command again. `ray status` shows whether the "
                        "cluster has room for the workers."
                    )
        finally:
            stop.set()
            beats.forget()

    def _feed(
        self,
        blocks: Sequence[Any],
        open_worker: Callable[..., Work],
        settings: dict[str, Any],
        key: bytes,
        results: "queue.Queue[Any]",
        stop: threading.Event,
    ) -> None:
        """Run the dataset. In a thread of its own, since Ray Data can't be interrupted."""
        try:
            import ray.data

            size = min(self.workers, sum(block.num_rows for block in blocks))
            dataset = ray.data.from_arrow(list(blocks)).map_batches(
                Worker,
                fn_constructor_kwargs={"open_worker": open_worker, "settings": settings, "key": key, "cpus": self.cpus},
                batch_size=1,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=max(1, size), max_tasks_in_flight_per_actor=2),
                num_cpus=self.cpus,
                num_gpus=self.gpus or None,
            )
            for row in dataset.iter_rows():
                results.put(json.loads(row["result"]))
                if stop.is_set():
                    return
        except Exception as error:
            results.put(error)


class Worker:
    """The actor. A mistake of the user comes back as a row, since Ray would wrap or repeat an exception."""

    def __init__(self, open_worker: Callable[..., Work], settings: dict[str, Any], key: bytes, cpus: float) -> None:
        use_cores(cpus)
        self.key, self.beaten = key + secrets.token_hex(8).encode(), 0.0
        self.work: Work | None = None
        try:
            self.work = open_worker(**settings)
        except UserError as error:
            self.why = str(error)

    def __call__(self, table: Any) -> dict[str, list[str]]:
        return {"result": [json.dumps(self._answer(row)) for row in table.to_pylist()]}

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        number = row["number"]
        if self.work is None:
            return {"number": number, "failed": self.why}
        try:
            return {"number": number, **self.work(row, lambda amount: self._beat(number, amount))}
        except UserError as error:
            return {"number": number, "failed": str(error)}

    def _beat(self, number: int, amount: float) -> None:
        """Tell the driver how much of a row is done."""
        if time.monotonic() - self.beaten > POLL / 2:
            self.beaten = time.monotonic()
            _put(self.key, json.dumps([number, amount]).encode())


def use_cores(cpus: float) -> None:
    """As many threads as the worker has CPUs: others have the rest of the machine."""
    number = max(1, round(cpus))
    os.environ.setdefault("RAYON_NUM_THREADS", str(number))  # of the tokenizer
    import torch

    torch.set_num_threads(number)


class _Beats:
    """What the workers say about their progress, in Ray's key-value store. A row that is begun again after a crash
    makes no progress until it is further than before."""

    def __init__(self, key: bytes) -> None:
        self.key, self.furthest, self.read_at = key, dict[int, float](), 0.0

    def read(self) -> float:
        """How much was done since the last call."""
        if time.monotonic() - self.read_at < POLL:
            return 0.0
        self.read_at, done = time.monotonic(), 0.0
        for key in _keys(self.key):
            if value := _get(key):
                number, amount = json.loads(value)
                more = amount - self.furthest.get(number, 0.0)
                if more > 0:
                    self.furthest[number] = amount
                    done += more
        return done

    def finish(self, result: dict[str, Any]) -> float:
        """How much of a row was done since its last beat. A row's `amount` is what its last beat would have said."""
        return max(0.0, float(result.get("amount", 0)) - self.furthest.pop(result["number"], 0.0))

    def forget(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            from ray.experimental import internal_kv

            internal_kv._internal_kv_del(self.key, del_by_prefix=True, namespace=NAMESPACE)


def _put(key: bytes, value: bytes) -> None:
    with contextlib.suppress(Exception):  # the next beat may arrive
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(key, value, namespace=NAMESPACE)


def _get(key: bytes) -> bytes | None:
    with contextlib.suppress(Exception):
        from ray.experimental import internal_kv

        found: bytes | None = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        return found
    return None


def _keys(prefix: bytes) -> Iterable[bytes]:
    with contextlib.suppress(Exception):
        from ray.experimental import internal_kv

        found: list[bytes] = internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
        return found
    return ()


def _as_user_error(error: Exception) -> UserError:
    """What ended a dataset, as a sentence: the error of the worker's own code, if that was it."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).strip().splitlines() if line.strip()] or [type(cause).__name__]
    return UserError(
        f"the Ray cluster stopped with {type(cause).__name__}: {shorten(lines[-1], 300)}. Finished work is kept: run "
        "the same command again."
    )
