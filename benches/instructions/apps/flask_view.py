import sqlite3

from flask import Flask, g, render_template_string
from one_view import PATH

app = Flask(__name__)


@app.get("/")
def view():
    if "db" not in g:
        g.db = sqlite3.connect(PATH)
    name = g.db.execute("SELECT name FROM rows WHERE id = 7").fetchone()[0]
    return render_template_string("<p>{{ name }}</p>", name=name)


@app.teardown_appcontext
def close(_error):
    if "db" in g:
        g.db.close()
