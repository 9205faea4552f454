//! The tables of `docs/migrate`: each word of another server with its answer.
//!
//! The files are in the program, and parsed once. Translators ask for words that they have no code
//! for, and `explain` for any word.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::report::Coverage;

/// A server with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Product {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Caddy.
    Caddy,
    /// Traefik.
    Traefik,
    /// Apache httpd.
    Apache,
    /// Gunicorn.
    Gunicorn,
    /// Uvicorn.
    Uvicorn,
    /// Puma.
    Puma,
    /// Unicorn.
    Unicorn,
    /// uWSGI.
    Uwsgi,
    /// Phusion Passenger.
    Passenger,
}

impl Product {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Nginx,
        Self::Haproxy,
        Self::Caddy,
        Self::Gunicorn,
        Self::Uvicorn,
        Self::Puma,
        Self::Unicorn,
        Self::Uwsgi,
        Self::Passenger,
        Self::Traefik,
        Self::Apache,
    ];

    /// The name that a reader knows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Caddy => "Caddy",
            Self::Traefik => "Traefik",
            Self::Apache => "Apache httpd",
            Self::Gunicorn => "Gunicorn",
            Self::Uvicorn => "Uvicorn",
            Self::Puma => "Puma",
            Self::Unicorn => "Unicorn",
            Self::Uwsgi => "uWSGI",
            Self::Passenger => "Passenger",
        }
    }

    /// The page of the documentation.
    #[must_use]
    pub fn page(self) -> &'static str {
        match self {
            Self::Nginx => "docs/migrate/nginx.md",
            Self::Haproxy => "docs/migrate/haproxy.md",
            Self::Caddy => "docs/migrate/caddy.md",
            Self::Traefik => "docs/migrate/traefik.md",
            Self::Gunicorn => "docs/migrate/gunicorn.md",
            Self::Uvicorn => "docs/migrate/uvicorn.md",
            Self::Puma => "docs/migrate/puma.md",
            Self::Unicorn => "docs/migrate/unicorn.md",
            Self::Uwsgi => "docs/migrate/uwsgi.md",
            Self::Passenger => "docs/migrate/passenger.md",
            Self::Apache => "docs/migrate/apache.md",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Nginx => include_str!("../../../docs/migrate/nginx.md"),
            Self::Haproxy => include_str!("../../../docs/migrate/haproxy.md"),
            Self::Caddy => include_str!("../../../docs/migrate/caddy.md"),
            Self::Traefik => include_str!("../../../docs/migrate/traefik.md"),
            Self::Gunicorn => include_str!("../../../docs/migrate/gunicorn.md"),
            Self::Uvicorn => include_str!("../../../docs/migrate/uvicorn.md"),
            Self::Puma => include_str!("../../../docs/migrate/puma.md"),
            Self::Unicorn => include_str!("../../../docs/migrate/unicorn.md"),
            Self::Uwsgi => include_str!("../../../docs/migrate/uwsgi.md"),
            Self::Passenger => include_str!("../../../docs/migrate/passenger.md"),
            Self::Apache => include_str!("../../../docs/migrate/apache.md"),
        }
    }
}

type Tables = BTreeMap<Product, BTreeMap<&'static str, &'static str>>;

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let tables = Product::ALL.into_iter();
        tables
            .map(|product| (product, read_table(product.text())))
            .collect()
    })
}

/// Words and answers of a page; `migration_tables`, a test, keeps its form.
fn read_table(page: &'static str) -> BTreeMap<&'static str, &'static str> {
    let mut answers = BTreeMap::new();
    for line in page.lines() {
        let Some(cells) = line.strip_prefix("| ").filter(|rest| rest.starts_with('`')) else {
            continue;
        };
        let Some((words, answer)) = cells.trim_end_matches(" |").split_once(" | ") else {
            continue;
        };
        for word in words.split(", ") {
            answers.insert(word.trim_matches('`'), answer);
        }
    }
    answers
}

/// The answer of a table, as it stands there.
pub(crate) fn answer(product: Product, word: &str) -> Option<&'static str> {
    tables().get(&product)?.get(word).copied()
}

/// Whether a word is a function of the file that Penstock calls, as the file of hooks.
pub(crate) fn is_hook(product: Product, word: &str) -> bool {
    answer(product, word).is_some_and(|answer| answer.starts_with("`hooks` of an application"))
}

/// Every word of a table.
pub fn known_words(product: Product) -> impl Iterator<Item = &'static str> {
    tables()
        .get(&product)
        .into_iter()
        .flat_map(|table| table.keys().copied())
}

/// The outcome of a word without a translation: the reason of the table, or the key to write.
pub(crate) fn outcome(product: Product, word: &str) -> (Coverage, String) {
    let Some(answer) = answer(product, word) else {
        let text = format!(
            "{} has no such word, or a module of others has it",
            product.as_str()
        );
        return (Coverage::ByHand, text);
    };
    let phrases = [
        ("built in: ", Coverage::BuiltIn),
        ("not needed: ", Coverage::NotNeeded),
        ("not offered: ", Coverage::NotOffered),
    ];
    let found = phrases.into_iter().find_map(|(phrase, coverage)| {
        let reason = answer.strip_prefix(phrase)?;
        Some((coverage, without_links(reason)))
    });
    found.unwrap_or_else(|| (Coverage::ByHand, without_links(answer)))
}

/// A text in which `[page](address)` is `page`.
pub(crate) fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let link = rest[start + 1..]
            .split_once("](")
            .and_then(|(page, behind)| {
                let (_, behind) = behind.split_once(')')?;
                (!page.contains(['[', ']'])).then_some((page, behind))
            });
        let Some((page, behind)) = link else {
            plain.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        };
        plain.push_str(&rest[..start]);
        plain.push_str(page);
        rest = behind;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_table() {
        for product in Product::ALL {
            let count = known_words(product).count();
            assert!(count > 20, "{product:?}: {count}");
        }
        let (coverage, text) = outcome(Product::Nginx, "gzip_vary");
        assert_eq!(coverage, Coverage::BuiltIn);
        assert!(text.starts_with("`Vary: Accept-Encoding`"), "{text}");
        assert_eq!(outcome(Product::Caddy, "push").0, Coverage::NotOffered);
        assert_eq!(outcome(Product::Haproxy, "maxconn").0, Coverage::ByHand);
        assert_eq!(outcome(Product::Nginx, "frobnicate").0, Coverage::ByHand);
    }

    #[test]
    fn takes_links_out() {
        let rows = [
            ("see ([files.md](../files.md)).", "see (files.md)."),
            ("`[caches.NAME]`: `path`", "`[caches.NAME]`: `path`"),
            ("`[[tcp]]` and [a](b), [c](d)", "`[[tcp]]` and a, c"),
            ("[", "["),
        ];
        for (text, expected) in rows {
            assert_eq!(without_links(text), expected);
        }
    }
}
