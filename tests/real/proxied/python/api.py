"""A FastAPI application that redirects with scheme and host."""

from fastapi import FastAPI, Request

app = FastAPI()


@app.get("/items/")
def items(request: Request):
    """Answers at a path with a final slash; a request without it is redirected."""
    return {
        "url": str(request.url),
        "link": str(request.url_for("items")),
        "client": request.client.host,
    }
