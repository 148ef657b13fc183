# SPDX-License-Identifier: Apache-2.0
"""A file over HTTP from one server, as is common practice: each receiver gets all bytes from there."""
import http.client
import http.server
import threading

import peer

PORT = 7010
begun, bell = 0, threading.Condition()


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /N answers when round N has begun."""
    protocol_version, wbufsize = "HTTP/1.1", 0
    body = b""

    def do_GET(self):
        with bell:
            bell.wait_for(lambda: begun >= int(self.path[1:]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *words):
        pass


def send(count, address, others):
    global begun
    Handler.body = memoryview(bytearray(b"\1") * count)
    server = http.server.ThreadingHTTPServer((address, PORT), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for number in peer.rounds():
        with bell:
            begun = number
            peer.say(peer.now())
            bell.notify_all()


def receive(count, address, others, sender, rank):
    view = memoryview(bytearray(b"\1") * count)
    peer.dial(sender, PORT).close()
    link = http.client.HTTPConnection(sender, PORT)
    link.connect()
    for number in peer.rounds():
        link.request("GET", f"/{number}")
        answer, at = link.getresponse(), 0
        while at < count:
            taken = answer.readinto(view[at:])
            if not taken:
                raise SystemExit("the server ended")
            at += taken
        answer.read()
        peer.say(peer.now())


peer.main(lambda: None, send, receive)
