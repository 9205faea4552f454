import bottle


@bottle.route("/")
def index():
    return "Hello from Bottle"


app = bottle.default_app()
