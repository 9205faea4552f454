//! The text of a draft.

use std::fmt::Write as _;

use crate::draft::{Draft, DraftTable, NamedTables};
use crate::mend::mend;
use crate::reachable::comment_unreachable;
use crate::toml_value::quote_key;

impl Draft {
    /// The text of `penstock.toml`.
    pub(crate) fn into_toml(mut self) -> String {
        for site in &mut self.sites {
            comment_unreachable(site);
        }
        mend(&mut self);
        self.to_toml()
    }

    /// The text as it is, with nothing mended.
    pub(crate) fn to_toml(&self) -> String {
        let mut text = String::new();
        write_comments(&mut text, &self.head);
        let single = [
            ("server", &self.server),
            ("limits", &self.limits),
            ("tls", &self.tls),
            ("acme", &self.acme),
            ("hub", &self.hub),
        ];
        for (name, table) in single {
            write_table(&mut text, &format!("[{name}]"), table, false);
        }
        let named = [
            ("access_logs", &self.access_logs),
            ("caches", &self.caches),
            ("conditions", &self.conditions),
            ("apps", &self.apps),
            ("jobs", &self.jobs),
            ("upstreams", &self.upstreams),
        ];
        for (name, tables) in named {
            write_named(&mut text, name, tables);
        }
        for site in &self.sites {
            write_table(&mut text, "[[sites]]", &site.table, true);
            for route in &site.routes {
                write_table(&mut text, "[[sites.routes]]", route, !route.keys.is_empty());
            }
        }
        for table in &self.tcp {
            write_table(&mut text, "[[tcp]]", table, !table.keys.is_empty());
        }
        if !self.tail.is_empty() {
            text.push('\n');
            write_comments(&mut text, &self.tail);
        }
        text
    }
}

fn write_named(text: &mut String, name: &str, tables: &NamedTables) {
    for (own, table) in tables.iter() {
        write_table(text, &format!("[{name}.{}]", quote_key(own)), table, true);
    }
}

/// Writes a table. One without keys is written if it `is_needed`; its comments are in any case.
fn write_table(text: &mut String, heading: &str, table: &DraftTable, is_needed: bool) {
    let is_written = is_needed || !table.keys.is_empty();
    if !is_written && table.comments.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    write_comments(text, &table.comments);
    if !is_written {
        return;
    }
    let _ = writeln!(text, "{heading}");
    // Addresses are what a reader looks for first.
    let is_first = |key: &str| key == "listen" || key == "hosts" || key == "path";
    let (first, rest): (Vec<_>, Vec<_>) = table.keys.iter().partition(|(key, _)| is_first(key));
    for (key, value) in first.into_iter().chain(rest) {
        let _ = writeln!(text, "{} = {value}", quote_key(key));
    }
}

fn write_comments(text: &mut String, comments: &[String]) {
    for comment in comments {
        let plain = comment
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c });
        let plain: String = plain.collect();
        let _ = writeln!(text, "# {}", plain.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftSite;

    #[test]
    fn writes_tables_with_their_comments() {
        let mut draft = Draft::default();
        draft.listen(":80", &[]);
        draft.listen(":443", &["tls"]);
        draft.listen(":80", &[]);
        draft
            .limits
            .comment("nginx.conf:3 `foo\nbar`: by hand: why");
        draft
            .upstreams
            .table_mut("a b")
            .keys
            .push("servers", "127.0.0.1:1");
        let mut site = DraftSite::default();
        site.routes.push(DraftTable::default());
        site.routes[0].keys.set("upstream", "a b");
        draft.sites.push(site);
        let expected = "[server]\nlisten = [\":80\", { address = \":443\", tls = true }]\n\n\
            # nginx.conf:3 `foo bar`: by hand: why\n\n\
            [upstreams.\"a b\"]\nservers = [\"127.0.0.1:1\"]\n\n\
            [[sites]]\n\n[[sites.routes]]\nupstream = \"a b\"\n";
        assert_eq!(draft.to_toml(), expected);
    }
}
