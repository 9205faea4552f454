//! Variables in the texts of a configuration: `${NAME}` and `${NAME:-default}`.
//!
//! `source_files` gathers them: the environment of the process, and the file of `env_file`.
//! `source_tree` replaces them in every text value, after TOML was parsed.
//!
//! # Invariants
//! - A value never changes the structure of a file, whatever stands in it.
//! - No message shows a value.

mod env_file;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;

pub(crate) use env_file::parse_env_file;

/// A variable of the environment by its name.
type Environment = fn(&str) -> Option<OsString>;

/// The variables that a configuration may name.
#[derive(Debug)]
pub(crate) struct Variables {
    environment: Environment,
    from_file: BTreeMap<String, String>,
    file_overrides: bool,
}

/// What is wrong with a variable, and at which byte of the text it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VariableError {
    /// The byte of the text.
    pub(crate) offset: usize,
    /// The problem, and what to do.
    pub(crate) problem: String,
}

impl Variables {
    /// Those of this process.
    pub(crate) fn of_process() -> Self {
        Self::from_environment(|name| std::env::var_os(name))
    }

    /// Those of an environment.
    pub(crate) fn from_environment(environment: Environment) -> Self {
        Self {
            environment,
            from_file: BTreeMap::new(),
            file_overrides: false,
        }
    }

    /// Adds those of a file. The environment goes first, unless the file `overrides` it.
    pub(crate) fn add_file(&mut self, variables: BTreeMap<String, String>, overrides: bool) {
        self.from_file.extend(variables);
        self.file_overrides = overrides;
    }

    /// The value of a variable; `None` where it is not set.
    ///
    /// # Errors
    /// Its value is not UTF-8.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Cow<'_, str>>, ()> {
        let from_file = self.from_file.get(name).map(|it| Cow::from(it.as_str()));
        if self.file_overrides && from_file.is_some() {
            return Ok(from_file);
        }
        match (self.environment)(name) {
            Some(value) => value.into_string().map(|it| Some(it.into())).map_err(drop),
            None => Ok(from_file),
        }
    }

    /// The text with its variables replaced by their values.
    ///
    /// # Errors
    /// The first variable that is not set or not written as one.
    pub(crate) fn expand<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, VariableError> {
        if !text.contains("${") {
            return Ok(text.into());
        }
        let mut expanded = String::with_capacity(text.len());
        let mut done = 0;
        while let Some(found) = text[done..].find("${") {
            let start = done + found;
            if text[done..start].ends_with('$') {
                // `$${` stands for `${`.
                expanded.push_str(&text[done..start]);
                expanded.push('{');
                done = start + "${".len();
                continue;
            }
            expanded.push_str(&text[done..start]);
            let inner = &text[start + "${".len()..];
            let (inner, value) = self.value_of(inner).map_err(|problem| VariableError {
                offset: start,
                problem,
            })?;
            expanded.push_str(&value);
            done = start + "${".len() + inner.len() + "}".len();
        }
        expanded.push_str(&text[done..]);
        Ok(expanded.into())
    }

    /// What stands between the braces, and its value.
    fn value_of<'s>(&'s self, rest: &'s str) -> Result<(&'s str, Cow<'s, str>), String> {
        let end = rest.find('}').ok_or(NOT_A_VARIABLE)?;
        let inner = &rest[..end];
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        if !is_variable_name(name) {
            return Err(NOT_A_VARIABLE.to_owned());
        }
        let value = self.get(name);
        let value = value.map_err(|()| format!("the variable `{name}` is not UTF-8"))?;
        // As in a shell, a default stands for an empty value, too.
        match (value, default) {
            (Some(value), _) if !value.is_empty() => Ok((inner, value)),
            (_, Some(default)) => Ok((inner, default.into())),
            (Some(value), None) => Ok((inner, value)),
            (None, None) => Err(format!(
                "the variable `{name}` is not set: set it in the environment or in the file of \
                 `env_file` in [server], or write a default, as in `${{{name}:-default}}`"
            )),
        }
    }
}

/// Whether a text can be the name of a variable (POSIX.1-2024, base definitions, 8.1).
pub(crate) fn is_variable_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(is_part) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

const NOT_A_VARIABLE: &str = "`${` begins no variable here: expected `${NAME}` or \
     `${NAME:-default}`; `$${` stands for `${` itself";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    fn environment(name: &str) -> Option<OsString> {
        match name {
            "HOST" => Some("example.com".into()),
            "EMPTY" => Some("".into()),
            "QUOTES" => Some("a\"b\n[server]${HOST}".into()),
            "BYTES" => Some(OsString::from_vec(vec![0xff])),
            _ => None,
        }
    }

    #[test]
    fn replaces_variables_by_their_values() {
        let variables = Variables::from_environment(environment);
        let rows = [
            ("plain $HOST {path} $", "plain $HOST {path} $"),
            ("${HOST}", "example.com"),
            (
                "https://${HOST}/${HOST}!",
                "https://example.com/example.com!",
            ),
            ("${NONE:-80}${NONE:-}", "80"),
            ("${EMPTY:-x}${EMPTY}", "x"),
            ("${HOST:-other}", "example.com"),
            ("${NONE:-a:-b}", "a:-b"),
            ("$${HOST}", "${HOST}"),
            ("$$${HOST}${HOST}", "$${HOST}example.com"),
            ("${QUOTES}", "a\"b\n[server]${HOST}"),
            ("ü${HOST}ü", "üexample.comü"),
        ];
        for (text, expected) in rows {
            assert_eq!(variables.expand(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn names_what_is_not_set_and_where() {
        let variables = Variables::from_environment(environment);
        let rows = [
            ("a${NONE}", 1, "the variable `NONE` is not set"),
            ("${HOST}${BYTES}", 7, "the variable `BYTES` is not UTF-8"),
            ("ab${HOST", 2, "begins no variable"),
            ("${}", 0, "begins no variable"),
            ("${1A}", 0, "begins no variable"),
            ("${A B}", 0, "begins no variable"),
            ("${A-b}", 0, "begins no variable"),
        ];
        for (text, offset, problem) in rows {
            let error = variables.expand(text).unwrap_err();
            assert_eq!(error.offset, offset, "{text}");
            assert!(error.problem.contains(problem), "{text}: {}", error.problem);
        }
    }

    #[test]
    fn a_file_overrides_the_environment_only_if_it_says_so() {
        let file = |value: &str| {
            BTreeMap::from([
                ("HOST".to_owned(), value.to_owned()),
                ("OWN".to_owned(), "own".to_owned()),
            ])
        };
        for (overrides, expected) in [(false, "example.com own"), (true, "file own")] {
            let mut variables = Variables::from_environment(environment);
            variables.add_file(file("file"), overrides);
            assert_eq!(variables.expand("${HOST} ${OWN}").as_deref(), Ok(expected));
        }
    }
}
