//! Folders without a configuration file: what a start finds in them, sets and prints.
//!
//! # Invariants
//!
//! - A start prints what it serves, by which interpreter, and where each value came from.
//! - Static and media files of Django are those of its settings, and never the project's code.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{Server, Site, texts};

/// What a project needs of Django here: settings by module, and handlers of requests.
const DJANGO: [(&str, &str); 7] = [
    ("django/__init__.py", ""),
    (
        "django/conf/__init__.py",
        "import importlib, os\nsettings = importlib.import_module(os.environ['DJANGO_SETTINGS_MODULE'])\n",
    ),
    ("django/core/__init__.py", ""),
    (
        "django/core/wsgi.py",
        "def get_wsgi_application():\n    def app(environ, start_response):\n        \
         start_response('200 OK', [])\n        return [b'django ' + environ['PATH_INFO'].encode()]\n    \
         return app\n",
    ),
    ("django/contrib/__init__.py", ""),
    ("django/contrib/staticfiles/__init__.py", ""),
    (
        "django/contrib/staticfiles/handlers.py",
        "class StaticFilesHandler:\n    def __init__(self, app):\n        self.app = app\n    \
         def __call__(self, environ, start_response):\n        \
         if not environ['PATH_INFO'].startswith('/static/'):\n            \
         return self.app(environ, start_response)\n        \
         start_response('200 OK', [])\n        return [b'found']\n",
    ),
];

const SETTINGS: &str = "print('settings are read')\n\
                        import pathlib\n\
                        BASE_DIR = pathlib.Path(__file__).parent.parent\n\
                        DEBUG = True\n\
                        INSTALLED_APPS = ['django.contrib.staticfiles']\n\
                        STATIC_URL = '/static/'\n\
                        STATIC_ROOT = BASE_DIR / 'collected'\n\
                        MEDIA_URL = '/media/'\n";

fn project(settings: &str) -> Site {
    let manage = "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mysite.settings')\n\
                  # django\n";
    let wsgi = "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mysite.settings')\n\
                from django.core.wsgi import get_wsgi_application\n\
                application = get_wsgi_application()\n";
    let site = DJANGO
        .iter()
        .fold(Site::new(), |site, (path, text)| site.file(path, text));
    site.file("manage.py", manage)
        .file("mysite/wsgi.py", wsgi)
        .file("mysite/settings.py", settings)
        .file("collected/style.css", "a style")
        .file("uploads/cat.txt", "a cat")
}

fn serve(site: &Site, arguments: &[&str]) -> Server {
    let server = site.serve(&[&["--processes", "1"], arguments].concat());
    server.wait_ready("site");
    server
}

fn note(server: &Server, words: &str) -> String {
    let lines = server.announced();
    let line = lines.iter().find(|line| line.contains(words));
    line.cloned()
        .unwrap_or_else(|| panic!("{words:?} in {lines:?}"))
}

#[test]
fn static_and_media_files_of_django_are_those_of_its_settings() {
    let site = project(&format!("{SETTINGS}MEDIA_ROOT = 'uploads'\n"));
    let server = serve(&site, &[]);
    for (path, body) in [
        ("/", "django /"),
        ("/static/style.css", "a style"),
        ("/media/cat.txt", "a cat"),
    ] {
        assert_eq!(server.get(path).text(), body, "{path}");
    }
    assert_eq!(server.get("/static/missing.css").status, 404);
    let line = note(&server, "serving ");
    let front = "serving mysite.wsgi:application (Django) with ";
    assert!(line.starts_with(front), "{line}");
    note(&server, "static files: /static/ from ");
    note(&server, "media files: /media/ from ");
    // The same answer after a reload, which starts no program but looks at the folders.
    std::fs::remove_dir_all(site.dir().join("uploads")).unwrap();
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server.site().run(&["reload", "--admin", &admin]);
    assert!(output.status.success(), "{}", texts(&output).1);
    assert_eq!(server.get("/static/style.css").text(), "a style");
    assert_eq!(server.get("/media/cat.txt").text(), "django /media/cat.txt");
}

#[test]
fn in_development_django_finds_its_static_files() {
    let server = serve(&project(SETTINGS), &["--dev"]);
    assert_eq!(server.get("/static/style.css").text(), "found");
    assert_eq!(server.get("/static.css").text(), "django /static.css");
    note(
        &server,
        "static files: /static/ found by django.contrib.staticfiles",
    );
}

#[test]
fn a_folder_with_the_code_of_django_is_never_served() {
    let settings = format!("{SETTINGS}MEDIA_ROOT = BASE_DIR\nSTATIC_ROOT = BASE_DIR / 'mysite'\n");
    let server = serve(&project(&settings).file("mysite/__init__.py", ""), &[]);
    for path in ["/media/collected/style.css", "/static/settings.py"] {
        assert_eq!(server.get(path).text(), format!("django {path}"));
    }
    note(&server, "media files: /media/ not served: ");
    note(&server, "static files: /static/ not served: ");
}

#[test]
fn settings_that_cannot_be_read_leave_the_files_to_the_application() {
    let settings =
        "import os\nif 'PENSTOCK_MULTIPROCESS' not in os.environ:\n    raise OSError('no key')\n";
    let server = serve(&project(settings), &[]);
    let line = note(&server, "static files: left to the application");
    assert!(line.ends_with("OSError: no key"), "{line}");
    assert_eq!(
        server.get("/static/style.css").text(),
        "django /static/style.css"
    );
}

#[test]
fn a_procfile_starts_the_program_that_it_names() {
    const PROGRAM: &str = "import http.server, os\n\
                           class Page(http.server.BaseHTTPRequestHandler):\n    \
                           def do_GET(self):\n        \
                           self.send_response(200)\n        self.end_headers()\n        \
                           self.wfile.write(b'program ' + self.path.encode())\n\
                           http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Page).serve_forever()\n";
    for line in ["web: ./program", "web: python3 program"] {
        let site = Site::new()
            .file("Procfile", format!("worker: ./jobs\n{line}\n"))
            .file("program", format!("#!/usr/bin/env python3\n{PROGRAM}"))
            .file("public/page.txt", "a page");
        let program = site.dir().join("program");
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let server = serve(&site, &[]);
        assert_eq!(server.get("/x").text(), "program /x", "{line}");
        assert_eq!(server.get("/page.txt").text(), "a page", "{line}");
        let command = line.trim_start_matches("web: ");
        note(&server, &format!("serving {command} (Procfile)"));
    }
}

#[test]
fn a_framework_with_a_server_of_its_own_is_refused_with_what_would_serve_it() {
    let code = "from aiohttp import web\napp = web.Application()\n";
    let site = Site::new().file("main.py", code);
    let output = site.run(&["serve", "-l", "127.0.0.1:0"]);
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for words in [
        "main.py makes an application of aiohttp",
        "kind = \"command\"",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
}
