//! Which server a file is for: by its name, else by its text.

use std::path::Path;

/// The servers with a translator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// `nginx.conf` and the files that it includes.
    Nginx,
    /// `Caddyfile`.
    Caddy,
    /// `haproxy.cfg`.
    Haproxy,
    /// `gunicorn.conf.py`.
    Gunicorn,
    /// Settings of Uvicorn: `uvicorn.run(...)` or assignments in a Python file.
    Uvicorn,
    /// `config/puma.rb`.
    Puma,
    /// `config/unicorn.rb`.
    Unicorn,
    /// `uwsgi.ini`.
    Uwsgi,
    /// `Procfile`.
    Procfile,
    /// `Passengerfile.json`.
    Passenger,
}

impl ServerKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Nginx,
        Self::Caddy,
        Self::Haproxy,
        Self::Gunicorn,
        Self::Uvicorn,
        Self::Puma,
        Self::Unicorn,
        Self::Uwsgi,
        Self::Procfile,
        Self::Passenger,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Haproxy => "haproxy",
            Self::Gunicorn => "gunicorn",
            Self::Uvicorn => "uvicorn",
            Self::Puma => "puma",
            Self::Unicorn => "unicorn",
            Self::Uwsgi => "uwsgi",
            Self::Procfile => "procfile",
            Self::Passenger => "passenger",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Recognises a file.
    #[must_use]
    pub fn detect(file: &Path, text: &str) -> Option<Self> {
        let name = file.file_name()?.to_string_lossy().to_ascii_lowercase();
        Self::of_name(&name).or_else(|| Self::of_text(&name, text))
    }

    fn of_name(name: &str) -> Option<Self> {
        let stem = name.split('.').next().unwrap_or_default();
        let has = |word: &str| name.contains(word);
        Some(match () {
            () if stem == "caddyfile" || name.ends_with(".caddyfile") => Self::Caddy,
            () if stem == "procfile" => Self::Procfile,
            () if stem == "passengerfile" => Self::Passenger,
            () if has("haproxy") => Self::Haproxy,
            () if has("gunicorn") && name.ends_with(".py") => Self::Gunicorn,
            () if has("uvicorn") && name.ends_with(".py") => Self::Uvicorn,
            () if has("puma") && name.ends_with(".rb") => Self::Puma,
            () if has("unicorn") && name.ends_with(".rb") => Self::Unicorn,
            () if has("uwsgi") && !has("params") => Self::Uwsgi,
            () if has("nginx") => Self::Nginx,
            () => return None,
        })
    }

    fn of_text(name: &str, text: &str) -> Option<Self> {
        let first_words = || {
            let lines = text.lines().take(2_000).map(str::trim_start);
            lines.filter_map(|line| line.split([' ', '\t', '(', '=', '{']).next())
        };
        let has = |words: &[&str]| first_words().any(|word| words.contains(&word));
        let ends = |ending: &str| name.ends_with(ending);
        Some(match () {
            () if ends(".py") && has(&["uvicorn.run", "uvicorn.Config"]) => Self::Uvicorn,
            () if ends(".py") => Self::Gunicorn,
            () if ends(".rb") && has(&["worker_processes", "preload_app"]) => Self::Unicorn,
            () if ends(".rb") => Self::Puma,
            () if has(&["[uwsgi]"]) => Self::Uwsgi,
            () if ends(".json") && text.trim_start().starts_with('{') => Self::Passenger,
            () if has(&["frontend", "backend", "defaults", "listen"]) && !text.contains(';') => {
                Self::Haproxy
            }
            () if has(&["server", "upstream", "location", "http", "server_name"])
                && text.contains(';') =>
            {
                Self::Nginx
            }
            () if has(&[
                "reverse_proxy",
                "file_server",
                "php_fastcgi",
                "respond",
                "root",
            ]) =>
            {
                Self::Caddy
            }
            () if has(&["web:", "worker:", "release:"]) => Self::Procfile,
            () => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_files_by_name_and_by_text() {
        let rows = [
            ("nginx.conf", "", Some(ServerKind::Nginx)),
            (
                "site.conf",
                "server {\n listen 80;\n}",
                Some(ServerKind::Nginx),
            ),
            ("Caddyfile.prod", "", Some(ServerKind::Caddy)),
            (
                "proxy.txt",
                "example.com {\n reverse_proxy :1\n}",
                Some(ServerKind::Caddy),
            ),
            ("haproxy.cfg", "", Some(ServerKind::Haproxy)),
            ("lb.cfg", "frontend a\n bind :80", Some(ServerKind::Haproxy)),
            ("gunicorn.conf.py", "", Some(ServerKind::Gunicorn)),
            ("gunicorn_config.py", "", Some(ServerKind::Gunicorn)),
            ("run.py", "uvicorn.run('a:b')", Some(ServerKind::Uvicorn)),
            ("puma.rb", "", Some(ServerKind::Puma)),
            ("unicorn.rb", "", Some(ServerKind::Unicorn)),
            ("web.rb", "worker_processes 4", Some(ServerKind::Unicorn)),
            ("uwsgi.ini", "", Some(ServerKind::Uwsgi)),
            ("app.ini", "[uwsgi]\nmaster=1", Some(ServerKind::Uwsgi)),
            ("Procfile.dev", "", Some(ServerKind::Procfile)),
            ("Passengerfile.json", "", Some(ServerKind::Passenger)),
            ("letter.txt", "Dear all,", None),
        ];
        for (name, text, kind) in rows {
            assert_eq!(ServerKind::detect(Path::new(name), text), kind, "{name}");
        }
    }
}
