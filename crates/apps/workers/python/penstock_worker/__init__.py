"""The Python worker of Penstock: one application over sockets inherited from the server.

`boot` loads the application, `wsgi` runs requests, `wire` speaks the frames described in
`crates/wire/PROTOCOL.md`, `request_body` makes streams of request bodies. `template` forks workers from a
process that has loaded the code (`forks` is how), `slot_threads` keeps a worker's threads, `idle_gc` its
garbage, `thread_stacks` shows where it is. `asgi` and `gevent_reactor` are the reactors. Standard library only,
CPython 3.8 or newer; nothing of it is installed beside the application.

`penstock_worker.prevent_fork` is for applications: see `api`.
"""

from .api import prevent_fork

__all__ = ["prevent_fork"]
