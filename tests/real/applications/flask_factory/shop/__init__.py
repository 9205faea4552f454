from flask import Flask


def create_app(settings=None, *, name="factory"):
    site = Flask(__name__)
    site.config.from_mapping(settings or {})

    @site.get("/")
    def index():
        return f"Hello from a {name}"

    return site
