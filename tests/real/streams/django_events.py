"""A Django site in one file with django-eventstream, set up by that library's own documents.

The view of the library holds its clients where a proxy has signed the request; else it would stream
by itself. `/send` sends an event from a view.
"""

import os

import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import include, path

settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of this test alone, and long enough to sign",
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django_eventstream"],
    MIDDLEWARE=["django_grip.GripMiddleware"],
    GRIP_URL=os.environ["GRIP_URL"],
    USE_TZ=True,
)
django.setup()

# Imported late: these read the settings.
import django_eventstream  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django_eventstream import send_event  # noqa: E402


def send(request):
    send_event("test", "message", {"text": "hello world"})
    return HttpResponse("sent\n")


urlpatterns = [
    path("events/", include(django_eventstream.urls), {"channels": ["test"]}),
    path("send", send),
]
application = get_wsgi_application()
asgi = get_asgi_application()
