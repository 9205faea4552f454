import cherrypy


class Site:
    @cherrypy.expose
    def index(self):
        return "Hello from CherryPy"


cherrypy.config.update({"engine.autoreload.on": False})
cherrypy.tree.mount(Site(), "/")
application = cherrypy.tree
