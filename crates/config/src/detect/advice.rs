//! What to do about a directory that was not recognised: the command or the lines that would serve
//! it.
//!
//! Used by `resolve` for its refusal. Looks at names only; nothing is read or run.

use std::path::Path;

/// Files that show another kind of application, and what to write for it.
const KNOWN_PROJECTS: [(&str, &str, Remedy); 14] = [
    (
        "package.json",
        "a Node.js application",
        Remedy::Command("npm start"),
    ),
    (
        "deno.json",
        "a Deno application",
        Remedy::Command("deno task start"),
    ),
    ("go.mod", "a Go program", Remedy::Command("go run .")),
    (
        "Cargo.toml",
        "a Rust program",
        Remedy::Command("cargo run --release"),
    ),
    (
        "mix.exs",
        "an Elixir application",
        Remedy::Command("mix phx.server"),
    ),
    (
        "pom.xml",
        "a Java application",
        Remedy::Command("mvn spring-boot:run"),
    ),
    (
        "build.gradle",
        "a Java application",
        Remedy::Command("./gradlew bootRun"),
    ),
    (
        "build.gradle.kts",
        "a Kotlin application",
        Remedy::Command("./gradlew bootRun"),
    ),
    ("artisan", "a PHP application", Remedy::UsePhpFpm),
    ("composer.json", "a PHP application", Remedy::UsePhpFpm),
    ("public/index.php", "a PHP application", Remedy::UsePhpFpm),
    ("index.php", "a PHP application", Remedy::UsePhpFpm),
    (
        "Gemfile",
        "a Ruby application",
        Remedy::NameEntry("config.ru"),
    ),
    (
        "requirements.txt",
        "a Python application",
        Remedy::NameEntry("MODULE:CALLABLE"),
    ),
];

/// How such an application is served.
#[derive(Debug, Clone, Copy)]
enum Remedy {
    /// As a program that listens at `PORT`.
    Command(&'static str),
    /// By servers of FastCGI.
    UsePhpFpm,
    /// When its entry is named.
    NameEntry(&'static str),
}

/// Directories into which sites are built.
const BUILD_DIRS: [&str; 10] = [
    "dist", "build", "out", "_site", "site", "www", "html", "htdocs", "web", "docs",
];

/// What would work for `dir`, as the end of a sentence.
pub(crate) fn advice(dir: &Path) -> String {
    let mut parts = Vec::new();
    let sign = KNOWN_PROJECTS
        .iter()
        .find(|(name, ..)| dir.join(name).is_file());
    if let Some((name, what, remedy)) = sign {
        parts.push(format!("{name} shows {what}: {}", remedy.instructions()));
    }
    let built = BUILD_DIRS
        .iter()
        .find(|name| dir.join(name).join("index.html").is_file());
    if let Some(built) = built {
        let built = dir.join(built);
        parts.push(format!(
            "for the site that is built: penstock serve {}",
            built.display()
        ));
    }
    if sign.is_none() {
        parts.push("for an application: penstock serve MODULE:CALLABLE".to_owned());
    }
    let public = dir.join("public");
    let folder = if public.is_dir() { &public } else { dir };
    parts.push(format!(
        "for plain files, and nothing else: penstock serve --files {}",
        folder.display()
    ));
    parts.join("; ")
}

impl Remedy {
    fn instructions(self) -> String {
        match self {
            Self::Command(command) => format!(
                "write [apps.site] with kind = \"command\" and command = \"{command}\" to \
                 penstock.toml (it listens at the port in PORT)"
            ),
            Self::UsePhpFpm => {
                "start php-fpm and name it in penstock.toml (docs/php.md)".to_owned()
            }
            Self::NameEntry(entry) => format!("say which object it is: penstock serve {entry}"),
        }
    }
}
