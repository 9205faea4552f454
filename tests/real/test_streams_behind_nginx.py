"""Held streams behind nginx with a plain `proxy_pass`: the head and each event arrive at once.

nginx keeps a response back until a buffer is full, unless the response has `X-Accel-Buffering: no`.
Here it has its defaults, which is HTTP/1.0 to the server behind, and once HTTP/1.1.
"""

import json
import shutil
import socket
import sys

import jwt
import requests

from harness import NGINX, Child, RealCase, until
from listening import PATIENCE, Events, Front

KEY = "!ChangeThisMercureHubJWTSecretKey!"

APP = """\
def app(environ, start):
    start("200 OK", [
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "private"),
        ("Grip-Hold", "stream"),
        ("Grip-Channel", "news"),
    ])
    return [b"data: welcome\\n\\n"]
"""

PENSTOCK = f"""\
[apps.rooms]
kind = "wsgi"
entry = "rooms:app"
interpreter = {json.dumps(sys.executable)}
processes = 1
grip = {{ namespace = "hub" }}

[[sites]]
[[sites.routes]]
path = "/events"
hub = "news"
[[sites.routes]]
path = "/mercure"
mercure = {{ publisher_key = "{KEY}", anonymous = true }}
[[sites.routes]]
app = "rooms"
"""

SERVERS = """\
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{behind};
        }}
        location /newer/ {{
            proxy_pass http://127.0.0.1:{behind}/;
            proxy_http_version 1.1;
        }}
    }}
"""


class BehindNginx(RealCase):
    @classmethod
    def setUpClass(cls):
        home = cls.folder()
        (home / "rooms.py").write_text(APP)
        settings = home / "penstock.toml"
        settings.write_text(PENSTOCK)
        cls.server = cls.enterClassContext(Front(settings))
        # nginx cannot report the port it got: one that was free a moment ago.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        nginx_settings = home / "nginx.conf"
        nginx_settings.write_text(
            NGINX.format(home=home, settings=SERVERS.format(port=port, behind=cls.server.port))
        )
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        child = Child([nginx, "-p", home, "-c", nginx_settings])
        cls.addClassCleanup(child.kill)
        cls.url = f"http://127.0.0.1:{port}"

        def listens():
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
            except ConnectionError:
                return False
            return True

        until("nginx listens", listens, PATIENCE)

    def publish(self, data):
        item = {"channel": "news", "namespace": "hub", "event": {"data": data}}
        self.server.change("/publish/", json.dumps({"items": [item]}))
        token = jwt.encode({"mercure": {"publish": ["*"]}}, KEY)
        answer = requests.post(
            f"{self.server.url}/mercure",
            data={"topic": "news", "data": data},
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE,
        )
        self.assertEqual(answer.status_code, 200, answer.text)

    def test_head_and_events_arrive_at_once(self):
        for path in ("/", "/events", "/mercure?topic=news"):
            for prefix in ("", "/newer"):
                with self.subTest(path=path, prefix=prefix):
                    # The head comes before anything is published.
                    stream = self.enterContext(Events(self.url + prefix + path))
                    self.assertEqual(stream.status, 200)
                    directives = stream.headers["Cache-Control"].split(", ")
                    self.assertTrue({"no-cache", "no-transform"} <= set(directives), directives)
                    if path == "/":
                        self.assertIn("private", directives)
                        stream.wait_for("welcome")
                    for data in ("first", "second"):
                        self.publish(data)
                        stream.wait_for(data)
