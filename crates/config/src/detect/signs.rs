//! What code shows about its framework: the calls and imports by which it makes an application.
//!
//! Used by `detect` for the kind of an application and for the name that a start prints. One table;
//! pure: text in, answer out.

use super::source::code_lines;
use crate::model::AppKind;

/// A piece of a line of code that only applications of one kind have.
struct Sign {
    text: &'static str,
    kind: AppKind,
    /// The framework's name; empty for what wraps an application of any.
    framework: &'static str,
}

const fn wsgi(text: &'static str, framework: &'static str) -> Sign {
    Sign {
        text,
        kind: AppKind::Wsgi,
        framework,
    }
}

const fn asgi(text: &'static str, framework: &'static str) -> Sign {
    Sign {
        text,
        kind: AppKind::Asgi,
        framework,
    }
}

/// What wraps an ASGI application for WSGI may be written around one, so WSGI comes first.
const SIGNS: [Sign; 31] = [
    wsgi("ASGIMiddleware(", ""),
    wsgi("AsgiToWsgi(", ""),
    wsgi("DispatcherMiddleware(", ""),
    wsgi("Flask(", "Flask"),
    wsgi("get_wsgi_application(", "Django"),
    wsgi("Dash(", "Dash"),
    wsgi("cherrypy.tree.", "CherryPy"),
    wsgi("default_app(", "Bottle"),
    wsgi("Bottle(", "Bottle"),
    wsgi("make_wsgi_app(", "Pyramid"),
    wsgi("falcon.App(", "Falcon"),
    wsgi(".wsgifunc(", "web.py"),
    wsgi("hug.API(", "Hug"),
    asgi("WsgiToAsgi(", ""),
    asgi("FastHTML(", "FastHTML"),
    asgi("fast_app(", "FastHTML"),
    asgi("from blacksheep", "BlackSheep"),
    asgi("Datasette(", "Datasette"),
    asgi("create_asgi_app(", "marimo"),
    asgi("marimo.App(", "marimo"),
    asgi("from shiny import", "Shiny"),
    asgi("run_with(", "NiceGUI"),
    asgi("mount_chainlit(", "Chainlit"),
    asgi("FastAPI(", "FastAPI"),
    asgi("Starlette(", "Starlette"),
    asgi("Quart(", "Quart"),
    asgi("Litestar(", "Litestar"),
    asgi("get_asgi_application(", "Django"),
    asgi("Sanic(", "Sanic"),
    asgi("falcon.asgi.App(", "Falcon"),
    asgi("ProtocolTypeRouter(", "Django Channels"),
];

/// What a line of code makes, where it shows that.
pub(super) fn kind_of_line(line: &str) -> Option<AppKind> {
    signs_of(line).next().map(|sign| sign.kind)
}

/// The framework of the first line that shows one.
pub(super) fn framework_of(text: &str) -> Option<&'static str> {
    code_lines(text)
        .flat_map(signs_of)
        .map(|sign| sign.framework)
        .find(|name| !name.is_empty())
}

fn signs_of(line: &str) -> impl Iterator<Item = &'static Sign> {
    SIGNS.iter().filter(|sign| line.contains(sign.text))
}

/// Frameworks that speak neither WSGI nor ASGI, as each runs a server of its own: the library as it
/// is imported, how an application is made, the name.
const OWN_SERVERS: [(&str, &str, &str); 2] = [
    ("aiohttp", "web.Application(", "aiohttp"),
    ("tornado", "Application(", "Tornado"),
];

/// The framework of a module that only its own server can serve.
pub(super) fn own_server_of(text: &str) -> Option<&'static str> {
    let has = |wanted: &dyn Fn(&str) -> bool| code_lines(text).any(wanted);
    let found = OWN_SERVERS.iter().find(|(library, sign, _)| {
        has(&|line: &str| is_import_of(line, library)) && has(&|line: &str| line.contains(sign))
    });
    found.map(|(_, _, framework)| *framework)
}

/// Whether a line is `import library...` or `from library... import`.
fn is_import_of(line: &str, library: &str) -> bool {
    let mut words = line.split([' ', '.', ',']);
    matches!(words.next(), Some("import" | "from")) && words.next() == Some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_framework_of_a_module() {
        let rows = [
            ("app = Flask(__name__)\n", Some("Flask")),
            ("# Flask(\napp = FastAPI()\n", Some("FastAPI")),
            ("app = ASGIMiddleware(Starlette())\n", Some("Starlette")),
            ("app = make()\n", None),
        ];
        for (text, expected) in rows {
            assert_eq!(framework_of(text), expected, "{text}");
        }
    }

    #[test]
    fn knows_what_serves_by_itself() {
        let rows = [
            (
                "from aiohttp import web\napp = web.Application()\n",
                Some("aiohttp"),
            ),
            (
                "import tornado.web\napp = tornado.web.Application([])\n",
                Some("Tornado"),
            ),
            ("import aiohttp\napp = FastAPI()\n", None),
            ("app = web.Application()\n", None),
        ];
        for (text, expected) in rows {
            assert_eq!(own_server_of(text), expected, "{text}");
        }
    }
}
