"""Holds streams by responding with GRIP fields, and echoes the request."""

import os

def app(environ, start):
    path = environ["PATH_INFO"]
    kind, _, name = path[1:].partition("/")
    headers = [("Content-Type", "text/plain")]
    body = path.encode()
    if kind == "stream":
        headers = [
            ("Content-Type", "text/event-stream"),
            ("Grip-Hold", "stream"),
            ("Grip-Channel", name),
            ("X-Own", "yes"),
        ]
        body = b"data: welcome\n\n"
    elif kind == "beat":
        headers = [
            ("Grip-Hold", "stream"),
            ("Grip-Channel", name),
            ("Grip-Keep-Alive", "beat\\n; format=cstring; timeout=1"),
        ]
        body = b""
    elif kind == "poll":
        headers.append(("Grip-Hold", "response"))
        headers.append(("Grip-Channel", name))
        # Longer than any test waits: something else must end it.
        headers.append(("Grip-Timeout", "5" if name == "silent" else "300"))
        body = b"nothing came"
    elif kind == "instruct":
        headers = [("Content-Type", "application/grip-instruct"), ("Grip-Hold", "stream")]
        body = (
            '{"hold": {"mode": "stream", "channels": [{"name": "%s"}]},'
            ' "response": {"headers": {"Content-Type": "text/event-stream"}, "body": "data: told\\n\\n"}}'
        ) % name
        body = body.encode()
    elif kind == "wrong":
        headers.append(("Grip-Hold", "for ever"))
        headers.append(("Grip-Channel", name))
    elif kind == "pid":
        body = str(os.getpid()).encode()
    elif kind == "grip":
        seen = sorted(key for key in environ if "GRIP" in key.upper())
        body = "\n".join(f"{key}={environ[key]}" for key in seen).encode()
    start("200 OK", headers)
    return [body]
