//! Which application the files of other tools name: Flask's `.flaskenv`, FastAPI's entry in
//! `pyproject.toml`, the `web:` line of a `Procfile`.
//!
//! Asked by `detect` before it searches modules. Pure: text in, entry out; whether there is such a
//! module is `detect`'s question.

use crate::entry;

/// An entry as one of these tools writes it, with or without a callable.
pub(super) type Entry = String;

/// The value of `FLASK_APP`: a module or a file, with or without a callable.
pub(super) fn entry_from_flask_app(value: &str) -> Option<Entry> {
    let value = value.trim().trim_matches(['"', '\'']);
    let (module, callable) = match value.split_once(':') {
        Some((module, callable)) => (module, Some(callable)),
        None => (value, None),
    };
    let module = module.strip_prefix("./").unwrap_or(module);
    let module = module.strip_suffix(".py").unwrap_or(module);
    let module = module.trim_end_matches('/').replace('/', ".");
    let entry = match callable {
        Some(callable) => format!("{module}:{callable}"),
        None => module,
    };
    entry::is_python_entry(&entry).then_some(entry)
}

/// What `FLASK_APP=...` says in a `.flaskenv`.
pub(super) fn entry_from_flaskenv(text: &str) -> Option<Entry> {
    let lines = text.lines().map(str::trim_start);
    let mut values = lines.filter_map(|line| {
        let line = line.strip_prefix("export ").unwrap_or(line);
        line.strip_prefix("FLASK_APP")?
            .trim_start()
            .strip_prefix('=')
    });
    values.next_back().and_then(entry_from_flask_app)
}

/// `entrypoint` of `[tool.fastapi]` in a `pyproject.toml`.
pub(super) fn entry_from_pyproject(text: &str) -> Option<Entry> {
    let table: toml::Table = text.parse().ok()?;
    let entry = table.get("tool")?.get("fastapi")?.get("entrypoint")?;
    let entry = entry.as_str()?.to_owned();
    entry::split_python(&entry).is_some().then_some(entry)
}

/// The application that the `web:` line of a `Procfile` starts with Gunicorn, Uvicorn and the like.
pub(super) fn entry_from_procfile(text: &str) -> Option<Entry> {
    let mut lines = text.lines();
    let command = lines.find_map(|line| line.trim_start().strip_prefix("web:"))?;
    let mut words = command.split_whitespace();
    let is_server = |word: &str| {
        let name = word.rsplit('/').next().unwrap_or(word);
        SERVER_COMMANDS.contains(&name)
    };
    words.find(|word| is_server(word))?;
    let entry = words.find(|word| entry::split_python(word).is_some())?;
    Some(entry.to_owned())
}

const SERVER_COMMANDS: [&str; 7] = [
    "gunicorn",
    "uvicorn",
    "hypercorn",
    "daphne",
    "granian",
    "waitress-serve",
    "uwsgi",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_other_tools_are_told() {
        let flask = |text| entry_from_flask_app(text);
        let rows: [(Option<Entry>, Option<&str>); 17] = [
            (flask("hello"), Some("hello")),
            (flask("hello.py"), Some("hello")),
            (flask("./shop/web.py:site"), Some("shop.web:site")),
            (
                flask("\"shop:create_app('dev')\""),
                Some("shop:create_app('dev')"),
            ),
            (flask("shop/"), Some("shop")),
            (flask("../shop.py"), None),
            (flask("/srv/shop.py"), None),
            (flask("my-app.py"), None),
            (
                entry_from_flaskenv("# FLASK_APP=no\nFLASK_APP=one\nexport FLASK_APP = two.py\n"),
                Some("two"),
            ),
            (entry_from_flaskenv("FLASK_APPS=one\nFLASK_DEBUG=1\n"), None),
            (
                entry_from_pyproject(
                    "[project]\nname='x'\n[tool.fastapi]\nentrypoint = 'shop.api:app'\n",
                ),
                Some("shop.api:app"),
            ),
            (
                entry_from_pyproject("[tool.fastapi]\nentrypoint = 5\n"),
                None,
            ),
            (entry_from_pyproject("[broken"), None),
            (
                entry_from_procfile(
                    "worker: celery -A x:y\nweb: gunicorn -w 2 shop.wsgi:app --log-file -\n",
                ),
                Some("shop.wsgi:app"),
            ),
            (
                entry_from_procfile("web: env/bin/uvicorn main:app --port $PORT"),
                Some("main:app"),
            ),
            (entry_from_procfile("web: bundle exec puma -C a:b"), None),
            (entry_from_procfile("web: gunicorn $APP"), None),
        ];
        for (found, expected) in rows {
            assert_eq!(found.as_deref(), expected);
        }
    }
}
