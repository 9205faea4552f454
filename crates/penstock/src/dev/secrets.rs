//! Masks secrets in what error pages show in development: variables of the environment, source
//! code, tracebacks and output.
//!
//! Pure. It masks too much rather than too little: a value is masked for its name, whatever it is.
//!
//! # Invariants
//! - The values of names such as `DB_PASSWORD`, `secret_key` and `apiToken` are not shown, nor the
//!   users and passwords of URLs, nor keys in PEM.
//! - The number of lines stays.

pub(super) const MASK: &str = "(masked)";

/// Parts of names with secret values, in upper case.
const SECRET_NAME_PARTS: [&str; 12] = [
    "SECRET",
    "KEY",
    "TOKEN",
    "PASS",
    "PWD",
    "AUTH",
    "DSN",
    "SALT",
    "CREDENTIAL",
    "GRIP_URL",
    "PUBLISH_URL",
    "PRIVATE",
];

/// Whole names that contain such a part and say nothing secret.
const HARMLESS_NAMES: [&str; 4] = ["PWD", "OLDPWD", "AUTHOR", "AUTHORS"];

/// Characters from which on a word that looks random is masked: shorter ones are names.
const MIN_RANDOM_CHARS: usize = 40;

/// Masks the value of a variable, or of a word of a command (without a name). A password may contain
/// any character, including those that end it in a well-formed URL.
pub(super) fn mask_value(name: &str, value: &str) -> String {
    if is_secret_name(name) {
        return MASK.to_owned();
    }
    // `password=x`, `"token": x`, and the like: a longer name or the value follows.
    let inside = value.to_ascii_uppercase();
    let is_told = |word: &str| {
        inside.match_indices(word).any(|(at, _)| {
            let behind = inside[at..].trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
            behind
                .trim_start_matches(['"', '\'', ' '])
                .starts_with(['=', ':'])
        })
    };
    if SECRET_NAME_PARTS.iter().any(|word| is_told(word)) {
        return MASK.to_owned();
    }
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}"),
        None => value.to_owned(),
    }
}

/// Masks the secrets in lines of source code, of a traceback or of output.
pub(super) fn mask_text(text: &str) -> String {
    let mut masker = TextMasker::default();
    let lines: Vec<_> = text.lines().map(|line| masker.mask_line(line)).collect();
    lines.join("\n")
}

/// Masks line by line: a secret may go on in the lines below its name.
#[derive(Debug, Default)]
struct TextMasker {
    /// What ends the secret value that the line before has begun.
    until: Option<&'static str>,
}

impl TextMasker {
    fn mask_line(&mut self, line: &str) -> String {
        if let Some(end) = self.until {
            if line.contains(end) {
                self.until = None;
            }
            return match end {
                ")" | "]" | "}" => mask_literals(line),
                _ => mask_words(line),
            };
        }
        if line.contains("-----BEGIN ") {
            self.until = (!line.contains("-----END ")).then_some("-----END ");
            return mask_words(line);
        }
        let line = mask_url_users(line);
        let Some(at) = secret_value_start(&line) else {
            return mask_random_words(&line);
        };
        let (name, value) = line.split_at(at);
        self.until = unfinished_value(value);
        let is_source = value.contains(['"', '\'']) || value.trim_end().ends_with(['(', '[', '{']);
        match is_source {
            true => format!("{name}{}", mask_literals(value)),
            // `password=abc` in a message, or a call without a literal.
            false if value.contains('(') => line.clone(),
            false => format!("{name}{}", mask_first_word(value)),
        }
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    !HARMLESS_NAMES.contains(&name.as_str())
        && SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Where the value of the first secret name of a line begins: behind `NAME =`, `NAME: `, `"NAME" =>`,
/// `["NAME"] =` or a type (`NAME: str =`), but not behind `==`.
fn secret_value_start(line: &str) -> Option<usize> {
    let is_name = |char: char| char.is_alphanumeric() || char == '_' || char == '-';
    let mut from = 0;
    while let Some(begin) = line[from..].find(is_name).map(|at| from + at) {
        let end = line[begin..]
            .find(|char| !is_name(char))
            .map_or(line.len(), |at| begin + at);
        from = end;
        let name = &line[begin..end];
        // `KeyError: 'x'` is an exception and its message.
        let is_class = ["Error", "Exception", "Warning"]
            .iter()
            .any(|it| name.ends_with(it));
        if is_class || !is_secret_name(name) {
            continue;
        }
        let behind = line[end..].trim_start_matches(['"', '\'', ']', ' ']);
        let operator = ["=>", ":=", "=", ":"]
            .into_iter()
            .find(|it| behind.starts_with(it));
        let Some(operator) = operator.filter(|_| !behind.starts_with("==")) else {
            continue;
        };
        let mut start = line.len() - behind.len() + operator.len();
        // `NAME: str = "x"`: the type is no value.
        if operator == ":"
            && let Some(at) = line[start..].find(" = ")
            && !line[start..start + at].contains(['"', '\''])
        {
            start += at + 3;
        }
        return Some(start);
    }
    None
}

/// What ends a value that goes on in the next line.
fn unfinished_value(value: &str) -> Option<&'static str> {
    for quotes in ["\"\"\"", "'''"] {
        if value.matches(quotes).count() == 1 {
            return Some(quotes);
        }
    }
    match value.trim_end().chars().last() {
        Some('(') => Some(")"),
        Some('[') => Some("]"),
        Some('{') => Some("}"),
        _ => None,
    }
}

/// Masks texts in quotes, and numbers.
fn mask_literals(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|char: char| matches!(char, '"' | '\'') || char.is_ascii_digit())
    {
        let is_in_name = rest[..at].ends_with(|char: char| char.is_alphanumeric() || char == '_');
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let quote = rest
            .chars()
            .next()
            .filter(|char| matches!(char, '"' | '\''));
        let Some(quote) = quote else {
            let end = rest
                .find(|char: char| !char.is_ascii_digit())
                .unwrap_or(rest.len());
            out.push_str(if is_in_name { &rest[..end] } else { MASK });
            rest = &rest[end..];
            continue;
        };
        let end = closing_quote(&rest[1..], quote).map_or(rest.len(), |end| end + 2);
        out.push(quote);
        if end > 2 {
            out.push_str(MASK);
        }
        if rest[..end].len() > 1 && rest[..end].ends_with(quote) {
            out.push(quote);
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// The end of a text in quotes, behind any that are escaped.
fn closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, char)| {
        let is_end = char == quote && !is_escaped;
        is_escaped = char == '\\' && !is_escaped;
        is_end.then_some(at)
    })
}

/// Masks the first word: `abc user=u` becomes `(masked) user=u`.
fn mask_first_word(value: &str) -> String {
    let begin = value.len() - value.trim_start().len();
    let word = &value[begin..];
    let end = word.find([' ', ';', '&', ',', '\t']).unwrap_or(word.len());
    match end {
        0 => value.to_owned(),
        _ => format!("{}{MASK}{}", &value[..begin], &word[end..]),
    }
}

/// Masks all but the indentation and the lines that begin and end a key.
fn mask_words(line: &str) -> String {
    let marks = ["-----BEGIN ", "-----END "];
    if let Some(at) = marks.iter().find_map(|mark| line.find(mark)) {
        let name = line[..at].trim_end_matches(|char| char != '=' && char != ' ');
        return format!("{name}{MASK}");
    }
    let text = line.trim_start();
    let indentation = &line[..line.len() - text.len()];
    match text {
        "" => line.to_owned(),
        _ => format!("{indentation}{MASK}"),
    }
}

/// Masks user and password of every URL of a line: up to the last `@` of the word.
fn mask_url_users(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        out.push_str(before);
        let end = url
            .find(|char: char| char.is_whitespace() || matches!(char, '"' | '\'' | '<' | '>' | ')'))
            .unwrap_or(url.len());
        let (url, behind) = url.split_at(end);
        match url.rsplit_once('@') {
            Some((_, host)) => out.push_str(&format!("{MASK}@{host}")),
            None => out.push_str(url),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Masks long words of letters and digits that look like keys.
fn mask_random_words(line: &str) -> String {
    let is_part =
        |char: char| char.is_ascii_alphanumeric() || matches!(char, '+' | '_' | '-' | '=');
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(begin) = rest.find(is_part) {
        let end = rest[begin..]
            .find(|char| !is_part(char))
            .map_or(rest.len(), |at| begin + at);
        let word = &rest[begin..end];
        let has = |is: fn(&char) -> bool| word.chars().any(|char| is(&char));
        let is_random = word.len() >= MIN_RANDOM_CHARS
            && has(char::is_ascii_digit)
            && has(char::is_ascii_uppercase)
            && has(char::is_ascii_lowercase);
        out.push_str(&rest[..begin]);
        out.push_str(if is_random { MASK } else { word });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_are_masked_for_their_name_or_what_they_contain() {
        let rows = [
            ("GREETING", "hello", "hello"),
            ("SECRET_KEY_BASE", "abc", "(masked)"),
            ("aws_access_key_id", "abc", "(masked)"),
            ("API_TOKEN", "abc", "(masked)"),
            ("DB_PASSWORD", "abc", "(masked)"),
            (
                "DATABASE_URL",
                "postgres://u:p@h/db?x=1",
                "postgres://(masked)@h/db?x=1",
            ),
            (
                "REDIS_URLS",
                "redis://:a/b@h1,redis://:c@h2/1",
                "redis://(masked)@h2/1",
            ),
            ("SITE", "https://example.com/a", "https://example.com/a"),
            ("SMTP_PASS", "abc", "(masked)"),
            ("MYSQL_PWD", "abc", "(masked)"),
            ("PWD", "/srv", "/srv"),
            ("BASIC_AUTH", "u:p", "(masked)"),
            ("SENTRY_DSN", "https://abc@h/1", "(masked)"),
            ("SALT", "abc", "(masked)"),
            ("GOOGLE_CREDENTIALS", "abc", "(masked)"),
            ("PG", "host=h password=abc user=u", "(masked)"),
            ("PG_URI", "postgres://h/db?password=abc", "(masked)"),
            ("JSON", "{\"api_key\": \"abc\"}", "(masked)"),
            ("ODBC", "Server=h;Pwd=abc", "(masked)"),
            ("HINT", "a passing key", "a passing key"),
        ];
        for (name, value, expected) in rows {
            assert_eq!(mask_value(name, value), expected, "{name}");
        }
    }

    #[test]
    fn secrets_in_source_are_masked_and_the_rest_is_shown() {
        let rows = [
            ("x = 1  # a passing key", "x = 1  # a passing key"),
            ("PASSWORD = \"hunter2\"", "PASSWORD = \"(masked)\""),
            (
                "    SECRET_KEY: str = 'a\\'b'  # c",
                "    SECRET_KEY: str = '(masked)'  # c",
            ),
            (
                "config[\"api_key\"] = 'k3y'",
                "config[\"api_key\"] = '(masked)'",
            ),
            (
                "{\"token\": \"t0k\", \"a\": 1}",
                "{\"token\": \"(masked)\", \"(masked)\": (masked)}",
            ),
            ("  :secret => 'x',", "  :secret => '(masked)',"),
            (
                "connect(host='h', password='p')",
                "connect(host='h', password='(masked)')",
            ),
            ("PIN_TOKEN = 1234", "PIN_TOKEN = (masked)"),
            ("token = read_token(path)", "token = read_token(path)"),
            ("if password == given:", "if password == given:"),
            ("author = 'me'", "author = 'me'"),
            ("KeyError: 'name'", "KeyError: 'name'"),
            (
                "db = 'postgres://u:p@ss@h/db?x=1'",
                "db = 'postgres://(masked)@h/db?x=1'",
            ),
            (
                "OperationalError: cannot connect: host=h password=abc user=u",
                "OperationalError: cannot connect: host=h password=(masked) user=u",
            ),
            ("see https://example.com/a@b?", "see https://(masked)@b?"),
            (
                "x = 'Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0Ab0'",
                "x = '(masked)'",
            ),
        ];
        for (line, expected) in rows {
            assert_eq!(mask_text(line), expected);
        }
    }

    #[test]
    fn values_of_several_lines_are_masked_to_their_end() {
        let rows = [
            (
                "PASSWORD = (\n    'one'\n    'two'\n)\nx = 'three'",
                "PASSWORD = (\n    '(masked)'\n    '(masked)'\n)\nx = 'three'",
            ),
            (
                "KEY = \"\"\"one\ntwo\n\"\"\"\nx = 'three'",
                "KEY = \"\"\"(masked)\n(masked)\n(masked)\nx = 'three'",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nx",
                "(masked)\n(masked)\n(masked)\nx",
            ),
        ];
        for (text, expected) in rows {
            let found = mask_text(text);
            assert_eq!(found, expected);
            assert_eq!(found.lines().count(), text.lines().count());
        }
    }
}
