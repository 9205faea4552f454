//! Maintenance: a site, or all of them, answers 503 to all but some clients.
//!
//! Switched by `penstock maintenance` through the admin API; asked by the router of `edge` before it
//! looks for a route. The page is that of the site for 503.
//!
//! # Invariants
//! - The switch lives as long as the server: a reload does not change it.
//! - Redirects to HTTPS and challenges of ACME work as before.
//! - While it is off everywhere, a request costs one load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_exchange::{AddressSet, Fault, FaultKind};
use penstock_sys::net::PeerAddress;
use serde::{Deserialize, Serialize};

/// The switch of a server.
#[derive(Debug, Default)]
pub struct Maintenance {
    is_on: AtomicBool,
    rules: ArcSwap<Rules>,
    refused: AtomicU64,
}

/// What maintenance is like for a site, or for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceRule {
    /// The host of the site, as the configuration writes it; `*` for the site of any host. `None`
    /// for all sites.
    pub site: Option<String>,
    /// Networks whose clients are served.
    pub allow: Vec<String>,
    /// When clients may come again.
    pub retry_after_seconds: u64,
}

/// Maintenance now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MaintenanceSnapshot {
    /// The rules that are on; empty where all sites are served.
    pub rules: Vec<MaintenanceRule>,
    /// Requests that were refused since the start.
    pub refused: u64,
}

/// All that is on, by site.
#[derive(Debug, Default)]
struct Rules(BTreeMap<Option<String>, CompiledRule>);

#[derive(Debug, Clone)]
struct CompiledRule {
    rule: Arc<MaintenanceRule>,
    allow: Option<Arc<AddressSet>>,
}

impl Maintenance {
    /// Switches it on for the site of a rule, or changes it there.
    ///
    /// # Errors
    /// The network that is none.
    pub fn switch_on(&self, rule: MaintenanceRule) -> Result<(), String> {
        let allow = match rule.allow.is_empty() {
            true => None,
            false => Some(Arc::new(AddressSet::parse(&rule.allow)?)),
        };
        let rule = Arc::new(rule);
        self.rules.rcu(|rules| {
            let (rule, allow) = (Arc::clone(&rule), allow.clone());
            let mut changed = rules.0.clone();
            changed.insert(rule.site.clone(), CompiledRule { rule, allow });
            Rules(changed)
        });
        self.is_on.store(true, Ordering::Release);
        Ok(())
    }

    /// Switches it off for a site, or without one for all sites and everywhere. Whether it was on.
    pub fn switch_off(&self, site: Option<&str>) -> bool {
        let before = self.rules.rcu(|rules| {
            let mut changed = rules.0.clone();
            match site {
                Some(site) => drop(changed.remove(&Some(site.to_owned()))),
                None => changed.clear(),
            }
            Rules(changed)
        });
        let is_on = !self.rules.load().0.is_empty();
        self.is_on.store(is_on, Ordering::Release);
        match site {
            Some(site) => before.0.contains_key(&Some(site.to_owned())),
            None => !before.0.is_empty(),
        }
    }

    /// The rules that are on.
    #[must_use]
    pub fn snapshot(&self) -> MaintenanceSnapshot {
        let rules = self.rules.load();
        let rules = rules.0.values().map(|it| MaintenanceRule::clone(&it.rule));
        MaintenanceSnapshot {
            rules: rules.collect(),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Whether it is on for some site.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The refusal of a client of the site with these hosts; `None` if it is served. The rule of the
    /// site itself comes before that of all sites.
    #[must_use]
    pub fn refusal(&self, hosts: &[String], client: PeerAddress) -> Option<Fault> {
        let rules = self.rules.load();
        let of_site = hosts
            .iter()
            .find_map(|host| rules.0.get(&Some(host.clone())));
        let found = of_site.or_else(|| rules.0.get(&None))?;
        if found.allow.as_ref().is_some_and(|set| set.covers(client)) {
            return None;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let seconds = found.rule.retry_after_seconds.to_string();
        let fault = Fault::new(FaultKind::Maintenance, "the site is in maintenance");
        Some(fault.with_field("Retry-After", &seconds))
    }
}

impl MaintenanceRule {
    /// As told by a command, with a time after which clients may come again.
    #[must_use]
    pub fn new(site: Option<String>, allow: Vec<String>, retry_after: Duration) -> Self {
        Self {
            site,
            allow,
            retry_after_seconds: retry_after.as_secs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn client(address: &str) -> PeerAddress {
        PeerAddress::Tcp(format!("{address}:1").parse().unwrap())
    }

    fn retry_after(switch: &Maintenance, hosts: &[&str], from: &str) -> Option<String> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let fault = switch.refusal(&hosts, client(from))?;
        let value = fault.fields.as_ref()?.get("Retry-After")?.to_vec();
        Some(String::from_utf8(value).unwrap())
    }

    #[test]
    fn a_site_has_its_own_rule_or_that_of_all() {
        let switch = Maintenance::default();
        let rule = |site: Option<&str>, allow: &[&str], seconds| {
            let allow = allow.iter().map(|text| (*text).to_owned()).collect();
            MaintenanceRule::new(site.map(str::to_owned), allow, MINUTE * seconds)
        };
        assert!(!switch.is_on());
        switch
            .switch_on(rule(Some("a.test"), &["10.0.0.0/8"], 2))
            .unwrap();
        for (hosts, from, expected) in [
            (&["a.test", "b.test"][..], "192.0.2.1", Some("120")),
            (&["b.test", "a.test"], "192.0.2.1", Some("120")),
            (&["a.test"], "10.1.1.1", None),
            (&["c.test"], "192.0.2.1", None),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(
                retry_after(&switch, hosts, from),
                expected,
                "{hosts:?} {from}"
            );
        }
        switch.switch_on(rule(None, &[], 1)).unwrap();
        assert_eq!(
            retry_after(&switch, &["c.test"], "10.1.1.1").as_deref(),
            Some("60")
        );
        assert_eq!(retry_after(&switch, &["a.test"], "10.1.1.1"), None);
        assert_eq!(switch.snapshot().refused, 3);
        assert!(switch.switch_off(Some("a.test")));
        assert!(!switch.switch_off(Some("a.test")));
        assert_eq!(
            retry_after(&switch, &["a.test"], "10.1.1.1").as_deref(),
            Some("60")
        );
        let sites: Vec<_> = switch
            .snapshot()
            .rules
            .into_iter()
            .map(|it| it.site)
            .collect();
        assert_eq!(sites, [None]);
        assert!(switch.switch_off(None) && !switch.is_on());
        let error = switch
            .switch_on(rule(None, &["10.0.0.0/99"], 1))
            .unwrap_err();
        assert!(error.contains("10.0.0.0/99"), "{error}");
        assert!(!switch.is_on());
    }
}
