"""`environ["wsgi.websocket"]` of gevent-websocket, used directly."""

from geventwebsocket.websocket import WebSocket


def application(environ, start_response):
    websocket = environ.get("wsgi.websocket")
    if environ["PATH_INFO"] != "/echo":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [type(websocket).__name__.encode()]
    assert isinstance(websocket, WebSocket)
    while (message := websocket.receive()) is not None:
        if message == "end":
            # The server closes the WebSocket if the application does not.
            break
        websocket.send(message)
    return []
