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

use super::DetectedApp;
use super::source::code_lines;
use crate::disk;
use crate::model::AppKind;

/// The usual names of an application's file, the first before the others.
const COMMON_FILES: [&str; 5] = ["app.rb", "main.rb", "server.rb", "application.rb", "web.rb"];

/// Base classes of Rack applications.
const APPLICATION_BASES: [&str; 7] = [
    "Sinatra::Base",
    "Sinatra::Application",
    "Roda",
    "Grape::API",
    "Cuba",
    "Hanami::API",
    "Padrino::Application",
];

/// Files that load a whole application of a framework that has a rackup file too, and what they
/// say: Rails, and Hanami.
const FRAMEWORK_FILES: [(&str, &str); 2] = [
    ("config/environment.rb", "Rails.application"),
    ("config/app.rb", "Hanami::App"),
];

/// What shows a framework, in the text of an entry, in the folder's `Gemfile`, or by a file; the
/// framework that others are built into comes last.
const FRAMEWORKS: [(&str, &str, &str); 7] = [
    ("Rails", "Rails.application", "config/application.rb"),
    ("Hanami", "Hanami", "config/app.rb"),
    ("Grape", "Grape", ""),
    ("Roda", "Roda", ""),
    ("Cuba", "Cuba", ""),
    ("Padrino", "Padrino", ""),
    ("Sinatra", "Sinatra", ""),
];

/// The framework of a rackup file or of Ruby code.
pub(super) fn framework_of(dir: &Path, entry: &str) -> Option<&'static str> {
    let (file, _) = crate::entry::split_ruby(entry)?;
    let text = disk::read_source_or_empty(&dir.join(file));
    let gems = disk::read_source_or_empty(&dir.join("Gemfile"));
    let in_code = |word: &str| code_lines(&text).any(|line| line.contains(word));
    let shown = FRAMEWORKS.iter().find(|(_, word, file)| {
        in_code(word) || !file.is_empty() && has_framework_file(dir, file, word)
    });
    let named = || {
        FRAMEWORKS.iter().find(|(name, ..)| {
            let gem = name.to_ascii_lowercase();
            let quoted = [format!("gem \"{gem}\""), format!("gem '{gem}'")];
            code_lines(&gems).any(|line| quoted.iter().any(|gem| line.contains(gem.as_str())))
        })
    };
    let classic = || {
        code_lines(&text)
            .map(str::trim)
            .any(|line| line.starts_with("require") && is_sinatra(line))
            .then_some("Sinatra")
    };
    shown
        .or_else(named)
        .map(|(name, ..)| *name)
        .or_else(classic)
}

fn has_framework_file(dir: &Path, file: &str, word: &str) -> bool {
    let library = word.split('.').next().unwrap_or(word);
    disk::read_source_or_empty(&dir.join(file)).contains(library)
}

/// The largest number of files that are read.
const MAX_FILES: usize = 64;

/// The file of a usual name that shows a framework.
pub(super) fn detect_common_file(dir: &Path) -> Option<DetectedApp> {
    let mut names = COMMON_FILES.iter().copied();
    let common = names.find(|name| file_has_app(dir, name));
    let of_framework = || {
        let says = |(file, word): &&(&str, &str)| {
            let text = disk::read_source_or_empty(&dir.join(file));
            code_lines(&text).any(|line| line.contains(word))
        };
        let mut files = FRAMEWORK_FILES.iter();
        files.find(says).map(|(file, _)| *file)
    };
    common.or_else(of_framework).map(rack_app)
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
            || line.starts_with("Cuba.define")
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

/// What Action Cable lacks to reach the clients of every process, for an application in this
/// environment; `None` if it lacks nothing.
#[must_use]
pub fn cable_problem(dir: &Path, environment: &str) -> Option<String> {
    let text = disk::read_source_or_empty(&dir.join(CABLE_FILE));
    let adapter = cable_adapter(&text, environment)?;
    SINGLE_PROCESS_ADAPTERS.contains(&adapter).then(|| {
        format!(
            "Action Cable: the adapter `{adapter}` of {CABLE_FILE} reaches the clients of one \
             process only: use `redis` or `solid_cable`, or serve with --processes 1"
        )
    })
}

/// Where Rails keeps the settings of Action Cable.
const CABLE_FILE: &str = "config/cable.yml";

/// Adapters that keep subscriptions in their process.
const SINGLE_PROCESS_ADAPTERS: [&str; 3] = ["async", "inline", "test"];

/// `adapter: NAME` below `environment:`.
fn cable_adapter<'t>(text: &'t str, environment: &str) -> Option<&'t str> {
    let mut lines = text.lines();
    lines.find(|line| {
        let name = line.strip_prefix(environment);
        name.is_some_and(|rest| rest.trim_start().starts_with(':'))
    })?;
    let mut own = lines.take_while(|line| line.starts_with([' ', '\t']) || line.trim().is_empty());
    let value = own.find_map(|line| line.trim().strip_prefix("adapter:"))?;
    Some(value.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn finds_frameworks_without_a_rackup_file() {
        let rows = [
            (
                "app.rb",
                "require 'sinatra'\n",
                Some("app.rb"),
                Some("Sinatra"),
            ),
            (
                "web.rb",
                "class Web < Roda\nend\n",
                Some("web.rb"),
                Some("Roda"),
            ),
            (
                "app.rb",
                "class API < Grape::API\nend\n",
                Some("app.rb"),
                Some("Grape"),
            ),
            (
                "app.rb",
                "class Shop < Cuba\nend\n",
                Some("app.rb"),
                Some("Cuba"),
            ),
            (
                "app.rb",
                "Cuba.define do\nend\n",
                Some("app.rb"),
                Some("Cuba"),
            ),
            (
                "config/environment.rb",
                "Rails.application.initialize!\n",
                Some("config/environment.rb"),
                Some("Rails"),
            ),
            (
                "config/app.rb",
                "class App < Hanami::App\nend\n",
                Some("config/app.rb"),
                Some("Hanami"),
            ),
            ("app.rb", "puts 1\n", None, None),
        ];
        for (file, text, entry, framework) in rows {
            let folder = TestDir::with_files(&[(file, text)]);
            let found = detect_common_file(folder.path()).map(|found| found.entry);
            assert_eq!(found.as_deref(), entry, "{text}");
            let named = entry.and_then(|entry| framework_of(folder.path(), entry));
            assert_eq!(named, framework, "{text}");
        }
    }

    #[test]
    fn says_when_action_cable_stays_in_one_process() {
        let text = "development:\n  adapter: async\n\nproduction:\n  url: x\n  adapter: redis\n";
        let folder = TestDir::with_files(&[(CABLE_FILE, text)]);
        let problem = cable_problem(folder.path(), "development").unwrap();
        assert!(problem.contains("`async`"), "{problem}");
        assert_eq!(cable_problem(folder.path(), "production"), None);
        assert_eq!(cable_problem(folder.path(), "staging"), None);
    }
}
