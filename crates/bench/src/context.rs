//! The context of a measurement: the machine, the time and the command, as reports show them.
//!
//! The verbs call [`report_with_context`] at their end. Saved reports are
//! shared, so values of header fields on the command line, which may be passwords, are omitted.

#![allow(
    clippy::disallowed_methods,
    reason = "/proc is memory, and is read after the measurement"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use crate::deploy::resource_usage::find_field;
use crate::report::{FORMAT_VERSION, Machine, MeasurementContext, Report, ReportResult};

/// Builds the report of a result measured by this command since `started`; `headers` are the header
/// fields of its arguments.
#[must_use]
pub(crate) fn report_with_context(
    result: ReportResult,
    started: SystemTime,
    interrupted: bool,
    headers: &[String],
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
                headers,
            ),
            machine: machine(),
            interrupted,
        },
        result,
    }
}

/// A command line without the values of these header fields that may be secret. Each is the end of
/// an argument, such as `-HNAME: VALUE`.
fn mask_command_line(words: impl Iterator<Item = String>, headers: &[String]) -> Vec<String> {
    let mask = |word: String| {
        let fields = headers.iter();
        let found = fields.filter_map(|field| Some((field, word.strip_suffix(&**field)?)));
        match found.max_by_key(|(field, _)| field.len()) {
            Some((field, option)) => format!("{option}{}", mask_header_field(field)),
            None => word,
        }
    };
    words.map(mask).collect()
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
    let line = find_field(&info, "model name")?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = find_field(&info, "MemTotal:")?.trim();
    Some(line.strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_command_line_are_not_saved() {
        for (words, headers, expected) in [
            (
                "-H|Authorization: x",
                "Authorization: x",
                "-H|Authorization: ...",
            ),
            ("-HCookie: a:b", "Cookie: a:b", "-HCookie: ..."),
            ("-H=Cookie: a", "Cookie: a", "-H=Cookie: ..."),
            ("-qHCookie: a", "Cookie: a", "-qHCookie: ..."),
            (
                "-qH|X-Key: a|-H|accept: b",
                "X-Key: a|accept: b",
                "-qH|X-Key: ...|-H|accept: b",
            ),
            ("--header=X-Key: a", "X-Key: a", "--header=X-Key: ..."),
            (
                "--header|X-Key:a|-c|5",
                "X-Key:a",
                "--header|X-Key: ...|-c|5",
            ),
            ("-H|-H: x|-H|secret", "-H: x|secret", "-H|-H: ...|-H|..."),
            (
                "-H|Accept-Encoding: br|-H|X-Forwarded-For: ::1|-HHOST: a:81",
                "Accept-Encoding: br|X-Forwarded-For: ::1|HOST: a:81",
                "-H|Accept-Encoding: br|-H|X-Forwarded-For: ::1|-HHOST: a:81",
            ),
            ("-HA: x|-HBA: x", "A: x|BA: x", "-HA: ...|-HBA: ..."),
            (
                "bench|run|-XPATCH|--|-HA: b",
                "",
                "bench|run|-XPATCH|--|-HA: b",
            ),
        ] {
            let headers = headers.split('|').filter(|field| !field.is_empty());
            let headers: Vec<String> = headers.map(str::to_owned).collect();
            let found = mask_command_line(words.split('|').map(str::to_owned), &headers);
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
