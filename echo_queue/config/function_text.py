"""Finds the function or class that a user names in the text of its module, whose import may take long or fail."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from echo_queue.config import module_search
from echo_queue.errors import Problem

COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.Match)
"""Statements of which the text does not tell whether, and how often, they run."""

UNWRITTEN = "NotImplementedError"
NOWHERE = "neither in {} nor among the installed packages"


def definition(where: str, reference: str) -> ast.AST | Problem | None:
    """Returns the definition of the user's function or class; None if none is named, or the text does not tell.

    `where`: the key that names it, as `module:name`.
    """
    if ":" not in reference:
        return None
    name = reference.partition(":")[2]
    file = _text(where, reference)
    return _definition(where, file, name) if isinstance(file, Path) else file


def wrong_returns(function: ast.AST | None) -> str:
    """Says what a reward function returns wherever it returns, if its text shows that it is no list; else nothing.

    The text of a function that a decorator may change shows nothing.
    """
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
        return ""
    own = list(_statements_of(function))
    if yields := [node for node in own if isinstance(node, ast.Yield | ast.YieldFrom)]:
        return f"is a generator (line {yields[0].lineno} yields)"
    returns = [node for node in own if isinstance(node, ast.Return)]
    kinds = [_kind(node.value) for node in returns]
    return f"returns {kinds[0]} (line {returns[0].lineno})" if kinds and all(kinds) else ""


def unwritten(function: ast.AST | None) -> int:
    """Returns the line on which a function does nothing but to raise `NotImplementedError`; 0 if it is written."""
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        match [node for node in function.body if not _is_text(node)]:
            case [ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name)))] if name == UNWRITTEN:
                return function.body[-1].lineno
    return 0


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statements_of(function: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function, without those of functions and classes within it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _statements_of(node)


def _kind(value: ast.expr | None) -> str:
    """Names what an expression surely is, if it cannot be a list of rewards."""
    match value:
        case None | ast.Constant(value=None):
            return "nothing"
        case ast.Constant(value=str()) | ast.JoinedStr():
            return "a text"
        case ast.Constant() | ast.Call(func=ast.Name(id="float" | "int" | "bool" | "len")):
            return "one number"
        case ast.GeneratorExp():
            return "a generator"
    return ""


def missing_import(where: str, reference: str) -> Problem | None:
    """Returns a problem if the user's module imports another one that there is not here, whatever happens."""
    file = _text(where, reference) if ":" in reference else None
    if not isinstance(file, Path):
        return None
    with suppress(SyntaxError, UnicodeDecodeError):  # which `definition` tells
        for name in _imported(ast.parse(file.read_text(encoding="utf-8"))):
            if find_spec(name) is None and module_search.find(name) is None:
                what = f"{file.name} imports {name}, and there is no such module, {NOWHERE.format(Path.cwd())}"
                return Problem(where, what, "install what brings it, or take the import out")
    return None


def _text(where: str, reference: str) -> Path | Problem | None:
    """Returns the file of the module that `module:name` names; None if it has no text."""
    module, _, name = reference.partition(":")
    if "/" in module or module.endswith(".py"):
        plain = module.removesuffix(".py").rpartition("/")[2]
        what = f"{module} is a file's name, and no module's"
        return Problem(where, what, f'write "{plain}:{name}", and start the command in the folder of that file')
    first, *rest = module.split(".")
    if (own := module_search.module_file(first)) and (other := module_search.in_place_of(own)):
        what = f"{own.name} in this folder cannot be imported: {other} has its name"
        return Problem(where, what, f"rename it, for example to my_{own.name}, and name it so here")
    spec = module_search.find(first)
    if spec is None:
        what = f"there is no module {first}, {NOWHERE.format(Path.cwd())}"
        return Problem(where, what, "start the command in the folder of that file, or install it")
    return _file(Path(spec.origin), rest) if spec.origin else None


def _file(origin: Path, rest: Sequence[str]) -> Path | None:
    if rest:
        origin = origin.parent.joinpath(*rest).with_suffix(".py")
    return origin if origin.suffix == ".py" and origin.is_file() else None


def _definition(where: str, file: Path, name: str) -> ast.AST | Problem | None:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        return Problem(where, f"{file} is not Python: {error}", "fix that line")
    names: dict[str, ast.AST] = {}
    for node in tree.body:
        names |= dict.fromkeys(_names(node), node)
    if any(name in _bound_within(node) for node in tree.body if isinstance(node, COMPOUND)):
        return None
    if name in names:
        return names[name]
    if "*" in names or any(isinstance(node, COMPOUND) for node in tree.body):
        return None
    near = difflib.get_close_matches(name, names, n=1)
    fix = f"did you mean {near[0]}?" if near else f"define it there, or name one of: {', '.join(sorted(names)) or '-'}"
    return Problem(where, f"{file.name} defines no {name}", fix)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yields the packages that the module imports whatever happens; those within packages are of its own."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in names)
        case ast.Assign(targets=targets):
            yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _bound_within(statement: ast.stmt) -> set[str]:
    """Returns the names that a compound statement may bind."""
    nodes = list(ast.walk(statement))
    named = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return named | {name for node in nodes if isinstance(node, ast.stmt) for name in _names(node)}
