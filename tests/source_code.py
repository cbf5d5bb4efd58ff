"""The product's source code, parsed and walked once for all tests of a process that look at it."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("echo_queue", "workers", "learner")


@cache
def files(packages: tuple[str, ...] = PRODUCT) -> tuple[str, ...]:
    """Paths of all modules of these packages, relative to `ROOT`, sorted."""
    found = (path.relative_to(ROOT).as_posix() for package in packages for path in (ROOT / package).rglob("*.py"))
    return tuple(sorted(found))


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes below and including this one, in the order of `ast.walk`; those of a whole module are kept."""
    return _nodes_of_module(tree) if isinstance(tree, ast.Module) else tuple(ast.walk(tree))


@cache
def parents_of(tree: ast.Module) -> Mapping[ast.AST, ast.AST]:
    return {child: node for node in nodes_of(tree) for child in ast.iter_child_nodes(node)}


@cache
def _nodes_of_module(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))
