import falcon
import falcon.asgi


class Index:
    async def on_get(self, request, response):
        response.text = "Hello from Falcon, without waiting"


class Echo:
    async def on_websocket(self, request, socket):
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()


def make_app():
    app = falcon.asgi.App()
    app.add_route("/", Index())
    app.add_route("/echo", Echo())
    return app
