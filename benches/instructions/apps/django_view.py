import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from one_view import PATH

settings.configure(
    SECRET_KEY="only for measurements",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(PATH)}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)
django.setup()

from django.db import models  # noqa: E402
from django.template import engines  # noqa: E402


class Row(models.Model):
    name = models.TextField()

    class Meta:
        app_label = "one_view"
        db_table = "rows"


TEMPLATE = engines["django"].from_string("<p>{{ row.name }}</p>")


def view(request):
    return HttpResponse(TEMPLATE.render({"row": Row.objects.get(pk=7)}, request))


urlpatterns = [path("", view)]
application = get_wsgi_application()
