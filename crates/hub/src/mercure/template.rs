//! URI templates (RFC 6570) as patterns: whether a topic could be an expansion of one.
//!
//! `selector` compiles a template once for all subscribers who name it; a topic is matched against it when
//! an update is published or a claim is checked. What must stay true: no template and no topic makes a
//! match cost more than (parts + variables) x length of the topic, since a match keeps the set of places
//! that it may have come to instead of trying one after the other; a text that is no template is a plain
//! string, never an error.
//!
//! All four levels of the RFC are known. A value may be anything that an expansion could give: a list's
//! commas count as part of it, and a variable may be undefined.

/// Variables of one template, in all its expressions: more than any real one has, and a bound on what a match
/// costs.
pub(super) const VARIABLES_MAX: usize = 32;

/// A compiled template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Template {
    /// The text before the first expression.
    prefix: Box<str>,
    /// From the first expression to the last.
    parts: Box<[Part]>,
    /// The text behind the last expression.
    suffix: Box<str>,
    /// Of all expressions.
    variables: usize,
}

/// Why a text is not matched as a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoTemplate {
    /// It has no expression, or one that breaks the grammar: a plain string.
    Plain,
    /// More than [`VARIABLES_MAX`].
    TooComplex,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<str>),
    Expression(Expression),
}

#[derive(Debug, PartialEq, Eq)]
struct Expression {
    operator: Operator,
    variables: Box<[Variable]>,
}

#[derive(Debug, PartialEq, Eq)]
struct Variable {
    name: Box<str>,
    /// `*`: the values of a list apart.
    explodes: bool,
    /// `:n`: its first characters only.
    characters_max: Option<u32>,
}

/// How an expression is written out (RFC 6570, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Operator {
    first: &'static str,
    separator: &'static str,
    naming: Naming,
    allows_reserved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    No,
    /// `name=value`.
    Yes,
    /// `name=value`, and only `name` for an empty value.
    BareIfEmpty,
}

impl Template {
    /// Compiles `text`.
    ///
    /// # Errors
    /// When it is no template, or too complex a one.
    pub(super) fn compile(text: &str) -> Result<Self, NoTemplate> {
        let mut parts = Vec::new();
        let mut variables = 0;
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (literal, expression) = rest.split_at(at);
            // A brace that closes nothing is caught here as well.
            let (inside, after) = expression
                .strip_prefix('{')
                .and_then(|open| open.split_once('}'))
                .ok_or(NoTemplate::Plain)?;
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.into()));
            }
            let expression = Expression::parse(inside).ok_or(NoTemplate::Plain)?;
            variables += expression.variables.len();
            parts.push(Part::Expression(expression));
            rest = after;
        }
        match variables {
            0 => return Err(NoTemplate::Plain),
            1..=VARIABLES_MAX => {}
            _ => return Err(NoTemplate::TooComplex),
        }
        let prefix = match parts.first() {
            Some(Part::Literal(prefix)) => {
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
            variables,
        })
    }

    /// What every topic that matches begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How many variables it has, of which each adds to what a match costs.
    pub(super) fn variables(&self) -> usize {
        self.variables
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
        let mut places = Places::start(middle.len());
        for part in &self.parts {
            places = match part {
                Part::Literal(text) => places.past(text, middle),
                Part::Expression(expression) => expression.past(&places, middle),
            };
            if places.is_empty() {
                return false;
            }
        }
        places.has(middle.len())
    }
}

impl Expression {
    fn parse(inside: &str) -> Option<Self> {
        let (operator, list) = Operator::split(inside)?;
        let variables: Option<Box<[Variable]>> = list.split(',').map(Variable::parse).collect();
        Some(Self {
            operator,
            variables: variables?,
        })
    }

    /// Where an expansion of this that begins in `places` may end. Variables keep their order and each may
    /// be undefined (RFC 6570 §3.2.1).
    fn past(&self, places: &Places, topic: &[u8]) -> Places {
        let operator = self.operator;
        let begun = places.past(operator.first, topic);
        let mut taken = Places::none(topic.len());
        for variable in &self.variables {
            let mut from = taken.past(operator.separator, topic);
            from.join(&begun);
            let values = variable.past(&from, operator, topic);
            taken.join(&values);
        }
        taken.join(places);
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
            characters_max,
        })
    }

    fn past(&self, from: &Places, operator: Operator, topic: &[u8]) -> Places {
        let class = |byte: u8| {
            is_unreserved(byte)
                || byte == b','
                || (operator.allows_reserved && is_reserved(byte))
                || (self.explodes && (byte == b'=' || operator.separator.as_bytes() == [byte]))
        };
        if operator.naming == Naming::No || self.explodes {
            return from.past_run(class, self.characters_max, topic);
        }
        let named = from.past(&self.name, topic);
        let valued = named.past("=", topic);
        let mut values = valued.past_run(class, self.characters_max, topic);
        if operator.naming == Naming::BareIfEmpty {
            values.join(&named);
        }
        values
    }
}

impl Operator {
    /// The operator of an expression and what follows it; `None` for those that the RFC keeps for later.
    fn split(inside: &str) -> Option<(Self, &str)> {
        let of = |first, separator, naming| Self {
            first,
            separator,
            naming,
            allows_reserved: false,
        };
        let reserved = |first| Self {
            allows_reserved: true,
            ..of(first, ",", Naming::No)
        };
        let operator = match inside.as_bytes().first()? {
            b'+' => reserved(""),
            b'#' => reserved("#"),
            b'.' => of(".", ".", Naming::No),
            b'/' => of("/", "/", Naming::No),
            b';' => of(";", ";", Naming::BareIfEmpty),
            b'?' => of("?", "&", Naming::Yes),
            b'&' => of("&", "&", Naming::Yes),
            _ => return Some((of("", ",", Naming::No), inside)),
        };
        Some((operator, &inside[1..]))
    }
}

/// The places in a topic that a match may have come to.
#[derive(Debug)]
struct Places(Box<[bool]>);

impl Places {
    fn none(len: usize) -> Self {
        Self(vec![false; len + 1].into())
    }

    fn start(len: usize) -> Self {
        let mut places = Self::none(len);
        places.add(0);
        places
    }

    fn add(&mut self, at: usize) {
        if let Some(place) = self.0.get_mut(at) {
            *place = true;
        }
    }

    fn has(&self, at: usize) -> bool {
        self.0.get(at).is_some_and(|place| *place)
    }

    fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }

    fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    /// Behind `text`, wherever it stands at one of these.
    fn past(&self, text: &str, topic: &[u8]) -> Self {
        let mut places = Self::none(topic.len());
        for at in (0..=topic.len()).filter(|&at| self.has(at)) {
            if topic[at..].starts_with(text.as_bytes()) {
                places.add(at + text.len());
            }
        }
        places
    }

    /// Behind any number of characters of a class, percent-encoded ones among them, up to a maximum.
    fn past_run(&self, class: impl Fn(u8) -> bool, max: Option<u32>, topic: &[u8]) -> Self {
        let mut places = Self::none(topic.len());
        // How many more characters may follow at each place, at best; none is a place not come to.
        let mut left: Vec<Option<u32>> = vec![None; topic.len() + 1];
        for at in 0..=topic.len() {
            if self.has(at) {
                left[at] = Some(max.unwrap_or(u32::MAX));
            }
            let Some(more) = left[at] else { continue };
            places.add(at);
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
        places
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

/// Whether a byte that is written with this digit first is none of a character's first (RFC 3629 §3).
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
