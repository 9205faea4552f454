//! The context of a measurement: the machine, the time and the command, as reports show them.
//!
//! `run`, `sweep` and `compare` call [`report_with_context`] at their end. Saved reports are
//! shared, so values of header fields on the command line, which may be passwords, are omitted.

#![allow(
    clippy::disallowed_methods,
    reason = "/proc is memory, and is read after the measurement"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::{FORMAT_VERSION, Machine, MeasurementContext, Report, ReportResult};

/// Builds the report of a result measured by this command since `started`.
#[must_use]
pub(crate) fn report_with_context(
    result: ReportResult,
    started: SystemTime,
    interrupted: bool,
) -> Report {
    let since_epoch = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    Report {
        format: FORMAT_VERSION,
        context: MeasurementContext {
            started: since_epoch.as_secs(),
            tool: concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned(),
            command: mask_command_line(
                std::env::args_os()
                    .skip(1)
                    .map(|word| word.to_string_lossy().into_owned()),
            ),
            machine: machine(),
            interrupted,
        },
        result,
    }
}

/// The arguments of a command line without the values of header fields that may be secret.
fn mask_command_line(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut masked = Vec::new();
    let (mut is_value, mut are_options) = (false, true);
    for word in words {
        let (option, value) = match split_header_option(&word) {
            _ if std::mem::take(&mut is_value) => ("", word.as_str()),
            Some(found) if are_options => found,
            _ => {
                are_options &= word != "--";
                masked.push(word);
                continue;
            }
        };
        is_value = option == word;
        masked.push(match is_value {
            true => word,
            false => format!("{option}{}", mask_header_field(value)),
        });
    }
    masked
}

/// Splits an argument that sets a header field; its value is empty if it is the next argument.
fn split_header_option(word: &str) -> Option<(&str, &str)> {
    let long = word.strip_prefix("--header");
    let long = long.or_else(|| word.strip_prefix("--publish-header"));
    let value = match long {
        Some("") => "",
        Some(rest) => rest.strip_prefix('=')?,
        None => {
            // -q takes no value: an -H may follow it directly.
            let rest = word.strip_prefix('-')?.trim_start_matches('q');
            let rest = rest.strip_prefix('H')?;
            rest.strip_prefix('=').unwrap_or(rest)
        }
    };
    word.split_at_checked(word.len() - value.len())
}

/// `NAME: VALUE` if the value is known to be harmless, else `NAME: ...`.
fn mask_header_field(field: &str) -> String {
    let Some((name, _)) = field.split_once(':') else {
        return "...".to_owned();
    };
    let lower = name.trim().to_ascii_lowercase();
    let is_harmless = UNMASKED_FIELDS.contains(&&*lower)
        || lower.starts_with("accept")
        || lower.starts_with("x-forwarded-");
    match is_harmless {
        true => field.to_owned(),
        false => format!("{name}: ..."),
    }
}

/// Fields that describe the response and identify no client.
const UNMASKED_FIELDS: [&str; 5] = [
    "user-agent",
    "host",
    "content-type",
    "connection",
    "cache-control",
];

fn machine() -> Machine {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    Machine {
        cpu: cpu_model().unwrap_or_else(|| text(uname.machine())),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory: memory().unwrap_or(0),
        system: format!("{} {}", text(uname.sysname()), text(uname.release())),
    }
}

fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_command_line_are_not_saved() {
        for (words, expected) in [
            ("-H|Authorization: x", "-H|Authorization: ..."),
            ("-HCookie: a:b", "-HCookie: ..."),
            ("-H=Cookie: a", "-H=Cookie: ..."),
            ("-qHCookie: a", "-qHCookie: ..."),
            ("-qH|X-Key: a|-H|accept: b", "-qH|X-Key: ...|-H|accept: b"),
            ("--header=X-Key: a", "--header=X-Key: ..."),
            ("--header|X-Key:a|-c|5", "--header|X-Key: ...|-c|5"),
            (
                "--publish-header|Authorization: a|--publish-header=X-Key: a",
                "--publish-header|Authorization: ...|--publish-header=X-Key: ...",
            ),
            ("-H|-H: x|-H|secret", "-H|-H: ...|-H|..."),
            (
                "-H|Accept-Encoding: br|-H|X-Forwarded-For: ::1|-HHOST: a:81",
                "-H|Accept-Encoding: br|-H|X-Forwarded-For: ::1|-HHOST: a:81",
            ),
            ("bench|run|-XPATCH|--|-HA: b", "bench|run|-XPATCH|--|-HA: b"),
        ] {
            let found = mask_command_line(words.split('|').map(str::to_owned));
            assert_eq!(found.join("|"), expected);
        }
    }

    #[test]
    fn knows_its_machine() {
        let machine = machine();
        assert!(machine.cores > 0 && machine.memory > 1 << 20);
        assert!(machine.system.starts_with("Linux "), "{}", machine.system);
    }
}
