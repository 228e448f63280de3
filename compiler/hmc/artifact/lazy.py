"""Public names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for the package of this name. Its public names are those that its file
    imports under `if TYPE_CHECKING`, where type checkers read them too; `__all__` has them.

    Importing the package then imports none of the modules. `__getattr__` raises AttributeError for other names.
    """
    module = sys.modules[package]

    @cache
    def module_of() -> dict[str, str]:
        """Public name → the module that defines it."""
        import ast

        loader: Any = module.__loader__
        [block] = [node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If)]
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted(module_of())
        if name not in module_of():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of()[name]), name)
        setattr(module, name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(module), *module_of()})

    return __getattr__, __dir__
