"""From `module:callable` to an application, and whether that is WSGI or ASGI.

`boot` calls `load` once a process. The callable may be left out, be a factory, with or without the
brackets and arguments that Gunicorn takes, or hold the application in an attribute.

# Invariants
- A factory is called only if the entry says so, or if it is neither WSGI nor ASGI and can be called
  without arguments.
- The returned object can be served as the returned interface; anything else is one TypeError that
  names what was found and what to do.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from .interface import (
    ASGI,
    VARIADIC,
    WSGI,
    interface_of,
    is_async,
    is_callable_without_arguments,
    is_paste_factory,
    parameters_of,
)

App = Callable[..., Any]

# Where an entry names a module only: what its application may be called, in this order.
_APP_NAMES = ("application", "app", "asgi_app", "wsgi_app", "server", "api", "asgi", "wsgi")
_FACTORY_NAMES = ("create_app", "make_app", "get_app", "create_application", "main")

# What functions are called that make an application.
_FACTORY_NAME = re.compile("(create|make|build|get|init)(_|$)|.*factory")

# Libraries whose applications only their own server can serve.
_OWN_SERVERS = ("aiohttp", "tornado")

# Where an object that cannot be called may hold its application.
_APP_ATTRIBUTES = ("server", "wsgi_app", "asgi_app", "wsgi", "asgi", "app", "application", "build")


def load(
    entry: str,
    folder: str,
    interface: str,
    is_guess: bool,
    before_import: Callable[[], None] = lambda: None,
) -> Tuple[App, str]:
    """The application of an entry and its interface. `interface` is what it is to have; where that
    `is_guess`, an application that is something else is what it is. `before_import` is called when
    modules of the folder can be imported."""
    _set_import_path(folder, entry)
    before_import()
    module_name, _, path = entry.partition(":")
    module = importlib.import_module(module_name)
    target = _resolve_path(module, path, entry) if path else _find_app(module, entry)
    app = _resolve_app(target, module)
    found = interface_of(app) if app is not None else None
    if app is None or (found is None and not _can_be_called_as(app, interface)):
        raise TypeError(_not_an_app_message(entry, target, interface, is_guess, module))
    if found is None or found == interface:
        return app, interface
    if is_guess:
        return app, found
    raise TypeError(
        f"{entry} is {_interface_with_article(found)} application ({_describe(app)}), "
        f"and is to be served as {interface.upper()}: "
        f'say kind = "{found}" (--kind {found}), or leave the kind out'
    )


def _set_import_path(folder: str, entry: str) -> None:
    """Makes the application's folder the first to import from, and its `src` if the module is there."""
    os.chdir(folder)
    if sys.path[:1] == [""]:
        del sys.path[0]
    here = os.getcwd()
    top = entry.partition(":")[0].partition(".")[0]
    sys.path.insert(0, here)
    source = os.path.join(here, "src")
    if _has_module(source, top) and not _has_module(here, top):
        sys.path.insert(0, source)


def _has_module(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    return os.path.isfile(path + ".py") or os.path.isdir(path)


def _resolve_path(module: ModuleType, path: str, entry: str) -> Any:
    """The object named behind the colon, called if brackets say so."""
    name, bracket, _ = path.partition("(")
    target: Any = module
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            if target is not module:
                raise
            raise AttributeError(f"{error}{_other_apps_hint(module)}") from None
    if not bracket:
        return target
    arguments, keywords = _parse_arguments(path, entry)
    return target(*arguments, **keywords)


def _parse_arguments(path: str, entry: str) -> Tuple[List[Any], Dict[str, Any]]:
    try:
        call = ast.parse(path, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError
        arguments = [ast.literal_eval(value) for value in call.args]
        named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords if k.arg}
    except (SyntaxError, ValueError):
        raise TypeError(f"{entry}: a factory's arguments must be literals") from None
    return arguments, named


def _find_app(module: ModuleType, entry: str) -> Any:
    """The application of a module by the usual names, else the only one that it has."""
    for name in _APP_NAMES:
        found = getattr(module, name, None)
        if _is_candidate(found, module):
            return found
    for name in _FACTORY_NAMES:
        found = getattr(module, name, None)
        if is_callable_without_arguments(found) or is_paste_factory(found):
            return found
    names = _app_instance_names(module)
    if len(names) == 1:
        return getattr(module, names[0])
    looked = ", ".join(_APP_NAMES + _FACTORY_NAMES)
    several = f" and several others: {', '.join(names)}" if names else ""
    raise AttributeError(
        f"module {module.__name__!r} has none of {looked}{several}; "
        f"say which is the application: {entry}:NAME"
    )


def _is_candidate(value: Any, module: ModuleType) -> bool:
    if interface_of(value) is not None:
        return True
    if inspect.isroutine(value) or inspect.isclass(value):
        return False
    return callable(value) or _app_attribute(value, module) is not None


def _app_instance_names(module: ModuleType) -> List[str]:
    """Names of a module's applications that are no mere functions: those may be anything."""
    found: Dict[int, str] = {}
    for name, value in vars(module).items():
        is_plain = inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
        if not is_plain and not name.startswith("_") and interface_of(value) is not None:
            found.setdefault(id(value), name)
    return list(found.values())


def _other_apps_hint(module: ModuleType) -> str:
    names = _app_instance_names(module)
    return f" (its applications: {', '.join(names)})" if names else ""


def _resolve_app(target: Any, module: ModuleType) -> Optional[App]:
    """The application that an object is, makes or holds; None when it is, makes and holds none."""
    # A factory may give another, and that an object which holds the application.
    for _ in range(4):
        if interface_of(target) is not None:
            return target  # type: ignore[no-any-return]
        if is_callable_without_arguments(target) and not is_async(target):
            target = target()
        elif is_paste_factory(target):
            target = target({})
        elif callable(target):
            return target  # type: ignore[no-any-return]
        else:
            target = _app_attribute(target, module)
    return None


def _app_attribute(holder: Any, module: ModuleType) -> Any:
    """What an object that cannot be called holds as its application, as those of Dash, Datasette
    and marimo do."""
    kind = type(holder)
    if kind.__name__ == "App" and kind.__module__.startswith("marimo."):
        # A notebook; only marimo's own command would serve it otherwise.
        marimo = importlib.import_module("marimo")
        return marimo.create_asgi_app().with_app(path="", root=module.__file__)
    for name in _APP_ATTRIBUTES:
        found = getattr(holder, name, None)
        if interface_of(found) is not None or is_callable_without_arguments(found):
            return found
    return None


def _can_be_called_as(app: App, interface: str) -> bool:
    """Whether an object that does not tell what it is can be called as `interface` wants."""
    parameters = parameters_of(app)
    if parameters is None:
        return not inspect.isclass(app)
    count = 3 if interface == ASGI else 2
    try:
        inspect.Signature(parameters).bind(*range(count))
    except TypeError:
        return False
    return not inspect.isclass(app) and (interface == ASGI or not is_async(app))


def _not_an_app_message(
    entry: str, target: Any, interface: str, is_guess: bool, module: ModuleType
) -> str:
    wanted = "a WSGI or ASGI" if is_guess else _interface_with_article(interface)
    text = f"{entry} is a {type(target).__name__}, not {wanted} application"
    library = type(target).__module__.partition(".")[0]
    if library in _OWN_SERVERS:
        return (
            f"{text}: {library} runs a server of its own; "
            f'serve it by kind = "command" and command = "python3 FILE {{port}}"'
        )
    if not callable(target):
        return text + _other_apps_hint(module)
    parameters = parameters_of(target) or []
    names = ", ".join(p.name for p in parameters)
    text = f"{entry} is {_describe(target)} with the parameters ({names}): not {wanted} application"
    if is_async(target) and not parameters:
        return text + "; a factory must not be a coroutine function"
    if inspect.isroutine(target) and _FACTORY_NAME.match(target.__name__):
        required = [p.name for p in parameters if p.default is p.empty and p.kind not in VARIADIC]
        values = ", ".join(f"{name}=..." for name in required)
        spelled = f"{module.__name__}:{target.__name__}({values})"
        return f"{text}; if it is a factory, say with which arguments it is called: {spelled}"
    hint = "; with one parameter it may be for ASGI 2, which is not supported"
    hint = hint if len(parameters) == 1 else ""
    return f"{text}: WSGI takes (environ, start_response), ASGI (scope, receive, send){hint}"


def _describe(target: Any) -> str:
    if is_async(target) and inspect.isroutine(target):
        return "a coroutine function"
    if inspect.isroutine(target):
        return "a function"
    if inspect.isclass(target):
        return f"the class {target.__module__}.{target.__qualname__}"
    return f"an instance of {type(target).__module__}.{type(target).__qualname__}"


def _interface_with_article(interface: str) -> str:
    return "an ASGI" if interface == ASGI else f"a {WSGI.upper()}"
