//! Locations of a server in the order in which nginx finds them.
//!
//! nginx takes an exact location, else the longest prefix; unless that has `^~`, the first regular
//! expression that matches goes before it. Within an expression it looks for the nested ones once
//! that matches, so those stand just before it here.

use penstock_config::PathRegex;

use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::values;
use crate::directives::DirectiveId;
use crate::draft::DraftTable;
use crate::toml_value::TomlTable;

/// The paths of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathRule {
    Any,
    Exact(String),
    /// All paths below `/a/`, with its final slash.
    Below(String),
    /// All paths that begin so; no final slash.
    Starts(String),
    Regex(String),
}

impl PathRule {
    /// The rule of a prefix.
    pub(super) fn prefix(path: &str) -> Self {
        match path {
            "/" => Self::Any,
            path if path.ends_with('/') => Self::Below(path.to_owned()),
            path => Self::Starts(path.to_owned()),
        }
    }

    /// Writes `path` of a route.
    pub(super) fn write(&self, route: &mut DraftTable) {
        let keys = &mut route.keys;
        match self {
            Self::Any => {}
            Self::Regex(regex) => keys.set("path", TomlTable::with("regex", regex.as_str())),
            Self::Starts(path) => {
                let regex = format!("^{}", values::escape(path));
                keys.set("path", TomlTable::with("regex", regex));
            }
            Self::Exact(path) | Self::Below(path) if !is_plain(path) => {
                let end = if matches!(self, Self::Exact(_)) {
                    "$"
                } else {
                    ""
                };
                let regex = format!("^{}{end}", values::escape(path));
                keys.set("path", TomlTable::with("regex", regex));
            }
            Self::Exact(path) => keys.set("path", path.as_str()),
            Self::Below(path) => keys.set("path", format!("{path}*")),
        }
    }

    /// The rule as an item of `match.path`.
    pub(super) fn as_condition(&self) -> String {
        match self {
            Self::Any => "/*".to_owned(),
            Self::Regex(regex) => format!("~{regex}"),
            Self::Starts(path) => format!("~^{}", values::escape(path)),
            Self::Exact(path) if is_plain(path) => path.clone(),
            Self::Exact(path) => format!("~^{}$", values::escape(path)),
            Self::Below(path) if is_plain(path) => format!("{path}*"),
            Self::Below(path) => format!("~^{}", values::escape(path)),
        }
    }

    /// The expression, where the rule is one.
    pub(super) fn regex(&self) -> Option<&str> {
        match self {
            Self::Regex(regex) => Some(regex),
            _ => None,
        }
    }

    /// The prefix without its final slash, as `strip_prefix` has it.
    pub(super) fn strip_prefix(&self) -> Option<&str> {
        match self {
            Self::Below(path) => Some(path.trim_end_matches('/')),
            Self::Starts(path) => Some(path.as_str()),
            _ => None,
        }
        .filter(|prefix| prefix.starts_with('/') && prefix.len() > 1)
    }
}

/// Whether a path may stand in a route as it is.
fn is_plain(path: &str) -> bool {
    path.starts_with('/') && !path.contains(['*', '$', '~', '%', '{', '\\']) && !path.contains("//")
}

/// A location with the blocks around it.
#[derive(Debug, Clone)]
pub(super) struct NginxLocation<'a> {
    pub(super) id: DirectiveId,
    pub(super) rule: PathRule,
    pub(super) scope: NginxScope<'a>,
    pub(super) rank: Rank,
    /// The locations around that a request must match as well, the innermost first.
    pub(super) within: Vec<OuterRule>,
    /// Why its expression cannot be written.
    pub(super) problem: Option<String>,
    compiled: Option<PathRegex>,
    /// The locations within an expression, in their order.
    nested: Vec<Self>,
}

/// The paths of a location around others.
#[derive(Debug, Clone)]
pub(super) struct OuterRule {
    pub(super) rule: PathRule,
    compiled: Option<PathRegex>,
}

/// The order of locations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Exact,
    Nested,
    Strong,
    Regex,
    Prefix,
}

/// The locations of a server, and those with names.
#[derive(Debug, Default)]
pub(super) struct LocationTable<'a> {
    pub(super) ordered: Vec<NginxLocation<'a>>,
    pub(super) named: Vec<(&'a str, NginxLocation<'a>)>,
}

impl<'a> LocationTable<'a> {
    /// Collects the locations of a server's block.
    pub(super) fn collect(scope: &NginxScope<'a>) -> Self {
        let mut table = Self::default();
        let mut found = Vec::new();
        table.add_block(scope, &[], &mut found);
        append_in_order(found, &mut table.ordered);
        table
    }

    /// Adds the locations of a block; those within an expression to that.
    fn add_block(
        &mut self,
        scope: &NginxScope<'a>,
        outer: &[OuterRule],
        found: &mut Vec<NginxLocation<'a>>,
    ) {
        for directive in scope.own().iter().filter(|it| it.name == "location") {
            let inner = scope.within(directive.children());
            let mut location = location(directive, inner, outer);
            let scope = location.scope.clone();
            let own = OuterRule {
                rule: location.rule.clone(),
                compiled: location.compiled.clone(),
            };
            let mut around = vec![own];
            let is_regex = location.rule.regex().is_some();
            let kept = outer
                .iter()
                .filter(|it| is_regex || it.rule.regex().is_some());
            around.extend(kept.cloned());
            match is_regex {
                true => self.add_block(&scope, &around, &mut location.nested),
                false => self.add_block(&scope, &around, found),
            }
            match directive.arg(0).starts_with('@') {
                true => self.named.push((directive.arg(0), location)),
                false => found.push(location),
            }
        }
    }

    /// The location with a name.
    pub(super) fn named(&self, name: &str) -> Option<&NginxLocation<'a>> {
        self.named
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, location)| location)
    }

    /// The location that nginx would take for a path without signs of a template.
    pub(super) fn for_path(&self, path: &str) -> Option<&NginxLocation<'a>> {
        let path = path.split('?').next().unwrap_or_default();
        let matches = |location: &NginxLocation<'_>| {
            let around = &location.within;
            rule_matches(&location.rule, location.compiled.as_ref(), path)
                && around
                    .iter()
                    .all(|it| rule_matches(&it.rule, it.compiled.as_ref(), path))
        };
        self.ordered.iter().find(|location| matches(location))
    }
}

/// Whether a path is one of a rule, whose expression has been compiled.
fn rule_matches(rule: &PathRule, compiled: Option<&PathRegex>, path: &str) -> bool {
    match rule {
        PathRule::Any => true,
        PathRule::Exact(own) => own == path,
        PathRule::Below(own) | PathRule::Starts(own) => path.starts_with(own.as_str()),
        PathRule::Regex(_) => compiled.is_some_and(|regex| regex.is_match(path.as_bytes())),
    }
}

/// Adds locations in the order in which nginx finds them.
fn append_in_order<'a>(mut found: Vec<NginxLocation<'a>>, ordered: &mut Vec<NginxLocation<'a>>) {
    let mut strong: Vec<String> = Vec::new();
    for location in found.iter().filter(|it| it.rank == Rank::Strong) {
        strong.extend(location.rule.strip_prefix().map(str::to_owned));
    }
    // A longer prefix below one with `^~` has to be looked at before it.
    for location in found.iter_mut().filter(|it| it.rank == Rank::Prefix) {
        let below = location.rule.strip_prefix().unwrap_or_default();
        let mut strong = strong.iter().take(MAX_STRONG);
        if strong.any(|outer| below.starts_with(outer.as_str())) {
            location.rank = Rank::Strong;
        }
    }
    let length = |rule: &PathRule| match rule {
        PathRule::Exact(path) | PathRule::Below(path) | PathRule::Starts(path) => path.len(),
        PathRule::Any | PathRule::Regex(_) => 0,
    };
    found.sort_by_key(|location| {
        let longest = match location.rank {
            Rank::Strong | Rank::Prefix => length(&location.rule),
            // The expressions of the deepest block come first.
            Rank::Nested => location.within.first().map_or(0, |it| length(&it.rule)),
            Rank::Exact | Rank::Regex => 0,
        };
        (location.rank, usize::MAX - longest)
    });
    for mut location in found {
        append_in_order(std::mem::take(&mut location.nested), ordered);
        ordered.push(location);
    }
}

/// Most locations with `^~` that others are compared with.
const MAX_STRONG: usize = 500;

fn location<'a>(
    directive: &'a NginxDirective,
    scope: NginxScope<'a>,
    outer: &[OuterRule],
) -> NginxLocation<'a> {
    let (sign, path) = match directive.args.as_slice() {
        [path] => match ["~*", "^~", "=", "~"]
            .iter()
            .find(|sign| path.starts_with(**sign))
        {
            Some(sign) => (*sign, &path[sign.len()..]),
            None => ("", path.as_str()),
        },
        [sign, path, ..] => (sign.as_str(), path.as_str()),
        [] => ("", "/"),
    };
    let mut problem = None;
    let mut regex = |ignores_case| {
        values::regex(path, ignores_case).unwrap_or_else(|why| {
            problem = Some(why);
            String::new()
        })
    };
    let (rank, rule) = match sign {
        "=" => (Rank::Exact, PathRule::Exact(path.to_owned())),
        "^~" => (Rank::Strong, PathRule::prefix(path)),
        "~" => (Rank::Regex, PathRule::Regex(regex(false))),
        "~*" => (Rank::Regex, PathRule::Regex(regex(true))),
        _ => (Rank::Prefix, PathRule::prefix(path)),
    };
    let is_in_regex = |it: &OuterRule| it.rule.regex().is_some();
    let is_nested = rank == Rank::Regex && outer.first().is_some_and(|it| !is_in_regex(it));
    let within = outer
        .iter()
        .filter(|it| rank == Rank::Regex || is_in_regex(it));
    NginxLocation {
        id: directive.id,
        scope,
        rank: if is_nested { Rank::Nested } else { rank },
        within: within.cloned().collect(),
        nested: Vec::new(),
        compiled: rule
            .regex()
            .and_then(|regex| PathRegex::new(&regex.replace("$${", "${")).ok()),
        problem,
        rule,
    }
}
