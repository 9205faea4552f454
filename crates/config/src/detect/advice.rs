//! What to do about a directory that was not recognised: the command or the lines that would serve
//! it.
//!
//! Used by `resolve` for its refusal. Looks at names only; nothing is read or run.

use std::path::Path;

/// Files that show a program which listens at `PORT`, and the command that starts it.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("package.json", "a Node.js application", "npm start"),
    ("deno.json", "a Deno application", "deno task start"),
    ("go.mod", "a Go program", "go run ."),
    ("Cargo.toml", "a Rust program", "cargo run --release"),
    ("mix.exs", "an Elixir application", "mix phx.server"),
    ("pom.xml", "a Java application", "mvn spring-boot:run"),
    ("build.gradle", "a Java application", "./gradlew bootRun"),
    (
        "build.gradle.kts",
        "a Kotlin application",
        "./gradlew bootRun",
    ),
];

/// Files of PHP applications.
const PHP: [&str; 4] = ["artisan", "composer.json", "public/index.php", "index.php"];

/// Files that show an application whose entry must be named, and what an entry looks like.
const UNNAMED: [(&str, &str, &str); 2] = [
    ("Gemfile", "a Ruby application", "config.ru"),
    (
        "requirements.txt",
        "a Python application",
        "MODULE:CALLABLE",
    ),
];

/// Directories into which sites are built.
const BUILD_DIRS: [&str; 10] = [
    "dist", "build", "out", "_site", "site", "www", "html", "htdocs", "web", "docs",
];

/// What would work for `dir`, as the end of a sentence.
pub(crate) fn setup_advice(dir: &Path) -> String {
    let project = project_advice(dir);
    let is_project = project.is_some();
    let mut parts: Vec<String> = project.into_iter().collect();
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
    if !is_project {
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

/// What a file of `dir` shows it to be, and how to serve that.
fn project_advice(dir: &Path) -> Option<String> {
    let has = |name: &str| dir.join(name).is_file();
    if let Some((name, what, command)) = PROGRAMS.iter().find(|(name, ..)| has(name)) {
        return Some(format!(
            "{name} shows {what}: write [apps.site] with kind = \"command\" and command = \
             \"{command}\" to penstock.toml (it listens at the port in PORT)"
        ));
    }
    if let Some(name) = PHP.iter().find(|name| has(name)) {
        return Some(format!(
            "{name} shows a PHP application: start php-fpm and name it in penstock.toml (docs/php.md)"
        ));
    }
    let (name, what, entry) = UNNAMED.iter().find(|(name, ..)| has(name))?;
    Some(format!(
        "{name} shows {what}: say which object it is: penstock serve {entry}"
    ))
}
