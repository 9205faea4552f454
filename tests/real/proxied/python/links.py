"""A Flask application that makes links with scheme and host."""

from flask import Flask, redirect, request, session, url_for

app = Flask(__name__)
app.secret_key = "only of this test"
app.config["SESSION_COOKIE_SECURE"] = True


@app.get("/")
def link():
    return {
        "link": url_for("link", _external=True),
        "secure": request.is_secure,
        "client": request.remote_addr,
    }


@app.get("/enter")
def enter():
    session["name"] = "ada"
    return redirect(url_for("link", _external=True))
