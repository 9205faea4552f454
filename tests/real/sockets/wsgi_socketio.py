"""Flask-SocketIO with a thread for each client."""

import os

from flask import Flask
from flask_socketio import SocketIO

application = Flask(__name__)
socketio = SocketIO(application, async_mode="threading", ping_interval=2)


@socketio.on("say")
def say(text):
    return {"text": text, "process": os.getpid()}
