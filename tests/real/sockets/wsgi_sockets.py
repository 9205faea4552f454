"""A Flask application with WebSockets in its own threads, by flask-sock."""

import os
import threading

from flask import Flask
from flask_sock import Sock

application = Flask(__name__)
sock = Sock(application)


@sock.route("/echo")
def echo(socket):
    while True:
        text = socket.receive()
        if text == "end":
            return
        socket.send(f"{os.getpid()} {text}" if text == "who" else text)


@application.get("/")
def state():
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"pid": os.getpid(), "descriptors": descriptors, "threads": threading.active_count()}
