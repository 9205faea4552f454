//! Arbitrary text as a URI template and as a topic: matches agree with an exhaustive matcher, and
//! every expansion of a template matches it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_mercure::fuzzing::matches_template;

/// Longer ones take the exhaustive matcher too long.
const TOPIC_BYTES: usize = 24;
const VARIABLES: usize = 4;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (template, topic) = text.split_once('\n').unwrap_or((text, "/a/b?c=1"));
    let matches = matches_template(template, topic);
    let parts = parse(template);
    let count: usize = parts.iter().flatten().map(Part::variables).sum();
    if count == 0 || count > 32 {
        assert_eq!(matches, None, "{template}");
        return;
    }
    let parts = parts.unwrap_or_default();
    if count <= VARIABLES && topic.len() <= TOPIC_BYTES {
        let expected = is_expansion(&parts, topic);
        assert_eq!(matches, Some(expected), "{template} {topic}");
    }
    let is_taken = matches.is_some();
    assert!(is_taken, "{template}");
    for values in [["", "x"], ["a-b", "%2F"], ["1", "1,2"]] {
        let topic = expand(&parts, values);
        assert_eq!(
            matches_template(template, &topic),
            Some(true),
            "{template} {topic}"
        );
    }
});

/// A literal, or an expression (RFC 6570 §2).
enum Part<'t> {
    Literal(&'t str),
    Expression(Option<char>, Vec<Variable<'t>>),
}

struct Variable<'t> {
    name: &'t str,
    is_list: bool,
    characters: usize,
}

impl Part<'_> {
    fn variables(&self) -> usize {
        match self {
            Self::Literal(_) => 0,
            Self::Expression(_, variables) => variables.len(),
        }
    }
}

/// Parses a template; `None` if it is invalid.
fn parse(template: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let close = open + rest[open..].find('}')?;
        if rest[..open].contains('}') {
            return None;
        }
        parts.push(Part::Literal(&rest[..open]));
        let inside = &rest[open + 1..close];
        let operator = inside.chars().next().filter(|c| "+#./;?&".contains(*c));
        let list = &inside[operator.map_or(0, char::len_utf8)..];
        let variables: Option<Vec<_>> = list.split(',').map(variable).collect();
        parts.push(Part::Expression(operator, variables?));
        rest = &rest[close + 1..];
    }
    (!rest.contains('}')).then(|| {
        parts.push(Part::Literal(rest));
        parts
    })
}

fn variable(text: &str) -> Option<Variable<'_>> {
    let (name, is_list, characters) = match (text.split_once(':'), text.strip_suffix('*')) {
        (Some((name, digits)), _) => {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits
                .parse()
                .ok()
                .filter(|n| is_number && (1..10_000).contains(n))?;
            if digits.starts_with('0') {
                return None;
            }
            (name, false, number)
        }
        (None, Some(name)) => (name, true, usize::MAX),
        (None, None) => (text, false, usize::MAX),
    };
    let is_part = |part: &str| {
        let mut rest = part;
        while let Some(at) = rest.find('%') {
            let digits = rest.get(at + 1..at + 3);
            if !digits.is_some_and(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit())) {
                return false;
            }
            rest = &rest[at + 3..];
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '%';
        !part.is_empty() && part.chars().all(plain)
    };
    name.split('.').all(is_part).then_some(Variable {
        name,
        is_list,
        characters,
    })
}

/// How an operator expands (RFC 6570, appendix A): first, separator, whether named, text for empty
/// values.
fn style(operator: Option<char>) -> (&'static str, &'static str, bool, &'static str) {
    match operator {
        Some('#') => ("#", ",", false, ""),
        Some('.') => (".", ".", false, ""),
        Some('/') => ("/", "/", false, ""),
        Some(';') => (";", ";", true, ""),
        Some('?') => ("?", "&", true, "="),
        Some('&') => ("&", "&", true, "="),
        _ => ("", ",", false, ""),
    }
}

/// Tries every way to expand to the topic.
fn is_expansion(parts: &[Part<'_>], topic: &str) -> bool {
    let Some((part, after)) = parts.split_first() else {
        return topic.is_empty();
    };
    match part {
        Part::Literal(text) => topic
            .strip_prefix(text)
            .is_some_and(|rest| is_expansion(after, rest)),
        Part::Expression(operator, variables) => {
            try_variables(*operator, variables, true, topic, after)
        }
    }
}

fn try_variables(
    operator: Option<char>,
    variables: &[Variable<'_>],
    is_first: bool,
    topic: &str,
    after: &[Part<'_>],
) -> bool {
    let Some((variable, others)) = variables.split_first() else {
        return is_expansion(after, topic);
    };
    // Undefined.
    if try_variables(operator, others, is_first, topic, after) {
        return true;
    }
    let (first, between, is_named, _) = style(operator);
    let Some(mut rest) = topic.strip_prefix(if is_first { first } else { between }) else {
        return false;
    };
    if is_named && !variable.is_list {
        let Some(named) = rest.strip_prefix(variable.name) else {
            return false;
        };
        if operator == Some(';') && try_variables(operator, others, false, named, after) {
            return true;
        }
        let Some(valued) = named.strip_prefix('=') else {
            return false;
        };
        rest = valued;
    }
    (0..=rest.len()).any(|end| {
        rest.is_char_boundary(end)
            && is_value(operator, variable, &rest[..end])
            && try_variables(operator, others, false, &rest[end..], after)
    })
}

/// Whether `text` is a valid expansion of a value.
fn is_value(operator: Option<char>, variable: &Variable<'_>, text: &str) -> bool {
    let between = style(operator).1;
    let is_reserved_allowed = matches!(operator, Some('+' | '#'));
    let bytes = text.as_bytes();
    let (mut at, mut characters) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        if byte == b'%' && digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit) {
            // Only the first byte of a multi-byte character counts.
            characters += usize::from(!b"89abAB".contains(&digits[0]));
            at += 3;
            continue;
        }
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~,".contains(&byte);
        let is_reserved = is_reserved_allowed && b":/?#[]@!$&'()*+,;=".contains(&byte);
        let is_of_list = variable.is_list && (byte == b'=' || between.as_bytes() == [byte]);
        if !(is_plain || is_reserved || is_of_list) {
            return false;
        }
        characters += 1;
        at += 1;
    }
    characters <= variable.characters
}

/// Expands the template with these values in turn; every third is undefined.
fn expand(parts: &[Part<'_>], values: [&str; 2]) -> String {
    let mut out = String::new();
    let mut number = 0;
    for part in parts {
        let (operator, variables) = match part {
            Part::Literal(text) => {
                out.push_str(text);
                continue;
            }
            Part::Expression(operator, variables) => (*operator, variables),
        };
        let (first, between, is_named, if_empty) = style(operator);
        let mut is_first = true;
        for variable in variables {
            number += 1;
            if number % 3 == 0 {
                continue;
            }
            out.push_str(if is_first { first } else { between });
            is_first = false;
            let value = values[number % 2];
            // Do not cut inside an encoded character.
            let value = match variable.characters < 3 {
                true => "",
                false => value
                    .get(..value.len().min(variable.characters))
                    .unwrap_or_default(),
            };
            if is_named {
                out.push_str(variable.name);
                out.push_str(if value.is_empty() { if_empty } else { "=" });
            }
            out.push_str(value);
        }
    }
    out
}
