"""Radicale, a calendar server, with the requests of a CalDAV client.

It uses what ordinary sites do not: unusual methods, XML bodies, 207 responses, preconditions that
the application checks, and a login by the Authorization field.
"""

import base64
import json
import xml.etree.ElementTree as ET

from harness import ROOT, RealCase, Server

DAV = "{DAV:}"
CALDAV = "{urn:ietf:params:xml:ns:caldav}"
CALENDAR = "/ada/river/"
EVENT = CALENDAR + "meeting.ics"
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"ada:lovelace").decode()}

CONFIG = """\
[auth]
type = htpasswd
htpasswd_filename = {folder}/users
htpasswd_encryption = plain
delay = 0
[storage]
filesystem_folder = {folder}/collections
[logging]
level = warning
"""

PENSTOCK = """\
[apps.radicale]
dir = {folder}
kind = "wsgi"
entry = "radicale:application"
interpreter = {python}
processes = 2
env = {{ RADICALE_CONFIG = {config} }}
"""

MKCALENDAR = """\
<?xml version="1.0" encoding="utf-8"?>
<C:mkcalendar xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">
  <D:set><D:prop><D:displayname>Flüsse</D:displayname></D:prop></D:set>
</C:mkcalendar>
"""

PROPFIND = """\
<?xml version="1.0" encoding="utf-8"?>
<D:propfind xmlns:D="DAV:"><D:prop><D:displayname/><D:resourcetype/></D:prop></D:propfind>
"""

QUERY = """\
<?xml version="1.0" encoding="utf-8"?>
<C:calendar-query xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">
  <D:prop><D:getetag/><C:calendar-data/></D:prop>
  <C:filter><C:comp-filter name="VCALENDAR"><C:comp-filter name="VEVENT">
    <C:time-range start="{start}" end="{end}"/>
  </C:comp-filter></C:comp-filter></C:filter>
</C:calendar-query>
"""


def event(summary):
    lines = [
        "BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Penstock//Test//EN",
        "BEGIN:VEVENT", "UID:meeting", "DTSTAMP:20300101T000000Z",
        "DTSTART:20300302T090000Z", "DTEND:20300302T100000Z", f"SUMMARY:{summary}",
        "END:VEVENT", "END:VCALENDAR", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


class Radicale(RealCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.folder()
        (folder / "users").write_text("ada:lovelace\n")
        (folder / "config").write_text(CONFIG.format(folder=folder))
        settings = folder / "penstock.toml"
        # A JSON string is a TOML string too.
        settings.write_text(
            PENSTOCK.format(
                folder=json.dumps(str(folder)),
                python=json.dumps(str(ROOT / ".venv" / "bin" / "python")),
                config=json.dumps(str(folder / "config")),
            )
        )
        cls.server = cls.enterClassContext(Server(settings))

    def ask(self, method, target, body="", **fields):
        headers = LOGIN | {name.replace("_", "-"): value for name, value in fields.items()}
        body = body.encode() if isinstance(body, str) else body
        return self.server.request(method, target, body, headers)

    def query(self, start, end):
        answer = self.ask("REPORT", CALENDAR, QUERY.format(start=start, end=end), Depth="1")
        self.assertEqual(answer.status, 207)
        return ET.fromstring(answer.body).findall(f"{DAV}response")

    def test_a_stranger_is_asked_to_log_in(self):
        answer = self.server.request("PROPFIND", "/ada/", PROPFIND.encode(), {"Depth": "0"})
        self.assertEqual(answer.status, 401)
        self.assertIn("Basic", answer.headers["WWW-Authenticate"])

    def test_the_methods_of_a_calendar_are_offered(self):
        answer = self.ask("OPTIONS", "/")
        self.assertIn("calendar-access", answer.headers["DAV"])
        self.assertIn("MKCALENDAR", answer.headers["Allow"])

    def test_a_calendar_and_an_event_live_and_go(self):
        self.assertEqual(self.ask("MKCALENDAR", CALENDAR, MKCALENDAR).status, 201)
        self.assertEqual(self.ask("MKCALENDAR", CALENDAR, MKCALENDAR).status, 409)

        found = self.ask("PROPFIND", "/ada/", PROPFIND, Depth="1")
        self.assertEqual(found.status, 207)
        names = {
            response.findtext(f"{DAV}href"): response.findtext(f".//{DAV}displayname")
            for response in ET.fromstring(found.body).findall(f"{DAV}response")
        }
        self.assertEqual(names[CALENDAR], "Flüsse")

        stored = self.ask(
            "PUT", EVENT, event("Weir"), If_None_Match="*", Content_Type="text/calendar"
        )
        self.assertEqual(stored.status, 201)
        self.assertEqual(self.ask("PUT", EVENT, event("Again"), If_None_Match="*").status, 412)

        got = self.ask("GET", EVENT)
        self.assertEqual((got.status, got.headers["ETag"]), (200, stored.headers["ETag"]))
        self.assertIn("SUMMARY:Weir", got.text)

        hits = self.query("20300302T000000Z", "20300303T000000Z")
        self.assertEqual([hit.findtext(f"{DAV}href") for hit in hits], [EVENT])
        self.assertEqual(hits[0].findtext(f".//{DAV}getetag"), stored.headers["ETag"])
        self.assertIn("SUMMARY:Weir", hits[0].findtext(f".//{CALDAV}calendar-data"))
        self.assertEqual(self.query("20310101T000000Z", "20310102T000000Z"), [])

        newer = self.ask("PUT", EVENT, event("Sluice"), If_Match=stored.headers["ETag"])
        self.assertIn(newer.status, (201, 204))
        late = self.ask("PUT", EVENT, event("Late"), If_Match=stored.headers["ETag"])
        self.assertEqual(late.status, 412)
        self.assertIn("SUMMARY:Sluice", self.ask("GET", EVENT).text)

        self.assertEqual(self.ask("DELETE", EVENT, If_Match=stored.headers["ETag"]).status, 412)
        self.assertEqual(self.ask("DELETE", EVENT, If_Match=newer.headers["ETag"]).status, 200)
        self.assertEqual(self.ask("GET", EVENT).status, 404)
        self.assertEqual(self.ask("DELETE", CALENDAR).status, 200)
