from flask import Flask, url_for

app = Flask(__name__)


@app.get("/")
def index():
    return (
        f'<link rel="stylesheet" href="{url_for("static", filename="style.css")}">Hello from Flask'
    )
