from fasthtml.common import P, Titled, fast_app, serve

app, rt = fast_app()


@rt("/")
def get():
    return Titled("FastHTML", P("Hello from FastHTML"))


serve()
