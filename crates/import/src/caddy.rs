//! Caddyfile: its grammar, and what its directives are here.
//!
//! Caddy sorts the directives of a site and runs them one after the other. `routes` does the same and
//! makes a route of each directive that answers, with the directives in front of it that have its
//! requests.

mod addresses;
mod global;
mod headers;
mod imports;
mod lexer;
mod logs;
mod matchers;
mod placeholders;
mod proxy;
mod rewrites;
mod routes;
mod rules;
mod sites;
mod syntax;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::answers::Product;
use crate::directives::{DirectiveId, DirectiveLog};
use crate::draft::{Draft, DraftTable};
use crate::include::IncludeReader;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::{ImportError, Translation};

use global::GlobalOptions;
use syntax::{CaddyDirective, CaddyParser};

/// Translates a file and all that it imports.
pub(crate) fn import(
    file: &Path,
    text: &str,
    reader: &dyn IncludeReader,
) -> Result<Translation, ImportError> {
    let mut log = DirectiveLog::new(Product::Caddy);
    let parsed = CaddyParser::new(reader, &mut log).parse(file, text)?;
    let mut translator = CaddyTranslator {
        log,
        reader,
        draft: Draft::default(),
        options: GlobalOptions::default(),
        upstreams: BTreeMap::new(),
        site_encodes: BTreeSet::new(),
        has_too_many_routes: false,
        work: 0,
    };
    translator.global_options(&parsed.global);
    translator.sites(&parsed.sites);
    if translator.has_too_many_routes {
        return Err(ImportError::too_many_routes(
            file,
            "too many directives in front of them",
        ));
    }
    for id in translator.log.ids() {
        if let Some(comment) = translator.log.note_from_table(id) {
            translator.draft.tail.push(comment);
        }
    }
    Ok(Translation::finish(file, translator.draft, translator.log))
}

/// Writes a draft from sites.
struct CaddyTranslator<'r> {
    log: DirectiveLog,
    reader: &'r dyn IncludeReader,
    draft: Draft,
    options: GlobalOptions,
    /// Names of upstreams by their tables.
    upstreams: BTreeMap<String, String>,
    /// Those `encode` that the site has, and no route.
    site_encodes: BTreeSet<DirectiveId>,
    has_too_many_routes: bool,
    /// Directives that were looked at for routes.
    work: usize,
}

impl CaddyTranslator<'_> {
    /// Comments for directives that nothing has translated, with those in their blocks.
    fn leave_rest(&mut self, directives: &[CaddyDirective], table: &mut DraftTable) {
        for directive in directives {
            if let Some(comment) = self.log.note_from_table(directive.id) {
                table.comment(comment);
            }
            self.leave_rest(directive.children(), table);
        }
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

    /// The name of an upstream with these keys, which is made where it is missing.
    fn upstream_named(&mut self, wanted: &str, keys: TomlTable) -> String {
        let shown = crate::toml_value::TomlValue::from(keys.clone()).to_string();
        if let Some(name) = self.upstreams.get(&shown) {
            return name.clone();
        }
        let name = self.draft.upstreams.free_name(wanted);
        self.draft.upstreams.table_mut(&name).keys = keys;
        self.upstreams.insert(shown, name.clone());
        name
    }
}
