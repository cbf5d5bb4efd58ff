"""No module unpickles anything: bytes from elsewhere can be wrong, but never run."""

import ast
from collections.abc import Iterator

import pytest

from tests.source_code import files, nodes_of, tree_of

PACKAGES = ("echo_queue", "workers", "learner", "benchmarks")
SOURCES = files(PACKAGES)

UNPICKLERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
    "joblib",
    "jsonpickle",
    "yaml",
}
"""Modules that make objects, or run code, from bytes."""
PROCESSES = {"multiprocessing", "concurrent.futures.process"}
"""Their pipes and queues unpickle what the other side sends."""
ALONE = {"benchmarks/fleet/fleet.py", "benchmarks/fleet/machine.py"}
"""A benchmark's own processes, forked on its machine: no other process speaks to them."""
BASELINE = {"benchmarks/pipeline_rl.py"}
"""Another project's encoding, which a benchmark measures on groups that it made itself."""
SAFE_LOADS = {"safetensors.torch", "orjson", "json", "tomllib", "configuration", "library", "self.engine", "engine"}
"""The owners of a `load` or `loads` that gives plain values or tensors, or takes them."""
CODE = {"eval", "exec", "compile", "__import__"}


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 80


@pytest.mark.parametrize("file", SOURCES)
def test_a_module_of_ours_cannot_unpickle(file: str) -> None:
    found = wrongs(tree_of(file))
    allowed = "multiprocessing" if file in ALONE else "pickle" if file in BASELINE else None
    assert [wrong for wrong in found if allowed is None or allowed not in wrong] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path)",
        "from torch import load",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import yaml",
        "from multiprocessing.connection import Connection",
        "from multiprocessing import Queue",
        "connection.recv()",
        "eval(text)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, use_safetensors=False)",
    ],
)
def test_this_test_sees_one_that_could(text: str) -> None:
    assert list(wrongs(ast.parse(text)))


def wrongs(tree: ast.Module) -> Iterator[str]:
    """Yields the places of a module that may make objects, or run code, from bytes."""
    for node in nodes_of(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"imports {name.name}" for name in names if _unpickles(name.name))
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"imports {module}" for _ in names[:1] if _unpickles(module))
                yield from ("imports torch.load" for name in names if (module, name.name) == ("torch", "load"))
            case ast.Call(func=ast.Name(id=name)) if name in CODE:
                yield f"calls {name}"
            case ast.Call(func=ast.Attribute(value=owner, attr="load" | "loads")) if (
                ast.unparse(owner) not in SAFE_LOADS
            ):
                yield f"calls {ast.unparse(node.func)}"
            case ast.Call(func=ast.Attribute(attr="recv"), args=[]):
                yield "receives from a connection of multiprocessing"
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            if node.arg in ("allow_pickle", "trust_remote_code") and node.value.value:
                yield f"sets {node.arg}"
            if node.arg in ("use_safetensors", "weights_only") and not node.value.value:
                yield f"sets {node.arg} to False"


def _unpickles(module: str) -> bool:
    return module.partition(".")[0] in UNPICKLERS or any(f"{module}.".startswith(f"{one}.") for one in PROCESSES)
