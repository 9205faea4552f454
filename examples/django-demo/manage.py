#!/usr/bin/env python3
"""Django's command line for this project: `manage.py migrate`, `manage.py createsuperuser`, ...

Run it with the virtualenv's interpreter. Penstock reads the name of the settings module here and
serves the `application` of the wsgi module beside it.
"""

import os
import sys


def main():
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
