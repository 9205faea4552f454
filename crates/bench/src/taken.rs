//! Where and when: the machine that measures, as reports name it.

#![allow(
    clippy::disallowed_methods,
    reason = "/proc is memory, and is read when nothing is measured any more"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::{FORMAT, Machine, Outcome, Report, Taken};

/// The report of a result that was measured by this command from `started` on.
#[must_use]
pub(crate) fn report(result: Outcome, started: SystemTime, interrupted: bool) -> Report {
    let since_epoch = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    Report {
        format: FORMAT,
        taken: Taken {
            started: since_epoch.as_secs(),
            tool: concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned(),
            command: std::env::args().skip(1).collect(),
            machine: machine(),
            interrupted,
        },
        result,
    }
}

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
    fn knows_its_machine() {
        let machine = machine();
        assert!(machine.cores > 0 && machine.memory > 1 << 20);
        assert!(machine.system.starts_with("Linux "), "{}", machine.system);
    }
}
