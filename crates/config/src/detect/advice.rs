//! What to do about a directory that was not recognised: the command or the lines that would serve
//! it.
//!
//! Used by `resolve` for its refusal. Nothing is run.

use std::path::Path;

use crate::disk;

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
const PHP: [&str; 2] = ["artisan", "composer.json"];

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

/// What would work for `dir`, a line each.
pub(crate) fn setup_advice(dir: &Path) -> Vec<String> {
    let project = project_advice(dir);
    let below = application_below(dir);
    let is_project = project.is_some() || below.is_some();
    let mut parts: Vec<String> = project.into_iter().collect();
    parts.extend(below);
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
    parts
}

/// The folder below that an application is in, as in a repository with several.
fn application_below(dir: &Path) -> Option<String> {
    let names = disk::list_directories(dir).into_iter();
    let mut folders = names
        .filter(|name| !name.starts_with('.') && !OTHER_DIRS.contains(&name.as_str()))
        .take(MAX_DIRS)
        .map(|name| dir.join(name));
    let found = folders.find(|folder| super::detect_app(folder).is_some())?;
    Some(format!(
        "{} has an application: penstock serve {}",
        found.display(),
        found.display()
    ))
}

/// Folders that are looked into.
const MAX_DIRS: usize = 64;

/// Folders whose applications are no project's own.
const OTHER_DIRS: [&str; 7] = [
    "node_modules",
    "vendor",
    "venv",
    "env",
    "tests",
    "test",
    "examples",
];

/// What a file of `dir` shows it to be, and how to serve that.
fn project_advice(dir: &Path) -> Option<String> {
    let has = |name: &str| dir.join(name).is_file();
    if let Some((name, what, command)) = PROGRAMS.iter().find(|(name, ..)| has(name)) {
        return Some(format!(
            "{name} shows {what}: write `web: {command}` to a file Procfile (it listens at the port \
             in PORT)"
        ));
    }
    if let Some(name) = PHP.iter().find(|name| has(name)) {
        return Some(format!(
            "{name} shows a PHP application, and it has no index.php in this folder, in public or in \
             web: write its folder to penstock.toml (penstock config explain apps.NAME.kind)"
        ));
    }
    let (name, what, entry) = UNNAMED.iter().find(|(name, ..)| has(name))?;
    Some(format!(
        "{name} shows {what}: say which object it is: penstock serve {entry}"
    ))
}
