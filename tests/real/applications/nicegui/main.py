from fastapi import FastAPI
from nicegui import ui

app = FastAPI()


@ui.page("/")
def index():
    ui.label("Hello from NiceGUI")


ui.run_with(app, storage_secret="not a secret: a test")
