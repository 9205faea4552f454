"""Holds every stream after 5 ms, and serves a page that shows the state of its `EventSource`."""

import time

PAGE = b"""<!doctype html>
<title>Returning</title>
<p id="state">new</p>
<script>
const source = new EventSource("/stream");
const show = () => {
  document.querySelector("#state").textContent = ["connecting", "held", "closed"][source.readyState];
};
source.onerror = show;
source.onmessage = show;
</script>
"""


def application(environ, start_response):
    if environ["PATH_INFO"] != "/stream":
        start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
        return [PAGE]
    time.sleep(0.005)
    fields = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")]
    fields += [("Grip-Hold", "stream"), ("Grip-Channel", "everybody")]
    start_response("200 OK", fields)
    return [b"data: held\n\n"]
