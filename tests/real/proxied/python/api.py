"""A FastAPI application whose redirects name scheme and host."""

from fastapi import FastAPI, Request

app = FastAPI()


@app.get("/items/")
def items(request: Request):
    """Asked for without its final slash, it is redirected to."""
    return {
        "url": str(request.url),
        "link": str(request.url_for("items")),
        "client": request.client.host,
    }
