"""Flask-SocketIO with a thread for each client, or with a greenlet under gevent."""

import os

from flask import Flask
from flask_socketio import SocketIO


def build(async_mode):
    application = Flask(__name__)
    socketio = SocketIO(application, async_mode=async_mode, ping_interval=2)

    @socketio.on("say")
    def say(text):
        return {"text": text, "process": os.getpid()}

    return application


application = build("threading")


def greenlets():
    return build("gevent")
