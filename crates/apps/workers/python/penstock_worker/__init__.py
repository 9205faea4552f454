"""The Python worker of Penstock: one WSGI application over sockets inherited from the server.

`boot` loads the application, `wsgi` runs requests, `wire` speaks the frames described in
`crates/wire/PROTOCOL.md`, `input` makes streams of request bodies. Standard library only, CPython
3.8 or newer; nothing of it is installed beside the application.
"""
