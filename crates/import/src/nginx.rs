//! nginx.conf: its grammar, and what its directives are here.
//!
//! `syntax` reads directives, `servers` makes sites of `server` blocks, `locations` orders their
//! routes, and the other files translate groups of directives.
//!
//! # Invariants
//! - Routes are written in the order in which nginx looks for a location.
//! - A directive that a file here uses is noted there; each block is searched for the rest at its
//!   end (`leave_rest`).

mod access;
mod caches;
mod common;
mod conditions;
mod content;
mod errors;
mod files;
mod headers;
mod lexer;
mod locations;
mod main_level;
mod rewrites;
mod routes;
mod scope;
mod servers;
mod streams;
mod syntax;
#[cfg(test)]
mod tests;
mod upstream_settings;
mod upstreams;
mod values;

pub(crate) use headers::{is_field, is_value};
pub(crate) use upstreams::with_port;
pub(crate) use values::escape;

use std::collections::BTreeMap;
use std::path::Path;

use crate::answers::Product;
use crate::directives::{DirectiveId, DirectiveLog};
use crate::draft::{Draft, DraftTable};
use crate::include::IncludeReader;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::{ImportError, Translation};

use scope::NginxScope;
use syntax::{NginxDirective, NginxParser};

/// Translates a file and all that it includes.
pub(crate) fn import(
    file: &Path,
    text: &str,
    reader: &dyn IncludeReader,
) -> Result<Translation, ImportError> {
    let mut log = DirectiveLog::new(Product::Nginx);
    let directives = NginxParser::new(file, reader, &mut log).parse(file, text)?;
    let mut translator = NginxTranslator::new(log);
    translator.translate(&directives);
    if translator.has_too_many_routes {
        return Err(ImportError::too_many_routes(
            file,
            "too many directives that routes inherit",
        ));
    }
    Ok(Translation::finish(file, translator.draft, translator.log))
}

/// A zone of `limit_req_zone` or `limit_conn_zone`.
#[derive(Debug)]
struct LimitZone {
    id: DirectiveId,
    key: String,
    rate: String,
}

/// Writes a draft from directives.
struct NginxTranslator<'a> {
    log: DirectiveLog,
    draft: Draft,
    /// By the name of the variable, without the dollar sign.
    maps: BTreeMap<String, &'a NginxDirective>,
    zones: BTreeMap<String, LimitZone>,
    upstream_blocks: BTreeMap<String, &'a NginxDirective>,
    /// By the base of each upstream that is written: its settings, and its name.
    variants: BTreeMap<String, Vec<(TomlTable, String)>>,
    /// Paths of requests that are not logged.
    unlogged: Vec<String>,
    has_too_many_routes: bool,
}

impl<'a> NginxTranslator<'a> {
    fn new(log: DirectiveLog) -> Self {
        Self {
            log,
            draft: Draft::default(),
            maps: BTreeMap::new(),
            zones: BTreeMap::new(),
            upstream_blocks: BTreeMap::new(),
            variants: BTreeMap::new(),
            unlogged: Vec::new(),
            has_too_many_routes: false,
        }
    }

    fn translate(&mut self, directives: &'a [NginxDirective]) {
        let has_http = directives
            .iter()
            .any(|it| it.name == "http" && it.block.is_some());
        self.main_level(directives, has_http);
        let blocks: Vec<&'a [NginxDirective]> = match has_http {
            true => {
                let blocks = directives.iter().filter(|it| it.name == "http");
                blocks.map(NginxDirective::children).collect()
            }
            false => vec![directives],
        };
        for block in blocks {
            self.http_level(block);
        }
        for stream in directives.iter().filter(|it| it.name == "stream") {
            self.stream_level(stream.children());
        }
        self.finish_upstreams();
        self.finish_access_log();
        for id in self.log.ids() {
            if let Some(comment) = self.log.note_from_table(id) {
                self.draft.tail.push(comment);
            }
        }
    }

    /// Comments for directives of a block that nothing has translated.
    fn leave_rest(&mut self, directives: &[NginxDirective], table: &mut DraftTable) {
        for directive in directives {
            if let Some(comment) = self.log.note_from_table(directive.id) {
                table.comment(comment);
            }
            // What stands in a block without a translation has none either.
            for inner in directive.children() {
                if !self.is_own_block(&directive.name) && !self.log.is_noted(inner.id) {
                    self.leave_rest(std::slice::from_ref(inner), table);
                }
            }
        }
    }

    /// Blocks whose directives are visited by themselves.
    fn is_own_block(&self, name: &str) -> bool {
        ["http", "server", "location", "upstream", "stream", "events"].contains(&name)
    }

    /// Notes an outcome that a person has to know, with a comment in a table.
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
}
