//! URI templates (RFC 6570) as patterns: whether a topic could be an expansion of one.
//!
//! `selector` compiles a template once for all subscribers that name it; a topic is matched
//! against it when an update is published or a claim is checked. All four levels of the RFC are
//! known. A value may be anything that an expansion could give: a list's commas count as part of
//! it, and a variable may be undefined.
//!
//! # Invariants
//! - No match costs more than (parts + variables) x length of the topic, since it keeps the set of
//!   possible positions instead of trying one after the other.
//! - A text that is no template is a plain string, never an error.

/// Variables of one template, in all its expressions: more than any real one has, and a bound on
/// what a match costs.
pub(super) const MAX_TEMPLATE_VARIABLES: usize = 32;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct UriTemplate {
    /// The text before the first expression.
    prefix: Box<str>,
    /// From the first expression to the last.
    parts: Box<[TemplatePart]>,
    /// The text behind the last expression.
    suffix: Box<str>,
    /// Of all expressions.
    variable_count: usize,
}

/// Why a text is not matched as a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateError {
    /// It has no expression, or one that breaks the grammar: a plain string.
    NotATemplate,
    /// More than [`MAX_TEMPLATE_VARIABLES`].
    TooComplex,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum TemplatePart {
    Literal(Box<str>),
    Expression(Expression),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Expression {
    operator: Operator,
    variables: Box<[Variable]>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Variable {
    name: Box<str>,
    /// `*`: the values of a list apart.
    explodes: bool,
    /// `:n`: its first characters only.
    max_characters: Option<u32>,
}

/// How an expression is written out (RFC 6570, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Operator {
    first: &'static str,
    separator: &'static str,
    naming: Naming,
    allows_reserved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Naming {
    Unnamed,
    /// `name=value`.
    Named,
    /// `name=value`, and only `name` for an empty value.
    BareIfEmpty,
}

impl UriTemplate {
    /// Compiles `text`.
    pub(super) fn compile(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut variables = 0;
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (literal, expression) = rest.split_at(at);
            // A brace that closes nothing is caught here as well.
            let (inside, after) = expression
                .strip_prefix('{')
                .and_then(|open| open.split_once('}'))
                .ok_or(TemplateError::NotATemplate)?;
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(literal.into()));
            }
            let expression = Expression::parse(inside).ok_or(TemplateError::NotATemplate)?;
            variables += expression.variables.len();
            parts.push(TemplatePart::Expression(expression));
            rest = after;
        }
        match variables {
            0 => return Err(TemplateError::NotATemplate),
            1..=MAX_TEMPLATE_VARIABLES => {}
            _ => return Err(TemplateError::TooComplex),
        }
        let prefix = match parts.first() {
            Some(TemplatePart::Literal(prefix)) => {
                let prefix = prefix.clone();
                parts.remove(0);
                prefix
            }
            _ => "".into(),
        };
        Ok(Self {
            prefix,
            parts: parts.into(),
            suffix: rest.into(),
            variable_count: variables,
        })
    }

    /// What every topic that matches begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The number of variables, each of which adds to the cost of a match.
    pub(super) fn variable_count(&self) -> usize {
        self.variable_count
    }

    /// Whether `topic` could be an expansion.
    pub(super) fn matches(&self, topic: &str) -> bool {
        let Some(middle) = topic
            .strip_prefix(&*self.prefix)
            .and_then(|rest| rest.strip_suffix(&*self.suffix))
        else {
            return false;
        };
        let middle = middle.as_bytes();
        let mut positions = MatchPositions::empty(middle.len());
        positions.0[0] = true;
        for part in &self.parts {
            positions = match part {
                TemplatePart::Literal(text) => positions.after_text(text, middle),
                TemplatePart::Expression(expression) => expression.match_end(&positions, middle),
            };
            if !positions.0.contains(&true) {
                return false;
            }
        }
        positions.0[middle.len()]
    }
}

impl Expression {
    fn parse(inside: &str) -> Option<Self> {
        let (operator, list) = Operator::split_operator(inside)?;
        let variables: Option<Box<[Variable]>> = list.split(',').map(Variable::parse).collect();
        Some(Self {
            operator,
            variables: variables?,
        })
    }

    /// Where an expansion that begins in `positions` may end. Variables keep their order and each
    /// may be undefined (RFC 6570 §3.2.1).
    fn match_end(&self, positions: &MatchPositions, topic: &[u8]) -> MatchPositions {
        let operator = self.operator;
        let begun = positions.after_text(operator.first, topic);
        let mut taken = MatchPositions::empty(topic.len());
        for variable in &self.variables {
            let mut from = taken.after_text(operator.separator, topic);
            from.union(&begun);
            let values = variable.match_end(&from, operator, topic);
            taken.union(&values);
        }
        taken.union(positions);
        taken
    }
}

impl Variable {
    fn parse(text: &str) -> Option<Self> {
        let (name, explodes, characters_max) = match text.split_once(':') {
            Some((name, max)) => (name, false, Some(parse_max(max)?)),
            None => match text.strip_suffix('*') {
                Some(name) => (name, true, None),
                None => (text, false, None),
            },
        };
        is_name(name).then(|| Self {
            name: name.into(),
            explodes,
            max_characters: characters_max,
        })
    }

    fn match_end(&self, from: &MatchPositions, operator: Operator, topic: &[u8]) -> MatchPositions {
        let class = |byte: u8| {
            is_unreserved(byte)
                || byte == b','
                || (operator.allows_reserved && is_reserved(byte))
                || (self.explodes && (byte == b'=' || operator.separator.as_bytes() == [byte]))
        };
        if operator.naming == Naming::Unnamed || self.explodes {
            return from.after_run(class, self.max_characters, topic);
        }
        let named = from.after_text(&self.name, topic);
        let valued = named.after_text("=", topic);
        let mut values = valued.after_run(class, self.max_characters, topic);
        if operator.naming == Naming::BareIfEmpty {
            values.union(&named);
        }
        values
    }
}

impl Operator {
    /// The operator of an expression and what follows it; `None` for those that the RFC keeps for
    /// later.
    fn split_operator(inside: &str) -> Option<(Self, &str)> {
        let of = |first, separator, naming| Self {
            first,
            separator,
            naming,
            allows_reserved: false,
        };
        let reserved = |first| Self {
            allows_reserved: true,
            ..of(first, ",", Naming::Unnamed)
        };
        let operator = match inside.as_bytes().first()? {
            b'+' => reserved(""),
            b'#' => reserved("#"),
            b'.' => of(".", ".", Naming::Unnamed),
            b'/' => of("/", "/", Naming::Unnamed),
            b';' => of(";", ";", Naming::BareIfEmpty),
            b'?' => of("?", "&", Naming::Named),
            b'&' => of("&", "&", Naming::Named),
            _ => return Some((of("", ",", Naming::Unnamed), inside)),
        };
        Some((operator, &inside[1..]))
    }
}

/// The places in a topic that a match may have come to.
#[derive(Debug)]
struct MatchPositions(Box<[bool]>);

impl MatchPositions {
    fn empty(len: usize) -> Self {
        Self(vec![false; len + 1].into())
    }

    fn union(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    /// Behind `text`, wherever it stands at one of these.
    fn after_text(&self, text: &str, topic: &[u8]) -> Self {
        let mut positions = Self::empty(topic.len());
        for at in 0..=topic.len() {
            if self.0[at] && topic[at..].starts_with(text.as_bytes()) {
                positions.0[at + text.len()] = true;
            }
        }
        positions
    }

    /// Behind any number of characters of a class, percent-encoded ones among them, up to a
    /// maximum.
    fn after_run(&self, class: impl Fn(u8) -> bool, max: Option<u32>, topic: &[u8]) -> Self {
        let mut positions = Self::empty(topic.len());
        // How many more characters may follow at each place, at best; none is a place not come to.
        let mut left: Vec<Option<u32>> = vec![None; topic.len() + 1];
        for at in 0..=topic.len() {
            if self.0[at] {
                left[at] = Some(max.unwrap_or(u32::MAX));
            }
            let Some(more) = left[at] else { continue };
            positions.0[at] = true;
            let (next, characters) = match &topic[at..] {
                [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    (at + 3, u32::from(!is_continuation(*high)))
                }
                [byte, ..] if class(*byte) => (at + 1, 1),
                _ => continue,
            };
            // u32::MAX is more than any topic has.
            if let Some(more) = more.checked_sub(characters) {
                left[next] = left[next].max(Some(more));
            }
        }
        positions
    }
}

/// RFC 6570 §2.4.1: below 10,000, and not 0 in front.
fn parse_max(text: &str) -> Option<u32> {
    let is_number = (1..=4).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && !text.starts_with('0');
    is_number.then(|| text.parse().ok()).flatten()
}

/// RFC 6570 §2.3.
fn is_name(name: &str) -> bool {
    let mut rest = name.as_bytes();
    let mut is_after_dot = true;
    while let [byte, after @ ..] = rest {
        (is_after_dot, rest) = match (byte, after) {
            (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_', _) => (false, after),
            (b'%', [high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (false, after)
            }
            (b'.', _) if !is_after_dot => (true, after),
            _ => return false,
        };
    }
    !is_after_dot
}

/// Whether a byte that is written with this digit first is none of a character's first (RFC 3629
/// §3).
fn is_continuation(high: u8) -> bool {
    matches!(high, b'8' | b'9' | b'A' | b'B' | b'a' | b'b')
}

/// RFC 3986 §2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// RFC 3986 §2.2.
fn is_reserved(byte: u8) -> bool {
    b":/?#[]@!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests;
