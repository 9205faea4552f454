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

/// The command of a Procfile's `web:` line.
pub(super) fn web_line(text: &str) -> Option<&str> {
    let mut lines = procfile_lines(text);
    lines.find_map(|(kind, command)| (kind == "web").then_some(command))
}

/// The types of processes of a Procfile, and the command of each.
pub(super) fn procfile_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.map(|(kind, command)| (kind.trim(), command.trim()));
    lines.filter(move |(kind, command)| {
        !kind.is_empty() && kind.chars().all(is_word) && !command.is_empty()
    })
}

/// The application that the `web:` line of a `Procfile` starts with Gunicorn, Uvicorn and the like.
pub(super) fn entry_from_procfile(text: &str) -> Option<Entry> {
    let mut words = command_words(web_line(text)?);
    match words.find_map(python_server)? {
        "flask" => {
            words.find(|word| ["--app", "-A"].contains(word))?;
            entry_from_flask_app(words.next()?)
        }
        "fastapi" => words
            .filter(|word| word.ends_with(".py"))
            .find_map(entry_from_flask_app),
        _ => {
            let entry = words.find(|word| entry::split_python(word).is_some())?;
            Some(entry.to_owned())
        }
    }
}

/// The rackup file that the `web:` line of a `Procfile` names.
pub(super) fn rackup_from_procfile(text: &str) -> Option<Entry> {
    let mut words = command_words(web_line(text)?);
    words.find(|word| RUBY_SERVERS.contains(&program_name(word)))?;
    let file = words.find(|word| word.ends_with(".ru") && entry::split_ruby(word).is_some())?;
    Some(file.to_owned())
}

/// Whether a line starts an application that Penstock loads itself, or Penstock.
pub(super) fn is_application_server(line: &str) -> bool {
    let is_known = |word: &str| {
        let name = program_name(word);
        python_server(word).is_some()
            || RUBY_SERVERS.contains(&name)
            || INTERPRETERS.iter().any(|known| {
                let version = name.strip_prefix(known);
                version.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
            })
    };
    starts_penstock(line) || command_words(line).any(is_known)
}

/// Whether a line starts this program.
pub(super) fn starts_penstock(line: &str) -> bool {
    command_words(line).any(|word| program_name(word) == "penstock")
}

fn command_words(command: &str) -> impl Iterator<Item = &str> {
    let words = command.split_whitespace();
    words.map(|word| word.trim_matches(['"', '\'']))
}

fn program_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn python_server(word: &str) -> Option<&'static str> {
    let name = program_name(word);
    PYTHON_SERVERS.iter().copied().find(|known| *known == name)
}

const PYTHON_SERVERS: [&str; 9] = [
    "gunicorn",
    "uvicorn",
    "hypercorn",
    "daphne",
    "granian",
    "waitress-serve",
    "uwsgi",
    "flask",
    "fastapi",
];

const RUBY_SERVERS: [&str; 8] = [
    "puma",
    "unicorn",
    "thin",
    "rackup",
    "rails",
    "falcon",
    "iodine",
    "passenger",
];

/// What runs code that may be an application; a version may follow.
const INTERPRETERS: [&str; 2] = ["python", "ruby"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_other_tools_are_told() {
        let flask = |text| entry_from_flask_app(text);
        let rows: [(Option<Entry>, Option<&str>); 22] = [
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
            (
                entry_from_procfile("web: gunicorn 'shop:create_app()' -b :$PORT"),
                Some("shop:create_app()"),
            ),
            (
                entry_from_procfile("web: flask --app shop/web.py run -p $PORT"),
                Some("shop.web"),
            ),
            (
                entry_from_procfile("web: fastapi run app/main.py --port $PORT"),
                Some("app.main"),
            ),
            (
                rackup_from_procfile("web: bundle exec puma -p $PORT shop.ru"),
                Some("shop.ru"),
            ),
            (
                rackup_from_procfile("web: bundle exec puma -C config/puma.rb"),
                None,
            ),
        ];
        for (found, expected) in rows {
            assert_eq!(found.as_deref(), expected);
        }
    }
}
