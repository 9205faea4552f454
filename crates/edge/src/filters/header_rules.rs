//! One table of changes to the fields of a header, and when it applies.
//!
//! # Invariants
//! - The order is `remove`, `replace`, `set`, `add`, `default`.
//! - A value that is made is a field value: no placeholder has a control character, and the
//!   configuration has checked the rest.

use std::borrow::Cow;

use penstock_config::{HeaderRules, Placeholder, ReplaceRule, Template, TemplatePart};
use penstock_exchange::field_policy::is_same_cgi_variable;
use penstock_exchange::{Fault, FaultKind};
use penstock_http::{FieldBlock, HeadWriter, RequestHead, Status};
use penstock_rules::{ConditionSet, RequestConditions, RequestFacts, TemplateValues, render};

/// The changes of one table, compiled.
#[derive(Debug)]
pub(super) struct CompiledHeaderRules {
    remove: Vec<String>,
    replace: Vec<(String, ReplaceRule)>,
    set: Vec<(String, Template)>,
    add: Vec<(String, Template)>,
    defaults: Vec<(String, Template)>,
    /// `None` for every request.
    conditions: Option<Box<RequestConditions>>,
    /// Statuses, and first digits of classes; empty for every response.
    statuses: Vec<u16>,
}

impl CompiledHeaderRules {
    /// Compiles the tables of a route.
    ///
    /// # Errors
    /// Names a condition or a network that cannot be compiled.
    pub(super) fn compile_all(
        tables: &[HeaderRules],
        named: &ConditionSet,
    ) -> Result<Vec<Self>, String> {
        let tables = tables.iter().filter(|rules| !rules.is_empty());
        tables.map(|rules| Self::compile(rules, named)).collect()
    }

    fn compile(rules: &HeaderRules, named: &ConditionSet) -> Result<Self, String> {
        // Named one by one, so that a new rule does not compile before it is applied.
        let HeaderRules {
            remove,
            set,
            add,
            defaults,
            replace,
            conditions,
            status,
        } = rules;
        let compiled = match conditions.is_empty() {
            true => None,
            false => Some(Box::new(RequestConditions::compile(conditions, named)?)),
        };
        Ok(Self {
            remove: remove.clone(),
            replace: replace.clone().into_iter().collect(),
            set: set.clone().into_iter().collect(),
            add: add.clone().into_iter().collect(),
            defaults: defaults.clone().into_iter().collect(),
            conditions: compiled,
            statuses: status.iter().copied().collect(),
        })
    }

    pub(super) fn is_unconditional(&self) -> bool {
        self.conditions.is_none()
    }

    /// Whether the table is for a request, by its normal path.
    pub(super) fn apply_to(&self, request: &RequestFacts<'_>, path: &[u8]) -> bool {
        let conditions = self.conditions.as_ref();
        conditions.is_none_or(|it| it.match_request(request, path))
    }

    pub(super) fn has_status(&self, status: Status) -> bool {
        let code = status.code();
        let is_it = |it: &u16| *it == code || *it == code / 100;
        self.statuses.is_empty() || self.statuses.iter().any(is_it)
    }

    /// The value that replaces all fields of a name.
    pub(super) fn set_value(&self, name: &str) -> Option<&Template> {
        let mut set = self.set.iter();
        let found = set.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// The fields whose values come from the rules.
    pub(super) fn made_names(&self) -> impl Iterator<Item = &str> {
        let made = self.set.iter().chain(&self.add).chain(&self.defaults);
        made.map(|(name, _)| name.as_str())
    }

    /// Every field that the rules name.
    pub(super) fn field_names(&self) -> impl Iterator<Item = &str> {
        let replaced = self.replace.iter().map(|(name, _)| name.as_str());
        let removed = self.remove.iter().map(String::as_str);
        removed.chain(replaced).chain(self.made_names())
    }

    fn removes_field(&self, name: &str) -> bool {
        let set = self.set.iter().map(|(name, _)| name);
        let mut dropped = self.remove.iter().chain(set);
        // A framework could read a name with an underscore as the one that a rule is about.
        let has_underscore = name.contains('_');
        dropped.any(|other| {
            other.eq_ignore_ascii_case(name) || has_underscore && is_same_cgi_variable(other, name)
        })
    }

    fn replacement(&self, name: &str) -> Option<&ReplaceRule> {
        let mut rules = self.replace.iter();
        let found = rules.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, rule)| rule)
    }

    /// Changes the fields of a response.
    pub(super) fn change_fields(&self, fields: &mut FieldBlock, values: &TemplateValues<'_>) {
        for name in &self.remove {
            fields.remove(name);
        }
        for (name, rule) in &self.replace {
            replace_values(fields, name, rule, values);
        }
        let mut text = Vec::new();
        for (name, value) in &self.set {
            // Names and texts were checked when they were compiled, placeholders by the parser.
            let _ = fields.set(name, render(value, values, &mut text));
        }
        for (name, value) in &self.add {
            let _ = fields.push(name, render(value, values, &mut text));
        }
        for (name, value) in &self.defaults {
            if !fields.contains(name) {
                let _ = fields.push(name, render(value, values, &mut text));
            }
        }
    }
}

/// Replaces parts of all values of a field, which then stand at the end.
fn replace_values(
    fields: &mut FieldBlock,
    name: &str,
    rule: &ReplaceRule,
    values: &TemplateValues<'_>,
) {
    let of_name = fields
        .iter()
        .filter(|(own, _)| own.eq_ignore_ascii_case(name));
    let old: Vec<Vec<u8>> = of_name.map(|(_, value)| value.to_vec()).collect();
    if !old.iter().any(|value| rule.regex.is_match(value)) {
        return;
    }
    fields.remove(name);
    for value in old {
        let _ = fields.push(name, &replace_parts(&value, rule, values));
    }
}

/// The value with every match of the expression replaced.
fn replace_parts<'v>(
    value: &'v [u8],
    rule: &ReplaceRule,
    values: &TemplateValues<'_>,
) -> Cow<'v, [u8]> {
    let replaced = rule.regex.replace_all(value, |captures, made| {
        for part in rule.with.parts() {
            match part {
                TemplatePart::Text(text) => made.extend_from_slice(text.as_bytes()),
                TemplatePart::Placeholder(Placeholder::Capture(group)) => {
                    let found = match group.parse() {
                        Ok(index) => captures.get(index),
                        Err(_) => captures.name(group),
                    };
                    made.extend_from_slice(found.map(|it| it.as_bytes()).unwrap_or_default());
                }
                TemplatePart::Placeholder(placeholder) => values.append(placeholder, made),
            }
        }
    });
    match replaced {
        Cow::Borrowed(value) => Cow::Borrowed(value),
        Cow::Owned(value) => Cow::Owned(value.trim_ascii().to_vec()),
    }
}

/// Writes a request's head for a target, as the rules change it.
///
/// # Errors
/// When the changed head breaks a rule: the configuration's fault, not the client's.
pub(super) fn write_head(
    head: &RequestHead,
    target: &str,
    rules: Option<&CompiledHeaderRules>,
    is_trusted: impl Fn(&str) -> bool,
    values: &TemplateValues<'_>,
) -> Result<RequestHead, Fault> {
    let is_removed = |name: &str| rules.is_some_and(|rules| rules.removes_field(name));
    let is_kept = |name: &str| !is_removed(name) && is_trusted(name);
    let is_plain = |name: &str| rules.is_none_or(|rules| rules.replacement(name).is_none());
    let mut writer = HeadWriter::with_kept_fields(head, head.method_str(), target, |name| {
        is_kept(name) && is_plain(name)
    });
    if let Some(rules) = rules {
        for (name, value) in head.fields() {
            if let Some(rule) = rules.replacement(name).filter(|_| is_kept(name)) {
                writer.push_field(name, &replace_parts(value, rule, values));
            }
        }
        let mut text = Vec::new();
        for (name, value) in rules.set.iter().chain(&rules.add) {
            writer.push_field(name, render(value, values, &mut text));
        }
        for (name, value) in &rules.defaults {
            let is_same = |other: &str| other.eq_ignore_ascii_case(name);
            let mut kept = head.fields().filter(|(other, _)| is_kept(other));
            let is_there = kept.any(|(other, _)| is_same(other))
                || rules
                    .set
                    .iter()
                    .chain(&rules.add)
                    .any(|(other, _)| is_same(other));
            if !is_there {
                writer.push_field(name, render(value, values, &mut text));
            }
        }
    }
    writer.finish().map_err(|error| {
        let cause = format!("the route's filters made the request invalid: {error}");
        Fault::new(FaultKind::Internal, cause)
    })
}
