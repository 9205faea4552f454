"""Holds streams with links: where there is more, and where to report that the client is gone."""

LINKS = {"/next": "</more>; rel=next", "/left": "</gone>; rel=gone"}


def app(environ, start):
    path = environ["PATH_INFO"]
    if path == "/gone":
        with open("gone.txt", "a") as file:
            file.write("gone\n")
        start("204 No Content", [])
        return []
    headers = [
        ("Content-Type", "text/event-stream"),
        ("Grip-Hold", "stream"),
        ("Grip-Channel", "news"),
        ("Grip-Link", LINKS.get(path, LINKS["/next"])),
    ]
    body = f"data: more of {environ['HTTP_HOST']}\n\n" if path == "/more" else "data: welcome\n\n"
    start("200 OK", headers)
    return [body.encode()]
