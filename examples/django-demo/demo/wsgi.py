"""The WSGI entry that Penstock loads."""

import os

from django.core.wsgi import get_wsgi_application
from django.template import engines
from django.urls import reverse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo.settings")
application = get_wsgi_application()

# Django imports the URLconf, with every view and form behind it, at the first request. Importing it
# here, before workers are forked, lets them share that memory.
reverse("admin:index")
engines.all()
