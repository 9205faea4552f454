"""A Django site in one file whose views hold their clients, by the unmodified library django-grip.

`GRIP_URL` is the address and key for publishing, `VERIFY_KEY` the key that checks `Grip-Sig` if it
is another one. A view that holds requires a proxy that signs (`GRIP_PROXY_REQUIRED`).
"""

import json
import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of this test alone",
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django_grip.GripMiddleware"],
    GRIP_URL=os.environ["GRIP_URL"],
    GRIP_VERIFY_KEY=os.environ["VERIFY_KEY"],
    GRIP_PROXY_REQUIRED=True,
    USE_TZ=True,
)
application = get_wsgi_application()

# Imported late: these read the settings.
from django_grip import publish, set_hold_longpoll, set_hold_stream, websocket_only  # noqa: E402
from gripcontrol import HttpResponseFormat, HttpStreamFormat, WebSocketMessageFormat  # noqa: E402


def events(request, room):
    set_hold_stream(request, room, keep_alive_data=":\n\n", keep_alive_timeout=20)
    return HttpResponse("data: welcome\n\n", content_type="text/event-stream")


def next_message(request, room):
    set_hold_longpoll(request, room, timeout=int(request.GET.get("timeout", 30)))
    return HttpResponse("nothing new\n", content_type="text/plain")


def say(request, room):
    words = request.body.decode()
    formats = [
        HttpStreamFormat(f"data: {words}\n\n"),
        HttpResponseFormat(body=f"{words}\n", headers={"Content-Type": "text/plain"}),
        WebSocketMessageFormat(words),
    ]
    publish(room, formats, blocking=True)
    return HttpResponse("said\n", content_type="text/plain")


def close(request, room):
    publish(room, HttpStreamFormat(close=True), blocking=True)
    return HttpResponse("closed\n", content_type="text/plain")


def about(request):
    known = {"proxied": request.grip.proxied, "signed": request.grip.signed}
    return HttpResponse(json.dumps(known), content_type="application/json")


@websocket_only
def chat(request, room):
    """Echoes messages with their length, and counts across requests by its metadata."""
    socket = request.wscontext
    if socket.is_opening():
        socket.accept()
        socket.subscribe(room)
    while socket.can_recv():
        words = socket.recv()
        if words is None:
            socket.close(socket.close_code)
            break
        if words == "leave":
            socket.close(4001)
            break
        if words == "go":
            socket.close()
            break
        if isinstance(words, bytes):
            socket.send_binary(words[::-1])
            continue
        count = int(socket.meta.get("count", 0)) + 1
        socket.meta["count"] = str(count)
        socket.send(f"{count}: {words}")


urlpatterns = [
    path("events/<room>", events),
    path("next/<room>", next_message),
    path("say/<room>", say),
    path("close/<room>", close),
    path("about", about),
    path("chat/<room>", chat),
]
