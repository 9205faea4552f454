import falcon


class Index:
    def on_get(self, request, response):
        response.text = "Hello from Falcon"


app = falcon.App()
app.add_route("/", Index())
