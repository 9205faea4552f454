//! haproxy.cfg: its sections, and what their lines are here.
//!
//! Each backend becomes an upstream (`backends`), all frontends of HTTP one site (`frontends`,
//! `rules`), and each of TCP a listener of its own.

mod backends;
mod conditions;
mod frontends;
mod global;
mod rules;
mod servers;
mod syntax;
mod tcp;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::path::Path;

use crate::answers::Product;
use crate::directives::{DirectiveId, DirectiveLog};
use crate::draft::{Draft, DraftTable};
use crate::report::Coverage;
use crate::{ImportError, Translation, limits};

use conditions::AclLines;
use syntax::{HaproxyLine, HaproxySection};

/// Translates a file.
pub(crate) fn import(file: &Path, text: &str) -> Result<Translation, ImportError> {
    let mut log = DirectiveLog::new(Product::Haproxy);
    let sections = syntax::parse(file, text, &mut log)?;
    let mut translator = HaproxyTranslator {
        log,
        draft: Draft::default(),
        backends: BTreeMap::new(),
        has_too_many_routes: false,
        work: 0,
    };
    translator.translate(&sections);
    if translator.has_too_many_routes {
        return Err(ImportError::too_many_routes(
            file,
            "too many rules for them",
        ));
    }
    for id in translator.log.ids() {
        if let Some(comment) = translator.log.note_from_table(id) {
            translator.draft.tail.push(comment);
        }
    }
    Ok(Translation::finish(file, translator.draft, translator.log))
}

/// Writes a draft from sections.
struct HaproxyTranslator<'a> {
    log: DirectiveLog,
    draft: Draft,
    /// Backends that are upstreams, by name.
    backends: BTreeMap<String, ProxyLines<'a>>,
    has_too_many_routes: bool,
    work: usize,
}

/// A section that serves, with the lines of its `defaults`.
#[derive(Debug, Clone)]
struct ProxyLines<'a> {
    section: &'a HaproxySection,
    defaults: &'a [HaproxyLine],
}

impl<'a> ProxyLines<'a> {
    /// Its own lines and those of its defaults that begin with these words, in the order in which
    /// they count.
    fn find_all(&self, words: &[&str]) -> Vec<&'a HaproxyLine> {
        let all = self.defaults.iter().chain(&self.section.lines);
        all.filter(|line| line.begins(words)).collect()
    }

    /// The line that counts.
    fn find(&self, words: &[&str]) -> Option<&'a HaproxyLine> {
        let own = self
            .section
            .lines
            .iter()
            .rev()
            .find(|line| line.begins(words));
        own.or_else(|| self.defaults.iter().rev().find(|line| line.begins(words)))
    }

    /// The line of a time-out, in its old spelling too, with its time.
    fn timeout(&self, name: &str) -> Option<(&'a HaproxyLine, String)> {
        let old = match name {
            "connect" => "contimeout",
            "client" => "clitimeout",
            "server" => "srvtimeout",
            _ => "",
        };
        let line = self.find(&["timeout", name]);
        let line = line.or_else(|| self.find(&[old]).filter(|_| !old.is_empty()))?;
        let time = values::time(line.words.last().map_or("", String::as_str))?;
        Some((line, time))
    }

    fn is_tcp(&self) -> bool {
        self.find(&["mode"])
            .is_none_or(|line| line.word(1) == "tcp")
    }

    fn acls(&self) -> AclLines<'a> {
        let mut acls = AclLines::new();
        for line in self
            .find_all(&["acl"])
            .into_iter()
            .filter(|line| line.words.len() > 2)
        {
            acls.entry(line.word(1)).or_default().push(line);
        }
        acls
    }
}

impl<'a> HaproxyTranslator<'a> {
    fn translate(&mut self, sections: &'a [HaproxySection]) {
        let mut proxies: Vec<ProxyLines<'a>> = Vec::new();
        let mut last_defaults: &'a [HaproxyLine] = &[];
        for section in sections {
            match section.kind.as_str() {
                "defaults" => {
                    last_defaults = &section.lines;
                    let why = "its lines stand where they count";
                    self.log.note(section.id, Coverage::NotNeeded, why);
                }
                "global" => self.global(section),
                "frontend" | "backend" | "listen" => {
                    let named = section.from.as_ref().and_then(|name| {
                        let mut all = sections.iter().filter(|it| it.kind == "defaults");
                        all.find(|it| it.name == *name)
                    });
                    let defaults = named.map_or(last_defaults, |it| &it.lines);
                    proxies.push(ProxyLines { section, defaults });
                }
                "userlist" => self.user_list(section),
                _ => {}
            }
        }
        for proxy in proxies.iter().filter(|it| it.section.kind != "frontend") {
            self.backend(proxy);
        }
        let (tcp, http): (Vec<_>, Vec<_>) = proxies
            .iter()
            .filter(|it| it.section.kind != "backend")
            .partition(|it| it.is_tcp());
        self.sites(&http);
        for proxy in tcp {
            self.tcp_listener(proxy);
        }
        self.leave_defaults(sections);
    }

    /// Lines of `defaults` and of other sections that nothing has translated.
    fn leave_defaults(&mut self, sections: &'a [HaproxySection]) {
        let mut table = std::mem::take(&mut self.draft.server);
        for section in sections {
            if let Some(comment) = self.log.note_from_table(section.id) {
                table.comment(comment);
            }
            for line in section.lines.iter().filter(|line| line.begins(&["mode"])) {
                if !self.log.is_noted(line.id) {
                    let why = "each section has a mode of its own";
                    self.log.note(line.id, Coverage::NotNeeded, why);
                }
            }
            self.leave_lines(&section.lines, &mut table);
        }
        self.draft.server = table;
    }

    /// Comments for lines without an outcome.
    fn leave_lines(&mut self, lines: &[HaproxyLine], table: &mut DraftTable) {
        for line in lines {
            if line.is_negated && !self.log.is_noted(line.id) {
                self.log
                    .note(line.id, Coverage::NotNeeded, "it takes something back");
                continue;
            }
            if let Some(comment) = self.log.note_from_table(line.id) {
                table.comment(comment);
            }
        }
    }

    fn leave(
        &mut self,
        id: DirectiveId,
        coverage: Coverage,
        why: impl Into<String>,
        table: &mut DraftTable,
    ) {
        let comment = self.log.leave(id, coverage, why);
        table.comment(comment);
    }

    /// Counts work; whether there was too much.
    fn is_full(&mut self, work: usize) -> bool {
        self.work += work;
        self.has_too_many_routes |=
            self.work > limits::MAX_WORK || self.draft.route_count() > limits::MAX_ROUTES;
        self.has_too_many_routes
    }
}
