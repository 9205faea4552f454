//! Finds Ruby code of a web framework in a directory without a rackup file.
//!
//! Used by `detect`. The worker loads the file and asks its objects which of them is the
//! application.
//!
//! # Invariants
//!
//! - Files are read as text, never run.
//! - Among files with unusual names there is no choice: exactly one must show a framework.

use std::path::Path;

use super::{DetectedApp, code_lines};
use crate::disk;
use crate::model::AppKind;

/// The usual names of an application's file, the first before the others.
const COMMON_FILES: [&str; 5] = ["app.rb", "main.rb", "server.rb", "application.rb", "web.rb"];

/// Base classes of Rack applications.
const APPLICATION_BASES: [&str; 4] = [
    "Sinatra::Base",
    "Sinatra::Application",
    "Roda",
    "Grape::API",
];

/// The largest number of files that are read.
const MAX_FILES: usize = 64;

/// The file of a usual name that shows a framework.
pub(super) fn detect_common_file(dir: &Path) -> Option<DetectedApp> {
    let mut names = COMMON_FILES.iter().copied();
    names.find(|name| file_has_app(dir, name)).map(rack_app)
}

/// The only file that shows a framework, whatever its name.
pub(super) fn detect_only_file(dir: &Path) -> Option<DetectedApp> {
    let names = disk::list_files(dir);
    let code = names
        .iter()
        .map(String::as_str)
        .filter(|name| is_non_test_ruby_file(name));
    let mut candidates = code.take(MAX_FILES).filter(|name| file_has_app(dir, name));
    let only = candidates.next()?;
    candidates.next().is_none().then(|| rack_app(only))
}

fn rack_app(file: &str) -> DetectedApp {
    DetectedApp {
        kind: AppKind::Rack,
        entry: file.to_owned(),
    }
}

fn file_has_app(dir: &Path, name: &str) -> bool {
    has_application(&disk::read_source_or_empty(&dir.join(name)))
}

/// Whether it is a Ruby file that is no test.
fn is_non_test_ruby_file(name: &str) -> bool {
    let is_test = |stem: &str| {
        stem.starts_with("test_") || stem.ends_with("_test") || stem.ends_with("_spec")
    };
    name.strip_suffix(".rb").is_some_and(|stem| !is_test(stem))
}

/// Whether the text is a classic Sinatra application, or has the class of one.
fn has_application(text: &str) -> bool {
    code_lines(text).map(str::trim).any(|line| {
        line.starts_with("require") && is_sinatra(line)
            || base_class(line).is_some_and(is_application_base)
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
fn base_class(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix("class ") {
        Some(rest) => rest.split_once('<')?.1,
        None => line.split_once("Class.new(")?.1,
    };
    let end = rest.find([';', ')', '#']).unwrap_or(rest.len());
    Some(rest[..end].trim().trim_start_matches("::"))
}

fn is_application_base(name: &str) -> bool {
    APPLICATION_BASES.contains(&name)
}
