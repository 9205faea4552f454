//! `penstock config example | schema | explain KEY`: the built-in documentation of the
//! configuration file.

use std::process::ExitCode;

use super::{ConfigTopic, USAGE_EXIT_CODE, print_error, print_line};

pub(super) fn run(topic: &ConfigTopic) -> ExitCode {
    match topic {
        ConfigTopic::Example => print_line(&penstock_config::example().trim_end()),
        ConfigTopic::Schema => print_line(&penstock_config::json_schema().trim_end()),
        ConfigTopic::Explain { key } => match penstock_config::explain(key) {
            Some(text) => print_line(&text.trim_end()),
            None => {
                print_error(&format!("no configuration key `{key}`"));
                return ExitCode::from(USAGE_EXIT_CODE);
            }
        },
    }
    ExitCode::SUCCESS
}
