//! `log` of a site: an access log.

use super::CaddyTranslator;
use super::placeholders::environment;
use super::syntax::CaddyDirective;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;

impl CaddyTranslator<'_> {
    /// Writes `[access_logs.NAME]` for a `log`, and names it in the site.
    pub(super) fn site_log(
        &mut self,
        directive: &CaddyDirective,
        host: &str,
        site: &mut DraftTable,
    ) {
        let mut log = TomlTable::with("path", "stderr");
        log.set("format", "json");
        for inner in directive.children() {
            match (inner.name.as_str(), inner.arg(0)) {
                ("output", "file") => log.set("path", environment(inner.arg(1))),
                ("output", "stdout" | "stderr") => log.set("path", inner.arg(0)),
                ("output", "discard") => {
                    self.log
                        .translated(inner.id, "access_logs = [] of the site");
                    self.log
                        .translated(directive.id, "access_logs = [] of the site");
                    site.keys.set("access_logs", Vec::<String>::new());
                    return;
                }
                ("format", "json") => {}
                ("format", "console") => log.set("format", "combined"),
                _ => continue,
            }
            self.log.translated(inner.id, "access_logs.NAME");
        }
        let known = self.draft.access_logs.iter();
        let same = known
            .filter(|(_, it)| it.keys == log)
            .map(|(name, _)| name.to_owned())
            .next();
        let wanted = if directive.arg(0).is_empty() {
            host
        } else {
            directive.arg(0)
        };
        let name = same.unwrap_or_else(|| {
            let name = self.draft.access_logs.free_name(wanted);
            self.draft.access_logs.table_mut(&name).keys = log;
            name
        });
        site.keys.push("access_logs", name);
        self.log
            .note(directive.id, Coverage::Translated, "`[access_logs.NAME]`");
        self.leave_rest(directive.children(), site);
    }
}
