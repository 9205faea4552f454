//! Finds Ruby code of a web framework in a folder without a rackup file.
//!
//! Used by `detect`. The worker loads the file and asks its objects which of them is the
//! application.
//!
//! # Invariants
//!
//! - Files are read as text, never run.
//! - Among files with unusual names there is no choice: exactly one must show a framework.

use std::path::Path;

use super::{Found, code_lines};
use crate::disk;
use crate::model::AppKind;

/// The usual names of an application's file, the first before the others.
const FILES: [&str; 5] = ["app.rb", "main.rb", "server.rb", "application.rb", "web.rb"];

/// Classes whose subclasses are Rack applications.
const BASES: [&str; 4] = [
    "Sinatra::Base",
    "Sinatra::Application",
    "Roda",
    "Grape::API",
];

/// The largest number of files that are read.
const MAX_FILES: usize = 64;

/// The file of a usual name that shows a framework.
pub(super) fn named_in(dir: &Path) -> Option<Found> {
    let mut names = FILES.iter().copied();
    names.find(|name| shows_app(dir, name)).map(rack)
}

/// The only file that shows a framework, whatever its name.
pub(super) fn only_file_in(dir: &Path) -> Option<Found> {
    let names = disk::files_in(dir);
    let code = names
        .iter()
        .map(String::as_str)
        .filter(|name| is_code(name));
    let mut candidates = code.take(MAX_FILES).filter(|name| shows_app(dir, name));
    let only = candidates.next()?;
    candidates.next().is_none().then(|| rack(only))
}

fn rack(file: &str) -> Found {
    Found {
        kind: AppKind::Rack,
        entry: file.to_owned(),
    }
}

fn shows_app(dir: &Path, name: &str) -> bool {
    is_application(&disk::source_text(&dir.join(name)))
}

/// Whether it is a Ruby file that is no test.
fn is_code(name: &str) -> bool {
    let is_test = |stem: &str| {
        stem.starts_with("test_") || stem.ends_with("_test") || stem.ends_with("_spec")
    };
    name.strip_suffix(".rb").is_some_and(|stem| !is_test(stem))
}

/// Whether the text is a classic Sinatra application, or has the class of one.
fn is_application(text: &str) -> bool {
    code_lines(text).map(str::trim).any(|line| {
        line.starts_with("require") && is_sinatra(line) || base_of(line).is_some_and(is_base)
    })
}

fn is_sinatra(line: &str) -> bool {
    let library = line
        .trim_start_matches("require")
        .trim_start_matches(['(', ' ']);
    ["'sinatra'", "\"sinatra\""]
        .iter()
        .any(|name| library.starts_with(name))
}

/// The parent of `class Name < Parent` and of `Class.new(Parent)`.
fn base_of(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix("class ") {
        Some(rest) => rest.split_once('<')?.1,
        None => line.split_once("Class.new(")?.1,
    };
    let end = rest.find([';', ')', '#']).unwrap_or(rest.len());
    Some(rest[..end].trim().trim_start_matches("::"))
}

fn is_base(name: &str) -> bool {
    BASES.contains(&name)
}
