//! What the text of a module is taken for.

use super::*;
use crate::testing::TestDir;

#[test]
fn finds_the_callable_of_a_module() {
    use AppKind::{Asgi, Wsgi};
    type Row<'a> = (&'a str, &'a str, Option<(&'a str, Option<AppKind>)>);
    let rows: &[Row<'_>] = &[
        (
            "assignment",
            "application = Flask(__name__)\n",
            Some(("application", Some(Wsgi))),
        ),
        ("app", "app = make()\n", Some(("app", None))),
        (
            "without spaces",
            "app=Flask(__name__)\n",
            Some(("app", Some(Wsgi))),
        ),
        ("annotated", "app: Flask = make()\n", Some(("app", None))),
        (
            "chained",
            "flask = app = Flask()\n",
            Some(("app", Some(Wsgi))),
        ),
        (
            "function",
            "def application(environ, start):\n",
            Some(("application", None)),
        ),
        (
            "factory",
            "def create_app(test=None):\n",
            Some(("create_app()", None)),
        ),
        (
            "factory with arguments",
            "def create_app(config):\n",
            Some(("create_app()", None)),
        ),
        (
            "factory of flask",
            "def create_app():\n    return Flask()\n",
            Some(("create_app()", Some(Wsgi))),
        ),
        (
            "factory of fastapi",
            "def create_app():\n    return FastAPI()\n",
            Some(("create_app()", Some(Asgi))),
        ),
        ("import", "from site import app\n", Some(("app", None))),
        (
            "alias",
            "from site import web as application\n",
            Some(("application", None)),
        ),
        (
            "bracket",
            "from site import (\n    one,\n    app,\n)\n",
            Some(("app", None)),
        ),
        (
            "application first",
            "app = 1\napplication = app\n",
            Some(("application", None)),
        ),
        ("indented", "if x:\n    app = 1\n", None),
        ("comparison", "app == 1\n", None),
        ("other name", "apple = 1\n", None),
        ("comment", "# app = 1\n", None),
        ("alias away", "from site import app as other\n", None),
        ("fastapi", "app = FastAPI()\n", Some(("app", Some(Asgi)))),
        (
            "starlette",
            "app: Starlette = Starlette(routes=[\n",
            Some(("app", Some(Asgi))),
        ),
        (
            "quart",
            "app = Quart(__name__)\n",
            Some(("app", Some(Asgi))),
        ),
        ("falcon", "app = falcon.App()\n", Some(("app", Some(Wsgi)))),
        (
            "falcon of asgi",
            "app = falcon.asgi.App()\n",
            Some(("app", Some(Asgi))),
        ),
        (
            "django",
            "application = get_asgi_application()\n",
            Some(("application", Some(Asgi))),
        ),
        (
            "sign in a comment",
            "# not FastAPI()\napp = make()\n",
            Some(("app", None)),
        ),
        (
            "wrapped",
            "api = FastAPI()\napplication = ASGIMiddleware(api)\n",
            Some(("application", Some(Wsgi))),
        ),
        (
            "wrapped at once",
            "application = ASGIMiddleware(FastAPI())\n",
            Some(("application", Some(Wsgi))),
        ),
        (
            "one of two",
            "site = Flask()\napp = FastAPI()\n",
            Some(("app", Some(Asgi))),
        ),
        (
            "either of two",
            "site = Flask()\napi = FastAPI()\napp = pick()\n",
            Some(("app", None)),
        ),
        (
            "assigned twice",
            "app = FastAPI()\napp = AsgiToWsgi(app)\n",
            Some(("app", Some(Wsgi))),
        ),
        (
            "coroutine",
            "async def app(scope, receive, send):\n",
            Some(("app", Some(Asgi))),
        ),
        ("empty", "", None),
    ];
    for (name, text, expected) in rows {
        let found = find_callable(text, "app").map(|callable| (callable.entry, callable.kind));
        assert_eq!(found, *expected, "{name}");
    }
    let found = find_callable("application = x\n", "mysite.asgi");
    assert_eq!(found.and_then(|callable| callable.kind), Some(Asgi));
}

#[test]
fn finds_the_application_of_a_layout() {
    const FLASK: &str = "app = Flask(__name__)\n";
    const FACTORY: &str = "def create_app(config=None):\n    return Flask(__name__)\n";
    const STRICT: &str = "def create_app(config):\n    return Flask(__name__)\n";
    const MADE: &str = "from app import create_app\napp = create_app('site')\n";
    type Row<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let rows: [Row<'_>; 12] = [
        (&[("app.py", FLASK)], Some("app:app")),
        (
            &[("api/main.py", "app = FastAPI()\n")],
            Some("api.main:app"),
        ),
        (&[("api/index.py", FLASK)], Some("api.index:app")),
        (&[("src/server.py", FLASK)], Some("server:app")),
        (
            &[("src/shop/__init__.py", FACTORY)],
            Some("shop:create_app()"),
        ),
        (&[("app/__init__.py", FACTORY)], Some("app:create_app()")),
        (&[("app/__init__.py", STRICT)], Some("app:create_app")),
        (
            &[("app/__init__.py", STRICT), ("wsgi.py", MADE)],
            Some("wsgi:app"),
        ),
        (
            &[("app/__init__.py", FACTORY), ("wsgi.py", MADE)],
            Some("wsgi:app"),
        ),
        (
            &[("passenger_wsgi.py", "application = x\n")],
            Some("passenger_wsgi:application"),
        ),
        (
            &[(".flaskenv", "FLASK_APP=shop\n"), ("shop.py", FACTORY)],
            Some("shop"),
        ),
        (&[("notes.py", "x = 1\n")], None),
    ];
    for (files, expected) in rows {
        let folder = TestDir::with_files(files);
        let found = detect_app(folder.path()).map(|found| found.entry);
        assert_eq!(found.as_deref(), expected, "{files:?}");
    }
}
