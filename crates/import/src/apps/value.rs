//! Values of scripts: literals, and variables of the environment.

/// A value that needs no program to be run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScriptValue {
    /// A text. `${NAME:-5}` in it is a variable.
    Text(String),
    Number(i64),
    Bool(bool),
    Nothing,
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
    /// Code, whose value is not known.
    Code,
}

impl ScriptValue {
    /// The value as a text, as keys with numbers take one too.
    pub(super) fn as_text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(super) fn as_number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Text(text) => crate::units::number(text),
            _ => None,
        }
    }

    /// The texts of a list, or one text.
    pub(super) fn as_texts(&self) -> Option<Vec<String>> {
        match self {
            Self::List(items) => items.iter().map(Self::as_text).collect(),
            other => other.as_text().map(|text| vec![text]),
        }
    }

    /// Whether the text is a variable of the environment.
    pub(super) fn is_variable(&self) -> bool {
        matches!(self, Self::Text(text) if text.starts_with("${") && text.ends_with('}'))
    }

    /// Whether a flag is set.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Bool(flag) => *flag,
            Self::Number(number) => *number != 0,
            Self::Text(text) => ["true", "1", "yes", "on"].contains(&text.as_str()),
            _ => false,
        }
    }
}

/// `${NAME}` or `${NAME:-default}`.
pub(super) fn variable(name: &str, default: Option<&ScriptValue>) -> ScriptValue {
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'_');
    // Variables have no variables as defaults: the innermost default stands in for them.
    let default = default.map(|value| {
        let text = value.as_text()?;
        let inner = text.strip_prefix("${").and_then(|it| it.strip_suffix('}'));
        match inner {
            Some(inner) => inner
                .split_once(":-")
                .map(|(_, default)| default.to_owned()),
            None => Some(text),
        }
    });
    match (is_name, default) {
        (true, Some(Some(text))) if !text.contains(['{', '}', '$']) => {
            ScriptValue::Text(format!("${{{name}:-{text}}}"))
        }
        (true, None) => ScriptValue::Text(format!("${{{name}}}")),
        _ => ScriptValue::Code,
    }
}
