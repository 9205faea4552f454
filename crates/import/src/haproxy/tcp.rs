//! Proxies in TCP mode: `[[tcp]]`.

use super::frontends::bind_address;
use super::{HaproxyTranslator, ProxyLines, conditions};
use crate::draft::{DraftTable, as_name};
use crate::report::Coverage;
use crate::toml_value::TomlTable;

impl<'a> HaproxyTranslator<'a> {
    /// Writes a listener for each address of a proxy.
    pub(super) fn tcp_listener(&mut self, proxy: &ProxyLines<'a>) {
        let mut table = DraftTable::default();
        let default = proxy.find(&["default_backend"]);
        let mut upstream = default.map(|line| line.word(1).to_owned());
        if upstream.is_none() && self.backends.contains_key(&proxy.section.name) {
            upstream = Some(proxy.section.name.clone());
        }
        if let Some(line) = default {
            self.log.translated(line.id, "tcp.upstream");
        }
        let mut names = TomlTable::default();
        let acls = proxy.acls();
        for line in proxy.find_all(&["use_backend"]) {
            let backend = as_name(line.word(1));
            let cases = conditions::cases(line.rest(2), &acls);
            let hosts: Vec<String> = cases
                .iter()
                .flatten()
                .flat_map(|case| case.sni.clone())
                .collect();
            if hosts.is_empty() || !self.draft.upstreams.has(&backend) {
                let why = "`[[tcp]]` has one upstream, or upstreams by `sni`";
                self.leave(line.id, Coverage::ByHand, why, &mut table);
                continue;
            }
            for host in hosts {
                names.set(&host, backend.as_str());
            }
            self.log.translated(line.id, "tcp.sni");
            for line in acls.values().flatten() {
                self.log.translated(line.id, "tcp.sni");
            }
        }
        let upstream = upstream
            .map(|name| as_name(&name))
            .filter(|name| self.draft.upstreams.has(name));
        self.log.translated(proxy.section.id, "[[tcp]]");
        self.common_settings(proxy);
        let binds = proxy.find_all(&["bind"]);
        let mut listeners = Vec::new();
        for line in binds {
            let Some((address, _)) = bind_address(line.word(1)) else {
                let why = "`tcp.listen` is one address with a port";
                self.leave(line.id, Coverage::ByHand, why, &mut table);
                continue;
            };
            let has = |word: &str| line.words.iter().any(|it| it == word);
            let mut listener = DraftTable::default();
            listener.keys.set("listen", address);
            if has("accept-proxy") {
                listener.keys.set("proxy_protocol", true);
            }
            let certificate = line
                .words
                .iter()
                .position(|it| it == "crt")
                .and_then(|at| line.words.get(at + 1));
            if let (true, Some(file)) = (has("ssl"), certificate) {
                listener.keys.set_in(&["tls", "certificate"], file.as_str());
            }
            self.log.translated(line.id, "tcp.listen");
            listeners.push(listener);
        }
        self.leave_lines(&proxy.section.lines, &mut table);
        if upstream.is_none() && names.is_empty() {
            table.comment("no upstream is known for this listener");
            self.draft.tcp.push(table);
            return;
        }
        for mut listener in listeners {
            if let Some(name) = &upstream {
                listener.keys.set("upstream", name.as_str());
            }
            if !names.is_empty() {
                listener.keys.set("sni", names.clone());
            }
            listener.comments.append(&mut table.comments);
            self.draft.tcp.push(listener);
        }
        if !table.comments.is_empty() {
            self.draft.tcp.push(table);
        }
    }
}
