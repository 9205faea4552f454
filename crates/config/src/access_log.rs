//! Reads `server.access_log` and `[access_logs.NAME]`.
//!
//! Called by `server` and `parse`.
//!
//! # Invariants
//! - A log has a place and a form that can be written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::conditions;
use crate::error::did_you_mean;
use crate::findings::Findings;
use crate::model::{
    AccessLog, LogField, LogFormat, LogTarget, SampleShare, StatusPattern, SyslogAddress,
};
use crate::section::{Keys as _, Section};
use crate::server::parse_log_target;
use crate::suggest::nearest_word;
use crate::values::{LOG_VALUES, LogTemplate, LogValue};

/// The forms that have a name.
const FORMATS: [&str; 5] = ["combined", "common", "json", "dev", "off"];

/// Where the system's syslog daemon listens.
const SYSLOG_SOCKET: &str = "/dev/log";

/// Reads `access_log` of the `[server]` table.
pub(crate) fn read_of_server(table: &Section<'_>, conditions: &[String]) -> Option<AccessLog> {
    if !table.has("access_log") {
        return None;
    }
    if table.is_table("access_log") {
        return read_table(&table.table("access_log")?, conditions);
    }
    let target = table.parse_text("access_log", |text| match text {
        "off" => Some(None),
        _ => parse_target(table.findings, text).map(Some),
    })?;
    target.value.map(AccessLog::new)
}

/// Reads every `[access_logs.NAME]` table.
pub(crate) fn read_named(top: &Section<'_>, conditions: &[String]) -> BTreeMap<String, AccessLog> {
    let tables = top.named_tables("access_logs");
    let logs = tables
        .into_iter()
        .filter_map(|(name, table)| Some((name.value, read_table(&table, conditions)?)));
    logs.collect()
}

/// A log; `None` also for one that is off.
fn read_table(table: &Section<'_>, known_conditions: &[String]) -> Option<AccessLog> {
    let format = read_format(table);
    let path = table.parse_text("path", |text| parse_target(table.findings, text));
    let mut format = format?;
    if !table.has("path") {
        table.report_missing("path");
    }
    if let Some(fields) = read_fields(table) {
        match format {
            LogFormat::Json => format = LogFormat::Fields(fields),
            _ => table.report_not_applicable("fields"),
        }
    }
    let mut log = AccessLog::new(path?.value);
    log.read_keys(table);
    log.format = format;
    log.conditions = conditions::read(table, "match", known_conditions);
    let statuses = table.list("status", StatusPattern::parse);
    log.statuses = statuses
        .unwrap_or_default()
        .into_iter()
        .map(|it| it.value)
        .collect();
    table.check_not_empty("status");
    if let Some(share) = table.get::<f64>("sample") {
        log.sample = SampleShare::from_fraction(share);
    }
    Some(log)
}

/// The form of a line; `None` for no log at all.
fn read_format(table: &Section<'_>) -> Option<LogFormat> {
    let Some(text) = table.text("format") else {
        return Some(LogFormat::default());
    };
    match text.value {
        "off" => return None,
        "combined" => return Some(LogFormat::Combined),
        "common" => return Some(LogFormat::Common),
        "json" => return Some(LogFormat::Json),
        "dev" => return Some(LogFormat::Dev),
        _ => {}
    }
    if !text.value.contains('{') {
        let guess = did_you_mean(nearest_word(text.value, FORMATS));
        let expected = format!("{}{guess}", crate::options::expected::ACCESS_LOG_FORMAT);
        table.report_invalid_item("format", text.value, text.offset, &expected);
        return Some(LogFormat::default());
    }
    let has_break = text.value.contains(['\n', '\r']);
    match LogTemplate::parse(text.value) {
        Ok(_) if has_break => {
            let problem = "`format` has a line break: a line has its end by itself";
            table.report(text.offset, problem);
            Some(LogFormat::default())
        }
        Ok(template) => Some(LogFormat::Template(template)),
        Err(word) => {
            let expected = format!("one of these in braces: {LOG_VALUES}");
            table.report_invalid_item("format", &word, text.offset, &expected);
            Some(LogFormat::default())
        }
    }
}

fn read_fields(table: &Section<'_>) -> Option<Vec<LogField>> {
    let fields = table.list("fields", |name| {
        let value = LogValue::parse(name)?;
        Some(LogField {
            name: name.to_owned(),
            value,
        })
    })?;
    table.check_not_empty("fields");
    Some(fields.into_iter().map(|field| field.value).collect())
}

/// A place of an access log: that of any log, or a daemon.
fn parse_target(findings: &Findings<'_>, text: &str) -> Option<LogTarget> {
    let syslog = |address| Some(LogTarget::Syslog(address));
    match text {
        "journald" => Some(LogTarget::Journald),
        "syslog" => syslog(SyslogAddress::Unix(PathBuf::from(SYSLOG_SOCKET))),
        _ => match text.strip_prefix("syslog:") {
            None => parse_log_target(findings, text),
            Some(address) => match address.strip_prefix("unix:") {
                Some(path) => {
                    let is_usable = Path::new(path).is_absolute() && !path.contains('\0');
                    is_usable.then(|| LogTarget::Syslog(SyslogAddress::Unix(path.into())))
                }
                None => address
                    .parse()
                    .ok()
                    .map(SyslogAddress::Udp)
                    .and_then(syslog),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::TestDir;

    use super::*;

    fn parse(lines: &str) -> Result<crate::Config, String> {
        let folder = TestDir::with_sample_site();
        let text = format!("[apps.guestbook]\nkind = \"wsgi\"\n{lines}\n");
        let parsed = crate::parse(&text, &folder.path().join("penstock.toml"));
        parsed.map_err(|errors| errors.to_string())
    }

    fn log(line: &str) -> AccessLog {
        let config = parse(&format!(
            "[conditions.office]\nclient = [\"10.0.0.0/8\"]\n[access_logs.a]\n{line}"
        ));
        config.unwrap().access_logs.remove("a").unwrap()
    }

    #[test]
    fn a_log_has_a_place_a_form_and_a_choice_of_requests() {
        let read = log(
            "path = \"syslog\"\nformat = \"{client} {status}\"\nsample = 0.25\n\
            status = [\"404\", \"5xx\"]\nmin_time = \"1s\"\nmatch = [\"!office\"]",
        );
        assert_eq!(
            read.path,
            LogTarget::Syslog(SyslogAddress::Unix("/dev/log".into()))
        );
        assert!(matches!(&read.format, LogFormat::Template(it) if it.parts().len() == 3));
        let is_logged = |status| read.statuses.iter().any(|it| it.matches(status));
        assert_eq!(
            [404, 400, 500, 599, 200].map(is_logged),
            [true, false, true, true, false]
        );
        assert_eq!(read.min_time.as_secs(), 1);
        assert!(read.sample.includes(249_999) && !read.sample.includes(250_000));
        assert!(read.conditions.named[0].is_negated);
        for (path, expected) in [
            ("journald", LogTarget::Journald),
            (
                "syslog:unix:/run/x",
                LogTarget::Syslog(SyslogAddress::Unix("/run/x".into())),
            ),
            (
                "syslog:[::1]:514",
                LogTarget::Syslog(SyslogAddress::Udp("[::1]:514".parse().unwrap())),
            ),
            ("stdout", LogTarget::Stdout),
        ] {
            assert_eq!(log(&format!("path = \"{path}\"")).path, expected);
        }
        let fields = log("path = \"x\"\nformat = \"json\"\nfields = [\"time\", \"header.a\"]");
        let LogFormat::Fields(fields) = fields.format else {
            panic!("fields");
        };
        assert_eq!(fields[1].name, "header.a");
    }

    #[test]
    fn mistakes_are_named() {
        for (line, problem) in [
            ("format = \"json\"", "`path` is missing in [access_logs.a]"),
            ("path = \"x\"\nformat = \"jsn\"", "did you mean `json`?"),
            (
                "path = \"x\"\nformat = \"{statsu}\"",
                "`format` cannot be \"{statsu}\"",
            ),
            ("path = \"x\"\nformat = \"{uri}\\n\"", "has a line break"),
            (
                "path = \"x\"\nfields = [\"time\"]",
                "`fields` is only for `format = \"json\"`",
            ),
            (
                "path = \"x\"\nformat = \"json\"\nfields = [\"re.1\"]",
                "`fields` cannot be \"re.1\"",
            ),
            (
                "path = \"x\"\nstatus = [\"6xx\"]",
                "`status` cannot be \"6xx\"",
            ),
            ("path = \"x\"\nstatus = []", "`status`"),
            (
                "path = \"x\"\nmatch = [\"home\"]",
                "there is no condition `home`",
            ),
            (
                "path = \"syslog:localhost\"",
                "`path` cannot be \"syslog:localhost\"",
            ),
            ("path = \"x\"\nsample = 2", "`sample` cannot be 2"),
        ] {
            let errors = parse(&format!("[access_logs.a]\n{line}")).unwrap_err();
            assert!(errors.contains(problem), "{line}: {errors}");
        }
        let errors =
            parse("[[sites]]\naccess_logs = [\"b\"]\n[[sites.routes]]\napp = \"guestbook\"")
                .unwrap_err();
        assert!(errors.contains("there is no access log `b`"), "{errors}");
    }
}
