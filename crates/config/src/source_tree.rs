//! One tree of the tables of all files, with the variables in its texts replaced.
//!
//! Made by `parse` from `source_files`, and read by the readers of each table.
//!
//! # Invariants
//! - Offsets in the tree are those of all texts together, so that each value has its own place.
//! - Values are replaced in the parsed tree: no value becomes a key, a table or another value.
//! - No key has two values: tables of names and lists are put together, and what stands in two
//!   files is reported.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::findings::{Findings, LocatedValue};
use crate::options::{self, OptionKind};
use crate::source_files::SourceFiles;
use crate::variables::Variables;

/// The tree of all files. What is wrong is reported.
pub(crate) fn build<'t>(files: &'t SourceFiles, findings: &Findings<'_>) -> DeTable<'t> {
    let mut tree = DeTable::new();
    for (index, text) in files.tables().enumerate() {
        let builder = TreeBuilder {
            start: text.offset,
            variables: &files.variables,
            findings,
        };
        // Their syntax is checked: a file with mistakes is not read any further.
        let (root, _) = DeTable::parse_recoverable(text.value);
        let mut table = builder.place_table(root.into_inner());
        if index > 0 {
            remove_server(&mut table, findings);
        }
        merge(&mut tree, table, findings);
    }
    tree
}

/// One text, whose offsets and variables are put right.
struct TreeBuilder<'b, 'f> {
    start: usize,
    variables: &'b Variables,
    findings: &'b Findings<'f>,
}

impl TreeBuilder<'_, '_> {
    fn place_table<'t>(&self, table: DeTable<'t>) -> DeTable<'t> {
        let items = table.into_iter();
        items
            .map(|(key, value)| (self.place(key, |key| key), self.place_value(value)))
            .collect()
    }

    fn place_value<'t>(&self, value: Spanned<DeValue<'t>>) -> Spanned<DeValue<'t>> {
        let at = self.start + value.span().start;
        self.place(value, |value| match value {
            DeValue::Table(table) => DeValue::Table(self.place_table(table)),
            DeValue::Array(items) => {
                let items = items.into_iter().map(|item| self.place_value(item));
                DeValue::Array(items.collect())
            }
            DeValue::String(text) => DeValue::String(self.expand(text, at)),
            other => other,
        })
    }

    fn place<T, U>(&self, value: Spanned<T>, change: impl FnOnce(T) -> U) -> Spanned<U> {
        let span = value.span();
        let span = self.start + span.start..self.start + span.end;
        Spanned::new(span, change(value.into_inner()))
    }

    fn expand<'t>(&self, text: Cow<'t, str>, at: usize) -> Cow<'t, str> {
        match self.variables.expand(&text) {
            Ok(Cow::Borrowed(_)) => text,
            Ok(Cow::Owned(value)) => {
                self.findings.mark_expanded(at);
                Cow::Owned(value)
            }
            Err(error) => {
                let text = LocatedValue::new(&*text, at);
                let at = self.findings.offset_inside(&text, error.offset);
                self.findings.add_problem(at, error.problem);
                Cow::Borrowed("")
            }
        }
    }
}

/// Takes the `[server]` out of an included file, where it says what else is included.
fn remove_server(table: &mut DeTable<'_>, findings: &Findings<'_>) {
    let Some(server) = table.remove("server") else {
        return;
    };
    let Some(server) = server.get_ref().as_table() else {
        let problem = "`server` must be a table";
        return findings.add_problem(server.span().start, problem);
    };
    for (key, value) in server {
        let name = key.get_ref();
        if name != "include" {
            let problem = format!(
                "`{name}` of [server] stands in the main file: an included file has nothing but \
                 `include` there"
            );
            findings.add_problem(key.span().start, problem);
        } else if !value
            .get_ref()
            .as_array()
            .is_some_and(|items| items.iter().all(is_text))
        {
            findings.add_problem(value.span().start, "`include` must be a list of paths");
        }
    }
}

fn is_text(value: &Spanned<DeValue<'_>>) -> bool {
    value.get_ref().is_str()
}

/// Adds the tables of another file.
fn merge<'t>(tree: &mut DeTable<'t>, table: DeTable<'t>, findings: &Findings<'_>) {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let earlier = tree.get_key_value(name).map(|(key, _)| key.span().start);
        let (Some(earlier), Some(present)) = (earlier, tree.get_mut(name)) else {
            tree.insert(key, value);
            continue;
        };
        let kind = options::find_option("", name).map(|option| option.kind);
        let at = key.span().start;
        match (kind, present.get_mut(), value.into_inner()) {
            (Some(OptionKind::Tables(_)), DeValue::Array(items), DeValue::Array(more)) => {
                more.into_iter().for_each(|item| items.push(item));
            }
            (Some(OptionKind::NamedTables(_)), DeValue::Table(named), DeValue::Table(more)) => {
                merge_named(name, named, more, findings);
            }
            _ => report_twice(&format!("`{name}`"), at, earlier, findings),
        }
    }
}

fn merge_named<'t>(key: &str, named: &mut DeTable<'t>, more: DeTable<'t>, findings: &Findings<'_>) {
    for (name, value) in more {
        if let Some((earlier, _)) = named.get_key_value(name.get_ref().as_ref()) {
            let shown = format!("[{key}.{}]", name.get_ref());
            report_twice(&shown, name.span().start, earlier.span().start, findings);
            continue;
        }
        named.insert(name, value);
    }
}

fn report_twice(name: &str, at: usize, earlier: usize, findings: &Findings<'_>) {
    let place = findings.place_suffix(earlier, at);
    findings.add_problem(at, format!("{name} stands there already:{place}"));
}
