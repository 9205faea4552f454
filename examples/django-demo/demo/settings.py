"""Settings, from the environment where they differ between machines.

| variable | meaning | left out |
|---|---|---|
| `DJANGO_DATA` | directory for the database, uploads and the secret key | `data/` here |
| `DJANGO_STATIC` | directory that `collectstatic` fills | `public/static/` here |
| `DJANGO_HOSTS` | host names that are answered, comma between them | this machine's own |
| `DJANGO_DEBUG` | `1` shows errors in the browser | off |
| `DJANGO_SECRET_KEY` | signs sessions | made once, kept in the data directory |
"""

import os
from pathlib import Path

from .secret import key

BASE_DIR = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("DJANGO_DATA") or BASE_DIR / "data").resolve()
DATA.mkdir(parents=True, exist_ok=True)

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY") or key(DATA / "secret-key")
DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
ALLOWED_HOSTS = os.environ.get("DJANGO_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "documents",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "demo.urls"
WSGI_APPLICATION = "demo.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Several processes share the file: readers continue beside a writer, and a writer waits for its
# turn from the start of its transaction instead of failing in the middle.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "demo.sqlite3",
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "admin:login"

USE_TZ = True
TIME_ZONE = "UTC"

# The server sends public/static/ itself. Uploads have no URL of their own: a view sends them.
STATIC_URL = "/static/"
STATIC_ROOT = Path(os.environ.get("DJANGO_STATIC") or BASE_DIR / "public" / "static").resolve()
MEDIA_ROOT = DATA / "uploads"
