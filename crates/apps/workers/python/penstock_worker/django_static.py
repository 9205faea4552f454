"""Django's own handler of static files around an application, as `runserver` has it.

`boot` asks for it in development, where the server found that `DEBUG` is on and
`django.contrib.staticfiles` installed: files are then found in the applications' folders, and none
need be collected.
"""

from __future__ import annotations

import os
from typing import Any, Callable

# Set by the server.
_VARIABLE = "PENSTOCK_DJANGO_STATIC"


def wrap(app: Callable[..., Any], interface: str) -> Callable[..., Any]:
    """The application, with static files before it where the server asks for that."""
    if os.environ.pop(_VARIABLE, None) != "1":
        return app
    from django.contrib.staticfiles import handlers

    if interface == "asgi":
        return handlers.ASGIStaticFilesHandler(app)  # type: ignore[no-any-return]
    return handlers.StaticFilesHandler(app)  # type: ignore[no-any-return]
