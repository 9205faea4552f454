from blacksheep import Application, get

app = Application()


@get("/")
async def index():
    return "Hello from BlackSheep"
