"""WebSockets by plain WSGI: WebSocket-over-HTTP events, read and written by gripcontrol."""

import os

from gripcontrol import (
    WebSocketEvent,
    decode_websocket_events,
    encode_websocket_events,
    websocket_control_message,
)

KIND = "application/websocket-events"


def application(environ, start_response):
    if environ["PATH_INFO"] == "/grip-url":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [os.environ["GRIP_URL"].encode()]
    if environ.get("CONTENT_TYPE") != KIND:
        start_response("426 Upgrade Required", [("Content-Type", "text/plain")])
        return [b"only by WebSocket\n"]
    room = environ["PATH_INFO"].rpartition("/")[2]
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    # The library keeps events as bytes or text, as they were sent.
    out = [answer for event in decode_websocket_events(body) for answer in answers(event, room)]
    fields = [("Content-Type", KIND), ("Sec-WebSocket-Extensions", "grip")]
    start_response("200 OK", fields)
    return [encode_websocket_events(out)]


def answers(event, room):
    if event.type == "OPEN":
        subscribe = websocket_control_message("subscribe", {"channel": room})
        return [WebSocketEvent("OPEN"), WebSocketEvent("TEXT", "c:" + subscribe)]
    if event.type == "CLOSE":
        return [WebSocketEvent("CLOSE", event.content)]
    if event.type == "TEXT" and event.content == b"leave":
        return [WebSocketEvent("CLOSE", (4001).to_bytes(2, "big"))]
    if event.type == "BINARY":
        return [WebSocketEvent("BINARY", b"m:" + event.content[::-1])]
    if event.type == "TEXT":
        return [WebSocketEvent("TEXT", b"m:" + event.content)]
    return []
