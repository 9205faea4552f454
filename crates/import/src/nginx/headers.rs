//! Fields of requests and responses, bodies, buffers.

use super::NginxTranslator;
use super::main_level::body_size;
use super::routes::{Answer, RoutePlace};
use super::scope::NginxScope;
use super::values;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

/// Fields that Penstock sets for servers.
const SENT: [&str; 7] = [
    "host",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "connection",
    "upgrade",
    "content-length",
];

/// Fields of framing and of the connection: no rule changes them.
const OF_CONNECTION: [&str; 6] = [
    "transfer-encoding",
    "keep-alive",
    "te",
    "trailer",
    "proxy-connection",
    "expect",
];

/// Statuses for which `add_header` counts without `always`.
const GOOD: [&str; 2] = ["2xx", "3xx"];

impl<'a> NginxTranslator<'a> {
    /// `proxy_set_header`.
    pub(super) fn request_headers(
        &mut self,
        scope: &NginxScope<'a>,
        place: &RoutePlace<'a>,
        route: &mut DraftTable,
    ) {
        for directive in scope.find_all("proxy_set_header").to_vec() {
            let (name, value) = (directive.arg(0), directive.arg(1));
            let lower = name.to_ascii_lowercase();
            let is_other =
                lower.starts_with("x-forwarded-") && !value.contains('$') && !value.is_empty();
            if SENT.contains(&lower.as_str()) && !is_other {
                let why = "`Host`, `X-Forwarded-*` and what an upgrade needs are sent";
                self.log.note(directive.id, Coverage::BuiltIn, why);
                continue;
            }
            if OF_CONNECTION.contains(&lower.as_str()) {
                let why = "fields of framing and of the connection are Penstock's own";
                self.log.note(directive.id, Coverage::BuiltIn, why);
                continue;
            }
            if value.is_empty() {
                push_field(route, "request_headers", name);
                self.log.translated(directive.id, "request_headers.remove");
                continue;
            }
            match values::template(value, &place.constants, place.rule.regex().is_some()) {
                Ok(text) if is_field(name) && is_value(&text) => {
                    route.keys.set_in(&["request_headers", "set", name], text);
                    self.log.translated(directive.id, "request_headers.set");
                }
                Ok(_) => {}
                // The field of a service that decides is copied by its rule.
                Err(_) if self.log.is_noted(directive.id) => {}
                Err(variable) => {
                    let why = format!("no placeholder stands for `{variable}`");
                    self.leave(directive.id, Coverage::ByHand, why, route);
                }
            }
        }
    }

    /// `proxy_hide_header` and the like.
    pub(super) fn hidden_headers(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        for prefix in ["proxy", "fastcgi", "uwsgi", "scgi"] {
            for directive in scope.find_all(&format!("{prefix}_hide_header")).to_vec() {
                if is_field(directive.arg(0)) {
                    push_field(route, "response_headers", directive.arg(0));
                    self.log.translated(directive.id, "response_headers.remove");
                }
            }
        }
    }

    /// `add_header` and `expires`.
    pub(super) fn response_headers(
        &mut self,
        scope: &NginxScope<'a>,
        place: &RoutePlace<'a>,
        route: &mut DraftTable,
        answer: Answer,
    ) {
        let (mut good, mut always) = (TomlTable::default(), TomlTable::default());
        let mut cache_control = self.expires(scope, answer, route);
        for directive in scope.find_all("add_header").to_vec() {
            let (name, value) = (directive.arg(0), directive.arg(1));
            let is_always = directive.arg(2) == "always";
            let text = values::template(value, &place.constants, place.rule.regex().is_some());
            let text = match text {
                Ok(text) if is_field(name) && is_value(&text) => text,
                Ok(_) => continue,
                Err(variable) => {
                    let why = format!("no placeholder stands for `{variable}`");
                    self.leave(directive.id, Coverage::ByHand, why, route);
                    continue;
                }
            };
            if text.is_empty() {
                self.log.note(
                    directive.id,
                    Coverage::NotNeeded,
                    "an empty field is not sent",
                );
                continue;
            }
            let is_cache_control = name.eq_ignore_ascii_case("cache-control");
            let joins_expires = match answer {
                Answer::Files => !text.contains('{'),
                Answer::Own | Answer::BackEnd => cache_control.is_some() && !is_always,
            };
            if is_cache_control && joins_expires {
                cache_control = Some(match cache_control {
                    Some(known) if known != text => format!("{known}, {text}"),
                    _ => text,
                });
                let key = match answer {
                    Answer::Files => "files.cache_control",
                    Answer::Own | Answer::BackEnd => "response_headers.set",
                };
                self.log.translated(directive.id, key);
                continue;
            }
            let lower = name.to_ascii_lowercase();
            let table = if is_always { &mut always } else { &mut good };
            let verb = if ["link", "set-cookie", "vary"].contains(&lower.as_str()) {
                "add"
            } else {
                "set"
            };
            if verb == "set" || !table.has(verb) {
                table.set_in(&[verb, name], text);
                self.log
                    .translated(directive.id, &format!("response_headers.{verb}"));
            } else {
                let why = "`response_headers` may be a list of tables";
                self.leave(directive.id, Coverage::ByHand, why, route);
            }
        }
        if let Some(text) = cache_control {
            match answer {
                Answer::Files => route.keys.set_in(&["files", "cache_control", "*"], text),
                _ => good.set_in(&["set", "Cache-Control"], text),
            }
        }
        write_response_headers(route, good, always);
    }

    /// The value of `Cache-Control` that `expires` makes.
    fn expires(
        &mut self,
        scope: &NginxScope<'a>,
        answer: Answer,
        route: &mut DraftTable,
    ) -> Option<String> {
        let directive = scope.find("expires")?;
        let last = directive.args.last().map_or("", String::as_str);
        let key = match answer {
            Answer::Files => "files.cache_control",
            _ => "response_headers.set",
        };
        let text = match last {
            "off" => None,
            "epoch" => Some("no-cache".to_owned()),
            "max" => Some("max-age=315360000".to_owned()),
            time if time.starts_with('-') => Some("no-cache".to_owned()),
            time if time.starts_with(['@', '$']) => {
                let why = "`files.cache_control` has a value for each pattern of names";
                self.leave(directive.id, Coverage::ByHand, why, route);
                return None;
            }
            time => units::seconds(time, "s").map(|seconds| format!("max-age={seconds}")),
        };
        self.log.translated(directive.id, key);
        text
    }

    /// `client_max_body_size` of a server or location.
    pub(super) fn body_limit(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        let Some(directive) = scope.find("client_max_body_size") else {
            return;
        };
        let Some(bytes) = units::bytes(directive.arg(0)) else {
            return;
        };
        let size = body_size(bytes);
        let common = self.draft.limits.keys.get("body_bytes");
        if common != Some(&TomlValue::Text(size.clone())) {
            route.keys.set("max_body_size", size);
            self.log.translated(directive.id, "max_body_size");
        }
    }

    /// Buffers of the proxy.
    pub(super) fn buffering(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        for prefix in ["proxy", "fastcgi", "uwsgi", "scgi"] {
            for (name, key) in [
                ("buffering", "response_buffering"),
                ("request_buffering", "request_buffering"),
            ] {
                let Some(directive) = scope.find(&format!("{prefix}_{name}")) else {
                    continue;
                };
                if directive.arg(0) == "off" {
                    route.keys.set(key, false);
                }
                self.log.translated(directive.id, key);
            }
        }
    }
}

/// Writes the tables of fields for good answers and for all.
fn write_response_headers(route: &mut DraftTable, mut good: TomlTable, always: TomlTable) {
    let removed = match route.keys.get("response_headers") {
        Some(TomlValue::Table(table)) => table.get("remove").cloned(),
        _ => None,
    };
    if good.is_empty() && always.is_empty() {
        return;
    }
    let mut all = always;
    if let Some(removed) = removed {
        all.set("remove", removed);
    }
    let value: TomlValue = match (good.is_empty(), all.is_empty()) {
        (true, _) => all.into(),
        (false, is_alone) => {
            good.set("status", GOOD.to_vec());
            if is_alone {
                good.into()
            } else {
                vec![all, good].into()
            }
        }
    };
    route.keys.set("response_headers", value);
}

/// Adds a field to `remove` of a key that may be a list of tables.
fn push_field(route: &mut DraftTable, key: &str, name: &str) {
    if let Some(TomlValue::List(tables)) = route.keys.get(key) {
        let mut tables = tables.clone();
        if let Some(TomlValue::Table(table)) = tables.first_mut()
            && !table.has("status")
        {
            table.push("remove", name);
        } else {
            let mut table = TomlTable::default();
            table.push("remove", name);
            tables.insert(0, table.into());
        }
        route.keys.set(key, TomlValue::List(tables));
        return;
    }
    if let Some(TomlValue::Table(table)) = route.keys.get(key)
        && table.has("status")
    {
        let mut removal = TomlTable::default();
        removal.push("remove", name);
        let both = vec![removal, table.clone()];
        route.keys.set(key, both);
        return;
    }
    route.keys.table_mut(key).push("remove", name);
}

/// Whether a text may be the name of a field that rules change.
pub(crate) fn is_field(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_!#$%&'*+.^`|~".contains(&byte);
    let own = SENT[4..].contains(&lower.as_str()) || OF_CONNECTION.contains(&lower.as_str());
    !name.is_empty() && name.bytes().all(is_token) && !own
}

/// Whether a text may be the value of a field.
pub(crate) fn is_value(text: &str) -> bool {
    text.chars().all(|c| !c.is_control())
}
