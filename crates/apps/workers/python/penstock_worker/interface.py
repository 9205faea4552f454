"""Whether an object is called as WSGI or as ASGI.

`entry` asks for the objects of an application's module. The object itself decides: its parameters,
whether it is a coroutine function, and what it wraps. Nothing is called to find out.

# Invariants
- An answer is certain: for an object that could be called either way there is none.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Iterator, List, Optional

WSGI = "wsgi"
ASGI = "asgi"

# How deep one wrapper may lie in another.
_MAX_DEPTH = 16

# What wrappers call the application that they pass all arguments on to.
_INNER_NAMES = (
    "__wrapped__",
    "app",
    "application",
    "wsgi_app",
    "asgi_app",
    "_app",
    "_application",
    "wrapped_app",
    "wrapped",
    "inner",
    "func",
)

# An instance may have one of its own, which its class leads to.
_CALL_METHOD = "__call__"

_ENVIRON_NAMES = ("environ", "env", "wsgi_environ", "environment")


def interface_of(target: Any) -> Optional[str]:
    """`wsgi`, `asgi`, or None for an object that is neither for sure."""
    return _interface_of(target, 0)


def is_callable_without_arguments(target: Any) -> bool:
    """Whether it is a function, method or class that can be called without arguments."""
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        return False
    parameters = parameters_of(target)
    return parameters is not None and all(_is_optional(p) for p in parameters)


def is_paste_factory(target: Any) -> bool:
    """Whether it is an application factory of PasteDeploy's: `main(global_config, **settings)`."""
    parameters = parameters_of(target) if inspect.isfunction(target) else None
    required = [p for p in parameters or [] if p.default is p.empty and p.kind not in VARIADIC]
    return len(required) == 1 and required[0].name.startswith("global_conf")


def parameters_of(target: Any) -> Optional[List[inspect.Parameter]]:
    """Its parameters; None for a callable that does not tell."""
    for part in (target, getattr(target, _CALL_METHOD, None)):
        try:
            return list(inspect.signature(part).parameters.values())
        # Also what annotations raise: Python 3.14 looks at them only now.
        except Exception:
            continue
    return None


def is_async(target: Any) -> bool:
    """Whether calling it gives a coroutine."""
    while isinstance(target, functools.partial):
        target = target.func
    call = None if inspect.isclass(target) else getattr(target, _CALL_METHOD, None)
    return any(
        inspect.iscoroutinefunction(part)
        # Of compiled functions, which have no flags to look at.
        or getattr(part, "_is_coroutine_marker", None) is not None
        or getattr(part, "_is_coroutine", None) is not None
        for part in (target, call)
        if part is not None
    )


def _interface_of(target: Any, depth: int) -> Optional[str]:
    if not callable(target) or depth > _MAX_DEPTH:
        return None
    parameters = parameters_of(target)
    if parameters is None:
        return ASGI if is_async(target) else _interface_by_module(target)
    two, three = _accepts_positional(parameters, 2), _accepts_positional(parameters, 3)
    first = next((p.name.strip("_") for p in parameters if p.kind in _POSITIONAL), "")
    if two and first in _ENVIRON_NAMES:
        return None if _is_never_wsgi(target) else WSGI
    if three and (first == "scope" or not two):
        return ASGI
    if two and not three:
        return None if _is_never_wsgi(target) else WSGI
    if not two:
        return None
    if is_async(target):
        return ASGI
    answers = {_interface_of(inner, depth + 1) for inner in _wrapped_candidates(target)} - {None}
    return answers.pop() if len(answers) == 1 else None


def _is_never_wsgi(target: Any) -> bool:
    return is_async(target) or inspect.isasyncgenfunction(target)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _accepts_positional(parameters: List[inspect.Parameter], count: int) -> bool:
    """Whether it can be called with so many positional arguments and nothing else."""
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = [p for p in positional if p.default is p.empty]
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needs_name = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    return not needs_name and len(required) <= count and (is_open or count <= len(positional))


def _is_optional(parameter: inspect.Parameter) -> bool:
    if parameter.kind is parameter.VAR_POSITIONAL:
        # It may pass on whatever an application is called with.
        return False
    return parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty


def _wrapped_candidates(target: Any) -> Iterator[Any]:
    """What a wrapper may pass its arguments on to: attributes, or variables of its closure."""
    if inspect.isclass(target):
        return
    if inspect.isfunction(target):
        for cell in target.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # It is not filled yet.
                continue
        return
    for name in _INNER_NAMES:
        try:
            found = getattr(target, name, None)
        except Exception:  # A property of the application's own.
            continue
        if found is not None and found is not target:
            yield found


def _interface_by_module(target: Any) -> Optional[str]:
    """Of a callable that has no signature, what the modules of its classes are named after."""
    for kind in type(target).__mro__:
        words = kind.__module__.replace("_", ".").split(".")
        if ASGI in words or WSGI in words:
            return ASGI if ASGI in words else WSGI
    return None
