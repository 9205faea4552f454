"""A Django project in a browser: the admin, a file upload, static files.

Its forms only work if scheme, host and cookies reach the application unchanged (CSRF protection),
and the admin only looks right with its style sheets, which the server sends itself. The project is
the example; its database, uploads and collected static files are in a temporary directory.
"""

import json
import os
import subprocess

from browser import Browser
from harness import EXAMPLES, RealCase, Server

PROJECT = EXAMPLES / "django-demo"
PYTHON = PROJECT / ".venv" / "bin" / "python"
PASSWORD = "a weir and a sluice"

PENSTOCK = """\
[apps.demo]
dir = {project}
processes = 2
env = {{ DJANGO_DATA = {data} }}

[[sites]]
[[sites.routes]]
path = "/static/*"
files = {{ root = {public} }}
[[sites.routes]]
path = "/*"
app = "demo"
"""


class Django(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.folder()
        data, public = cls.home / "data", cls.home / "public"
        environment = {
            "DJANGO_DATA": str(data),
            "DJANGO_STATIC": str(public / "static"),
            "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
        }

        def manage(*arguments):
            command = [PYTHON, "-B", PROJECT / "manage.py", *arguments]
            subprocess.run(command, env=os.environ | environment, check=True, timeout=120)

        manage("migrate", "--verbosity", "0")
        manage("collectstatic", "--noinput", "--verbosity", "0")
        manage("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com",
               "--verbosity", "0")  # fmt: skip

        settings = cls.home / "penstock.toml"
        # A JSON string is a TOML string too.
        settings.write_text(
            PENSTOCK.format(
                project=json.dumps(str(PROJECT)),
                data=json.dumps(str(data)),
                public=json.dumps(str(public)),
            )
        )
        cls.server = cls.enterClassContext(Server(settings))

    def test_static_files_are_sent_by_the_server(self):
        style = self.server.get("/static/admin/css/base.css")
        self.assertEqual((style.status, style.headers.get_content_type()), (200, "text/css"))
        again = self.server.get(
            "/static/admin/css/base.css", {"If-None-Match": style.headers["ETag"]}
        )
        self.assertEqual((again.status, again.body), (304, b""))

    def test_a_form_without_its_token_is_refused(self):
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self.server.request("POST", "/admin/login/", "username=ada&password=x", kind)
        self.assertEqual(answer.status, 403)

    def test_a_document_is_uploaded_in_the_admin(self):
        # More than a server keeps in memory, so that the upload uses a temporary file.
        content = bytes(range(256)) * 4096
        upload = self.home / "sluice plan.bin"
        upload.write_bytes(content)

        with Browser() as browser:
            browser.go(self.server.url + "/admin/")
            self.assertIn("/admin/login/", browser.url)
            # The admin's own style: without its sheet the heading would be black and have no bar.
            self.assertEqual(browser.find("#header").style("display"), "flex")

            browser.find("#id_username").type("ada")
            browser.find("#id_password").type("wrong")
            browser.find("[type=submit]").click()
            browser.wait_text(".errornote", "correct username and password")

            browser.find("#id_password").type(PASSWORD)
            browser.find("[type=submit]").click()
            browser.wait_text("#user-tools", "ADA")

            browser.go(self.server.url + "/admin/documents/document/add/")
            browser.find("#id_title").type("Plan <of> the sluice")
            browser.find("#id_file").type(upload)
            browser.find("[name=_save]").click()
            browser.wait_text(".success", "was added successfully")
            browser.wait_text("#result_list .field-title", "Plan <of> the sluice")
            browser.wait_text("#result_list .field-download", f"{len(content)} bytes")

            length, digest = browser.run(FETCH, browser.run(LINK))
            self.assertEqual((length, digest), (len(content), checksum(content)))

            browser.find("#logout-form button").click()
            browser.wait_text("#content", "Thanks for spending some quality time")
            browser.go(self.server.url + "/admin/")
            self.assertIn("/admin/login/", browser.url)

        self.assertIn("Plan &lt;of&gt; the sluice", self.server.get("/").text)


LINK = "return document.querySelector('.field-download a').getAttribute('href')"

# Length and a checksum that notices misplaced bytes, computed in the page with its cookies.
FETCH = """
return fetch(arguments[0]).then(answer => answer.arrayBuffer()).then(buffer => {
  let sum = 0;
  new Uint8Array(buffer).forEach(byte => { sum = (sum * 31 + byte) % 1000003; });
  return [buffer.byteLength, sum];
});
"""


def checksum(content):
    total = 0
    for byte in content:
        total = (total * 31 + byte) % 1000003
    return total
