"""A server that speaks no HTTP; prints its port."""

import socket

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    client.recv(1000)
    client.sendall(b"hello there\r\n\r\n")
    client.close()
