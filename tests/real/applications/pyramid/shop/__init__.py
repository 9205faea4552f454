from pyramid.config import Configurator
from pyramid.response import Response


def index(request):
    return Response("Hello from Pyramid")


def main(global_config, **settings):
    with Configurator(settings=settings) as config:
        config.add_route("index", "/")
        config.add_view(index, route_name="index")
        return config.make_wsgi_app()
