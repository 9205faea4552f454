"""The Python worker of Penstock: one application over sockets inherited from the server.

`boot` loads the application, `wsgi` runs requests, `wire` has the frames described in
`crates/wire/PROTOCOL.md`, `request_body` makes streams of request bodies. `template` forks workers
from a process that has loaded the code (by `forks`). `slot_threads` are the threads of a worker,
`idle_gc` collects its garbage, `thread_stacks` dumps its stacks. `asgi` and `gevent_reactor` are
the reactors. Standard library only, CPython 3.8 or newer; nothing of it is installed beside the
application.

Applications call `penstock_worker.prevent_fork`: see `api`.
"""

from .api import prevent_fork

__all__ = ["prevent_fork"]
