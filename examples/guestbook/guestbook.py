"""A guestbook: visitors read entries and write their own.

Penstock finds `application` here. Style sheet, icon and robots.txt are in public/ and never reach
this code: the server sends files that exist and passes other requests to the application. A form
with mistakes comes back with the errors and the typed text (400). A valid one redirects to the list
(303), so that reloading the page does not write the entry again.
"""

from datetime import datetime

from flask import Flask, abort, redirect, render_template, request

import store

NAME_MAX = 60
MESSAGE_MAX = 2000
FORM_BYTES_MAX = 64 * 1024

# Line ends are unified and other control characters dropped: they have no place in a message, and a
# length is then the one that the reader sees.
CONTROLS = {code: None for code in (*range(0x20), 0x7F) if chr(code) not in "\n\t"}

application = Flask(__name__, static_folder=None)
application.config["MAX_CONTENT_LENGTH"] = FORM_BYTES_MAX
store.prepare()


@application.get("/")
def entries():
    before = request.args.get("before")
    # More than 18 digits exceed SQLite's integers.
    if before is not None and not (before.isascii() and before.isdigit() and len(before) <= 18):
        abort(404)
    return show(before=before and int(before))


@application.post("/")
def write():
    name = clean(request.form.get("name", ""))
    message = clean(request.form.get("message", ""))
    errors = check("name", name, NAME_MAX) | check("message", message, MESSAGE_MAX)
    if errors:
        return show(name=name, message=message, errors=errors), 400
    store.add(name, message)
    return redirect("/", 303)


def show(before=None, name="", message="", errors=None):
    rows, more = store.page(before)
    return render_template(
        "guestbook.html",
        entries=rows,
        older=rows[-1]["id"] if more else None,
        first=before is None,
        name=name,
        message=message,
        errors=errors or {},
        name_max=NAME_MAX,
        message_max=MESSAGE_MAX,
    )


def clean(text):
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(CONTROLS).strip()


def check(field, text, longest):
    if not text:
        return {field: f"Please write a {field}."}
    if len(text) > longest:
        return {field: f"That {field} has {len(text)} characters; {longest} is the most."}
    return {}


@application.template_filter("day")
def day(written):
    return datetime.strptime(written, "%Y-%m-%dT%H:%M:%SZ").strftime("%-d %B %Y, %H:%M UTC")


@application.after_request
def guard(response):
    response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
