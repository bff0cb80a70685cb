"""Imports go one way, in the order of the data flow, and fast commands do not import torch."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
PACKAGE = SRC / "bertvision"

# Bottom up: a module imports only from its own subpackage, or from those listed before it.
ORDER = (
    "interrupts", "waiting", "errors", "disk", "network", "hub", "settings", "tables", "threads", "registry",
    "progress", "machine",
    "data", "evaluation", "kinds", "tasks", "config", "encoder", "sources", "heads", "training",
    "pipeline", "report", "papers", "kits", "models", "export", "api", "search", "cluster", "cli", "__main__",
)  # fmt: skip
LIGHT = (
    "interrupts",
    "waiting",
    "threads",
    "errors",
    "settings",
    "tables",
    "registry",
    "progress",
    "disk",
    "kinds",
    "tasks",
    "config",
    "data",
    "cli",
    "__init__",
    "__main__",
)
HEAVY = ("torch", "transformers", "accelerate", "datasets", "sklearn", "scipy", "safetensors", "optuna", "altair")


def modules() -> dict[str, Path]:
    """Dotted name → file, for every module of the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = list(path.relative_to(SRC).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def part_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported(tree: ast.AST) -> list[str]:
    """Every module that a piece of code imports; `from package import module` counts as the module itself."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.append(inner if inner in MODULES else node.module)
    return names


def at_import(tree: ast.Module) -> ast.Module:
    """The code that runs when a module is imported: no bodies of functions or methods, no `if TYPE_CHECKING`."""
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            kept += at_import(ast.Module(node.body, [])).body
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            kept.append(node)
    return ast.Module(kept, [])


def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def test_every_subpackage_is_in_the_order() -> None:
    assert len(MODULES) > 40
    assert {part_of(module) for module in MODULES} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"bertvision"}))
def test_imports_go_one_way(module: str) -> None:
    own = part_of(module)
    for name in imported(parse(module)):
        if name.startswith("bertvision."):
            other = part_of(name)
            assert other == own or ORDER.index(other) < ORDER.index(own), f"{module} imports {name}, which comes later"


def test_no_two_modules_import_each_other_even_inside_a_subpackage() -> None:
    graph = {m: {n for n in imported(at_import(parse(m))) if n in MODULES and n != m} for m in MODULES}
    # A package's __init__ gathers its modules: they may name the package to reach a sibling, not the other way round.
    done: set[str] = set()
    while ready := [m for m in graph if m not in done and not (graph[m] - done)]:
        done.update(ready)
    assert not set(graph) - done, f"circular imports among {sorted(set(graph) - done)}"


def run_in_a_fresh_process(script: str, **environment: str) -> None:
    words = [sys.executable, "-c", script]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(SRC), "PATH": "", **environment}
    )
    assert done.returncode == 0, done.stderr


def test_light_modules_import_no_heavy_library_directly_or_indirectly() -> None:
    light = sorted(m for m in MODULES if part_of(m) in LIGHT and m != "bertvision.__main__")
    assert len(light) > 30
    run_in_a_fresh_process(
        f"""
import importlib
import sys
for module in {light}:
    importlib.import_module(module)
    heavy = [name for name in {HEAVY} if name in sys.modules]
    assert not heavy, (module, heavy)
"""
    )


def test_fast_commands_import_neither_torch_nor_transformers() -> None:
    """One process for all, checked after each: starting a process takes longer than the checks."""
    run_in_a_fresh_process(
        """
import sys
def run(*words):
    from bertvision.__main__ import main
    sys.argv = ["bertvision", *words]
    try:
        main()
    except SystemExit as leave:
        assert not leave.code, leave.code
for code in (
    "import bertvision",
    "bertvision.TaskConfig, bertvision.load_config",
    "run('--help')",
    "run('-v', '--help')",
    "run('run', '--help')",
    "run('tasks')",
    "run('settings')",
    "run('--version')",
):
    exec(code)
    heavy = {"torch", "transformers", "accelerate", "sklearn", "scipy", "psutil"} & set(sys.modules)
    assert not heavy, (code, heavy)
"""
    )


def test_using_a_trained_run_imports_nothing_from_training() -> None:
    """One process for all three, checked after each: importing torch takes seconds."""
    run_in_a_fresh_process(
        """
import importlib
import sys
for module in ("predict", "finished", "states"):
    importlib.import_module(f"bertvision.pipeline.{module}")
    found = [name for name in sys.modules if name.startswith("bertvision.training")]
    assert not found, (module, found)
""",
        **{**os.environ, "PYTHONPATH": str(SRC)},
    )
