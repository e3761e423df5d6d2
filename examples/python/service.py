"""A payment service that knows nothing of retries: post a charge twice, and there are two."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

charges = []
lock = Lock()


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        charge = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            charge["id"] = len(charges) + 1
            charges.append(charge)
        self.answer(201, charge)

    def do_GET(self):
        self.answer(200, charges)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


port = int(sys.argv[1]) if len(sys.argv) > 1 else 9100
server = ThreadingHTTPServer((sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", port), Service)
print(f"charges on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
