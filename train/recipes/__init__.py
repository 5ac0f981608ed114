"""The recipes by name; each module's ``build`` gives the engine what it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

BUILDERS = {"speech": "train.recipes.speech"}


def builder(name: str) -> Callable[..., Any]:
    """``build`` of a recipe; its module is imported here and not before."""
    return importlib.import_module(BUILDERS[name]).build
