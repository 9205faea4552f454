//! Builds the rules about who may use a route, in the order in which they are asked.
//!
//! Used by `wiring`, which puts rates and preflights between the networks and the other rules.

use std::sync::Arc;

use penstock_config::{Config, JwtAuth, JwtKeys, Route, Satisfy, Secret};
use penstock_exchange::Handler;
use penstock_rules::basic_auth::users_with_unusable_hashes;
use penstock_rules::{
    AccessRule, AdmissionHandler, AdmissionRule, BasicAuthRule, ClientCertificateRule, CountedRule,
    FailedAttempts, ForwardAuthRule, JwtRule, SignedUrlRule,
};
use penstock_tokens::{TokenKeys, Verifier};

use crate::components::{Components, PasswordVerification};
use crate::key_sets::KeySets;
use crate::wiring::upstream_handler;

/// The handlers of a route's rules: at most one before all others, and at most one behind rates
/// and preflights.
#[derive(Debug, Default)]
pub(crate) struct AdmissionHandlers {
    pub(crate) first: Option<Arc<dyn Handler>>,
    pub(crate) second: Option<Arc<dyn Handler>>,
}

type Rules = Vec<Arc<dyn AdmissionRule>>;

/// The handlers of a route's rules. With `satisfy = "any"` only `deny` comes first.
pub(crate) fn admission_handlers(
    route_name: &str,
    route: &Route,
    components: &Components,
    key_sets: &KeySets,
) -> Result<AdmissionHandlers, String> {
    let mut first = Rules::new();
    let mut second = Rules::new();
    let access = |allow: &[String], deny: &[String]| {
        let rule = AccessRule::new(allow, deny)?;
        Ok::<_, String>(rule.map(|rule| Arc::new(rule) as Arc<dyn AdmissionRule>))
    };
    match route.satisfy {
        Satisfy::All => first.extend(access(&route.allow, &route.deny)?),
        Satisfy::Any => {
            first.extend(access(&[], &route.deny)?);
            second.extend(access(&route.allow, &[])?);
        }
    }
    second.extend(proofs(route, components, key_sets)?);
    let handler = |rules: Rules, satisfy| {
        let counts = &components.rule_counts;
        let counted = rules
            .into_iter()
            .map(|rule| Arc::new(CountedRule::new(rule, counts, route_name)) as _);
        let rules: Rules = counted.collect();
        let handler = (!rules.is_empty()).then(|| AdmissionHandler::new(rules, satisfy));
        handler.map(|handler| Arc::new(handler) as Arc<dyn Handler>)
    };
    Ok(AdmissionHandlers {
        first: handler(first, Satisfy::All),
        second: handler(second, route.satisfy),
    })
}

/// The rules that ask a client for a proof; those that cost least come first.
fn proofs(route: &Route, components: &Components, key_sets: &KeySets) -> Result<Rules, String> {
    let mut rules = Rules::new();
    if route.client_certificate {
        rules.push(Arc::new(ClientCertificateRule));
    }
    if let Some(rule) = &route.signed_url {
        rules.push(Arc::new(SignedUrlRule::new(rule)));
    }
    if let Some(rule) = &route.jwt {
        let (keys, name) = token_keys(rule, key_sets)?;
        let failures = failed_attempts(components);
        rules.push(Arc::new(JwtRule::new(rule, keys, &name, failures)));
    }
    if let Some(rule) = &route.basic_auth {
        let PasswordVerification { pool, verified } = components.passwords.clone();
        let failures = failed_attempts(components);
        let rule = BasicAuthRule::new(rule, failures, pool, verified)?;
        rules.push(Arc::new(rule));
    }
    if let Some(rule) = &route.forward_auth {
        let upstream = components.upstreams.get(&rule.url.upstream_name());
        let upstream = upstream.ok_or("forward_auth has no upstream")?;
        let service = upstream_handler(upstream, route);
        rules.push(Arc::new(ForwardAuthRule::new(rule, service)));
    }
    Ok(rules)
}

/// The keys of a route's tokens, with a name for messages.
///
/// # Errors
/// A key that is none.
pub(crate) fn token_keys(
    rule: &JwtAuth,
    key_sets: &KeySets,
) -> Result<(TokenKeys, String), String> {
    match &rule.keys {
        JwtKeys::Set(source) => Ok((TokenKeys::Set(key_sets.set_of(source)), source.to_string())),
        JwtKeys::Single { key, algorithm } => {
            let verifier = single_key(key, algorithm.as_deref())?;
            Ok((TokenKeys::Single(Arc::new(verifier)), "jwt.key".to_owned()))
        }
    }
}

/// Users whose passwords cannot be verified, each with its place.
pub(crate) fn validate_passwords(config: &Config) -> Vec<String> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let rules = routes.filter_map(|route| Some((route, route.basic_auth.as_ref()?)));
    let wrong = rules.flat_map(|(route, rule)| {
        let users = users_with_unusable_hashes(rule);
        users.map(|user| {
            format!(
                "route {}: basic_auth: the hash of `{user}` is broken, or takes too much time or \
                 memory: `htpasswd -B` makes another",
                route.path
            )
        })
    });
    wrong.collect()
}

/// Errors in the keys of `jwt` tables, each with its place.
pub(crate) fn validate_token_keys(config: &Config) -> Vec<String> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let wrong = routes.filter_map(|route| match &route.jwt.as_ref()?.keys {
        JwtKeys::Set(_) => None,
        JwtKeys::Single { key, algorithm } => {
            let error = single_key(key, algorithm.as_deref()).err()?;
            Some(format!("route {}: {error}", route.path))
        }
    });
    wrong.collect()
}

fn single_key(key: &Secret, algorithm: Option<&str>) -> Result<Verifier, String> {
    let verifier = Verifier::from_key_text(key.expose(), algorithm);
    verifier.map_err(|error| format!("jwt.key: {error}"))
}

/// The failed attempts at all routes.
fn failed_attempts(components: &Components) -> FailedAttempts {
    FailedAttempts::new(components.rates.table("failed attempts"))
}
