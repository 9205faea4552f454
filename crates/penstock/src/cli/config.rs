//! `penstock config example | schema | explain KEY`: the built-in documentation of the
//! configuration file.

use super::{CliError, ConfigTopic};

pub(super) fn run(topic: &ConfigTopic) -> Result<String, CliError> {
    let text = match topic {
        ConfigTopic::Example => penstock_config::example_file(),
        ConfigTopic::Schema => penstock_config::json_schema(),
        ConfigTopic::Explain { key } => penstock_config::explain_key(key)
            .ok_or_else(|| CliError::Usage(format!("no configuration key `{key}`")))?,
    };
    Ok(text.trim_end().to_owned())
}
