//! What the log and the commands say about a process that did not end in time: how long it had, and
//! which option bounds that.
//!
//! Used by the executor's reports and by the runs of programs.

use std::time::Duration;

use penstock_config::{App, AppKind};

/// The option that bounds how long a process of this application or job may take to end.
pub(crate) fn option_name(config: &App) -> String {
    let table = match config.kind {
        AppKind::Job => "jobs",
        _ => "apps",
    };
    format!("{table}.{}.stop_timeout", config.name)
}

/// Why a process was killed, with the option.
pub(crate) fn describe_kill(limit: Duration, option: &str) -> String {
    format!("it did not end within {limit:?} of SIGTERM ({option})")
}

/// The sentence for the operator that stops a server, about `killed` processes.
pub(crate) fn describe_kills(killed: u64, limit: Duration, option: &str) -> String {
    let processes = match killed {
        1 => "1 process was".to_owned(),
        more => format!("{more} processes were"),
    };
    format!("{processes} killed {limit:?} after SIGTERM: a longer {option} gives more time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_names_its_option_and_how_long_the_process_had() {
        let limit = Duration::from_secs(10);
        for (kind, option) in [
            (AppKind::Job, "jobs.mail.stop_timeout"),
            (AppKind::Wsgi, "apps.mail.stop_timeout"),
            (AppKind::Command, "apps.mail.stop_timeout"),
        ] {
            let config = App::new("mail", "/srv/mail".into(), kind, "");
            assert_eq!(option_name(&config), option);
            assert_eq!(
                describe_kill(limit, option),
                format!("it did not end within 10s of SIGTERM ({option})")
            );
        }
        let told = describe_kills(2, limit, "jobs.mail.stop_timeout");
        assert!(
            told.starts_with("2 processes were killed 10s after"),
            "{told}"
        );
        assert!(told.contains("a longer jobs.mail.stop_timeout"), "{told}");
        assert!(describe_kills(1, limit, "x").starts_with("1 process was killed"));
    }
}
