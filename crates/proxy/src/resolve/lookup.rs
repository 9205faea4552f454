//! Queries the DNS for addresses of a host and targets of a service. Called by `resolve` on the
//! control loop.
//!
//! Hosts in the hosts file are not looked up elsewhere, as with `files dns` in nsswitch.conf(5).
//! All others use the system's name servers and search list.
//!
//! # Invariants
//!
//! - A look-up takes at most [`LOOKUP_TIMEOUT`].
//! - Every query is sent anew: the caller knows when an answer has expired.

use std::net::IpAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use hickory_resolver::config::{ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Hosts, ResolverBuilder, TokioResolver};
use penstock_config::{ServerAddr, UpstreamServer};
use penstock_runtime::clock;
use thiserror::Error;

use super::targets::{
    DnsTarget, SrvTarget, host_and_port, merge_address_families, targets_of_host,
    targets_of_services,
};

#[derive(Debug, Clone)]
pub(crate) enum DnsSource {
    /// The name servers and the hosts file of the system.
    System,
    /// These name servers, without a hosts file.
    #[cfg(test)]
    Custom(ResolverConfig),
}

/// Resolves names.
#[derive(Debug)]
pub(super) struct DnsResolver {
    source: DnsSource,
    loaded: Option<LoadedResolver>,
}

/// The current targets of a name.
#[derive(Debug)]
pub(super) struct LookupAnswer {
    pub(super) targets: Vec<DnsTarget>,
    /// How long the answer is valid.
    pub(super) ttl: Duration,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum LookupError {
    #[error("not a name: {0}")]
    BadName(String),
    #[error("no such name")]
    NoSuchName,
    #[error("the name has no {0} record")]
    NoRecords(&'static str),
    #[error("no target of the service has an address")]
    NoTargets,
    #[error("no answer within {LOOKUP_TIMEOUT:?}")]
    Timeout,
    #[error("name servers: {0}")]
    Failed(NetError),
}

#[derive(Debug)]
struct LoadedResolver {
    loaded_at: Instant,
    resolver: TokioResolver,
    hosts: Hosts,
}

impl DnsResolver {
    pub(super) fn new(source: DnsSource) -> Self {
        Self {
            source,
            loaded: None,
        }
    }

    /// Resolves the name of `server`, which has the defaults for what the DNS does not specify;
    /// `known` are its previous targets.
    ///
    /// # Errors
    /// No answer, or an empty one.
    pub(super) async fn lookup(
        &mut self,
        server: &UpstreamServer,
        known: &[DnsTarget],
    ) -> Result<LookupAnswer, LookupError> {
        let loaded = self.load()?;
        let lookup = async {
            match &server.address {
                ServerAddr::Name { host, port } => {
                    let (addresses, ttl) = loaded.lookup_addresses(host, *port, known).await?;
                    let (weight, backup) = (server.weight, server.backup);
                    let targets = targets_of_host((host, *port), &addresses, weight, backup);
                    Ok(LookupAnswer { targets, ttl })
                }
                ServerAddr::Srv(service) => {
                    loaded.lookup_service(service, server.backup, known).await
                }
                address => Err(LookupError::BadName(address.to_string())),
            }
        };
        let answer = clock::timeout(LOOKUP_TIMEOUT, lookup).await;
        let answer = answer.unwrap_or(Err(LookupError::Timeout));
        if answer.is_err() {
            // The system's files may be the cause: the next query reads them again.
            self.loaded = None;
        }
        answer
    }

    /// Reads two small local files occasionally, which is acceptable on the control loop: it serves
    /// no clients.
    fn load(&mut self) -> Result<&LoadedResolver, LookupError> {
        let now = clock::now();
        let is_recent =
            |it: &LoadedResolver| now.saturating_duration_since(it.loaded_at) <= MAX_FILES_AGE;
        let loaded = match self.loaded.take().filter(is_recent) {
            Some(loaded) => loaded,
            None => LoadedResolver::new(&self.source, now).map_err(LookupError::Failed)?,
        };
        Ok(self.loaded.insert(loaded))
    }
}

impl LoadedResolver {
    fn new(source: &DnsSource, now: Instant) -> Result<Self, NetError> {
        let (mut builder, hosts) = match source {
            DnsSource::System => {
                let builder = TokioResolver::builder_tokio().or_else(|error| match error {
                    // Without name servers the hosts file still applies.
                    NetError::Io(_) => Ok(builder_of(ResolverConfig::from_parts(
                        None,
                        Vec::new(),
                        Vec::new(),
                    ))),
                    error => Err(error),
                })?;
                (builder, Hosts::from_system().unwrap_or_default())
            }
            #[cfg(test)]
            DnsSource::Custom(config) => (builder_of(config.clone()), Hosts::default()),
        };
        let options = builder.options_mut();
        options.use_hosts_file = ResolveHosts::Never;
        options.timeout = NAME_SERVER_TIMEOUT;
        options.attempts = 2;
        options.cache_size = 0;
        Ok(Self {
            loaded_at: now,
            resolver: builder.build()?,
            hosts,
        })
    }

    async fn lookup_service(
        &self,
        name: &str,
        is_backup: bool,
        known: &[DnsTarget],
    ) -> Result<LookupAnswer, LookupError> {
        self.resolver.clear_cache();
        let answer = self.resolver.srv_lookup(to_name(name)?).await;
        let answer = answer.map_err(|error| lookup_error(error, "SRV"))?;
        let mut ttl = answer_ttl(&answer);
        let mut services = Vec::new();
        for record in answer.answers() {
            let RData::SRV(record) = &record.data else {
                continue;
            };
            // RFC 2782: the target "." means that the service does not exist here.
            if record.target.is_root() {
                continue;
            }
            // Already fully qualified: the search list does not apply.
            let name = record.target.to_utf8();
            let answer = self.lookup_addresses(&name, record.port, known).await;
            // A target that cannot be resolved now does not affect the others.
            let addresses = match answer {
                Ok((addresses, its_ttl)) => {
                    ttl = ttl.min(its_ttl);
                    addresses
                }
                Err(_) => known_addresses(known, &name, record.port),
            };
            services.push(SrvTarget {
                priority: record.priority,
                weight: record.weight,
                host: name,
                port: record.port,
                addresses,
            });
        }
        let targets = targets_of_services(&services, is_backup);
        if targets.is_empty() {
            return Err(LookupError::NoTargets);
        }
        Ok(LookupAnswer { targets, ttl })
    }

    /// Looks up the addresses of `host`; `known` ones stand in for a family without an answer.
    async fn lookup_addresses(
        &self,
        host: &str,
        port: u16,
        known: &[DnsTarget],
    ) -> Result<(Vec<IpAddr>, Duration), LookupError> {
        let name = to_name(host)?;
        let of_file = [RecordType::A, RecordType::AAAA]
            .map(|kind| (self.hosts).lookup_static_host(&Query::query(name.clone(), kind)));
        let of_file: Vec<_> = of_file
            .iter()
            .flatten()
            .flat_map(answer_addresses)
            .collect();
        if !of_file.is_empty() {
            let all = merge_address_families(&[], Some(of_file), Some(Vec::new()));
            return Ok((all, MAX_FILES_AGE));
        }
        let resolver = &self.resolver;
        resolver.clear_cache();
        let v4 = resolver.ipv4_lookup(name.clone());
        let (v4, v6) = both_families(v4, resolver.ipv6_lookup(name)).await;
        let ttl = [&v4, &v6].into_iter().flatten().map(answer_ttl).min();
        let known = known_addresses(known, host, port);
        let merged = match (&v4, &v6) {
            (Err(one), Err(other)) => {
                let error = match one.is_no_records_found() {
                    true => other,
                    false => one,
                };
                return Err(lookup_error(error.clone(), "A or AAAA"));
            }
            // The search list led to two different names: the first one is meant.
            (Ok(one), Ok(other)) if one.query().name() != other.query().name() => {
                merge_address_families(&known, family_addresses(&v4), Some(Vec::new()))
            }
            _ => merge_address_families(&known, family_addresses(&v4), family_addresses(&v6)),
        };
        if merged.is_empty() {
            return Err(LookupError::NoRecords("A or AAAA"));
        }
        Ok((merged, ttl.unwrap_or_default()))
    }
}

/// Waits for both families; a late one gets [`NAME_SERVER_TIMEOUT`] more once the other has
/// addresses.
async fn both_families(
    v4: impl Future<Output = Result<Lookup, NetError>>,
    v6: impl Future<Output = Result<Lookup, NetError>>,
) -> (Result<Lookup, NetError>, Result<Lookup, NetError>) {
    let (mut v4, mut v6) = (pin!(v4), pin!(v6));
    let rest = |late: Option<_>| late.unwrap_or(Err(NetError::Timeout));
    tokio::select! {
        first = v4.as_mut() => match first {
            Ok(_) => (first, rest(clock::timeout(NAME_SERVER_TIMEOUT, v6).await)),
            Err(_) => (first, v6.await),
        },
        first = v6.as_mut() => match first {
            Ok(_) => (rest(clock::timeout(NAME_SERVER_TIMEOUT, v4).await), first),
            Err(_) => (v4.await, first),
        },
    }
}

fn builder_of(config: ResolverConfig) -> ResolverBuilder<TokioRuntimeProvider> {
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
}

fn to_name(text: &str) -> Result<Name, LookupError> {
    // Not `IntoName`, which rejects what IDNA lacks: container names have underscores.
    Name::from_str_relaxed(text).map_err(|_| LookupError::BadName(text.to_owned()))
}

/// The addresses of one family; `None` without an answer.
fn family_addresses(answer: &Result<Lookup, NetError>) -> Option<Vec<IpAddr>> {
    match answer {
        Ok(lookup) => Some(answer_addresses(lookup).collect()),
        Err(error) => error.is_no_records_found().then(Vec::new),
    }
}

fn answer_addresses(lookup: &Lookup) -> impl Iterator<Item = IpAddr> {
    let records = lookup.answers().iter();
    records.filter_map(|record| record.data.ip_addr())
}

fn known_addresses(known: &[DnsTarget], host: &str, port: u16) -> Vec<IpAddr> {
    let name = host_and_port(host, port);
    let of_host = known.iter().filter(|target| target.host == name);
    let addresses = of_host.flat_map(|target| [Some(target.address), target.alternate]);
    addresses.flatten().map(|address| address.ip()).collect()
}

fn answer_ttl(lookup: &Lookup) -> Duration {
    (lookup.valid_until()).saturating_duration_since(clock::now())
}

fn lookup_error(error: NetError, records: &'static str) -> LookupError {
    if error.is_nx_domain() {
        LookupError::NoSuchName
    } else if error.is_no_records_found() {
        LookupError::NoRecords(records)
    } else {
        LookupError::Failed(error)
    }
}

/// A silent name server costs this much before the next is asked.
const NAME_SERVER_TIMEOUT: Duration = Duration::from_secs(1);

/// More than the resolver's own attempts at three name servers and a search list take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum age of the hosts file and the list of name servers.
const MAX_FILES_AGE: Duration = Duration::from_secs(60);
