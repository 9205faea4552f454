//! `penstock config example | schema | explain KEY`: the configuration file's own documentation.

use std::process::ExitCode;

use super::{ConfigTopic, USAGE, complain, say};

pub(super) fn run(topic: &ConfigTopic) -> ExitCode {
    match topic {
        ConfigTopic::Example => say(&penstock_config::example().trim_end()),
        ConfigTopic::Schema => say(&penstock_config::json_schema().trim_end()),
        ConfigTopic::Explain { key } => match penstock_config::explain(key) {
            Some(text) => say(&text.trim_end()),
            None => {
                complain(&format!("no configuration key `{key}`"));
                return ExitCode::from(USAGE);
            }
        },
    }
    ExitCode::SUCCESS
}
