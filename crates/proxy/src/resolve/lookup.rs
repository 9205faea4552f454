//! Questions to the DNS: the addresses of a host, the targets of a service.
//!
//! Called by `resolve` on the control loop. Hosts of the hosts file are not asked for elsewhere, as
//! `files dns` in nsswitch.conf(5) has it; for all others the system's name servers and search list
//! are used. What must stay true: nothing waits longer than [`LOOKUP_TIME_MAX`]; each question goes out
//! anew, for the caller knows when an answer is too old.

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
use penstock_config::ServerAddr;
use penstock_runtime::clock;
use thiserror::Error;

use super::targets::{Family, Service, Target, host_name, merge, of_host, of_services};

/// Where answers come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The name servers and the hosts file of the system.
    System,
    /// These name servers, and no hosts file.
    #[cfg(test)]
    Given(ResolverConfig),
}

/// Asks for names.
#[derive(Debug)]
pub(super) struct Asker {
    source: Source,
    ready: Option<Ready>,
}

/// What a name stands for now.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) targets: Vec<Target>,
    /// For how long it may be believed.
    pub(super) ttl: Duration,
}

/// What servers made of a name are like, where the DNS does not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Likeness {
    pub(super) weight: u32,
    pub(super) backup: bool,
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
    #[error("no answer within {LOOKUP_TIME_MAX:?}")]
    Late,
    #[error("name servers: {0}")]
    Failed(NetError),
}

#[derive(Debug)]
struct Ready {
    made_at: Instant,
    resolver: TokioResolver,
    hosts: Hosts,
}

impl Asker {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            ready: None,
        }
    }

    /// What `name` stands for; `known` is what it stood for before.
    ///
    /// # Errors
    /// No answer, or one that names nothing.
    pub(super) async fn ask(
        &mut self,
        name: &ServerAddr,
        likeness: Likeness,
        known: &[Target],
    ) -> Result<Found, LookupError> {
        let ready = self.ready()?;
        let asking = async {
            match name {
                ServerAddr::Name { host, port } => ready.host(host, *port, likeness, known).await,
                ServerAddr::Srv(service) => ready.service(service, likeness, known).await,
                ServerAddr::Tcp(_) | ServerAddr::Unix(_) | ServerAddr::Joined(_) => {
                    Err(LookupError::BadName(name.to_string()))
                }
            }
        };
        let deadline = clock::now() + LOOKUP_TIME_MAX;
        let answer = clock::timeout_at(deadline, asking).await;
        let answer = answer.unwrap_or(Err(LookupError::Late));
        if answer.is_err() {
            // The next question reads the system's files again: they may be what was wrong.
            self.ready = None;
        }
        answer
    }

    /// Reads two small local files now and then: the control loop may do that, no client is on it.
    fn ready(&mut self) -> Result<&Ready, LookupError> {
        let now = clock::now();
        let is_old = |it: &Ready| now.saturating_duration_since(it.made_at) > FILES_TIME_MAX;
        let ready = match self.ready.take().filter(|it| !is_old(it)) {
            Some(ready) => ready,
            None => Ready::new(&self.source, now).map_err(LookupError::Failed)?,
        };
        Ok(self.ready.insert(ready))
    }
}

impl Ready {
    fn new(source: &Source, now: Instant) -> Result<Self, NetError> {
        let (mut builder, hosts) = match source {
            Source::System => {
                let builder = TokioResolver::builder_tokio().or_else(|error| match error {
                    // Without name servers there is still the hosts file.
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
            Source::Given(config) => (builder_of(config.clone()), Hosts::default()),
        };
        let options = builder.options_mut();
        options.use_hosts_file = ResolveHosts::Never;
        options.timeout = SERVER_TIME_MAX;
        options.attempts = 2;
        options.cache_size = 0;
        Ok(Self {
            made_at: now,
            resolver: builder.build()?,
            hosts,
        })
    }

    async fn host(
        &self,
        host: &str,
        port: u16,
        likeness: Likeness,
        known: &[Target],
    ) -> Result<Found, LookupError> {
        let (addresses, ttl) = self.addresses(host, port, known).await?;
        let Likeness { weight, backup } = likeness;
        Ok(Found {
            targets: of_host((host, port), &addresses, weight, backup),
            ttl,
        })
    }

    async fn service(
        &self,
        name: &str,
        likeness: Likeness,
        known: &[Target],
    ) -> Result<Found, LookupError> {
        self.resolver.clear_cache();
        let answer = self.resolver.srv_lookup(to_name(name)?).await;
        let answer = answer.map_err(|error| reason(error, "SRV"))?;
        let mut ttl = ttl(&answer);
        let mut services = Vec::new();
        for record in answer.answers() {
            let RData::SRV(record) = &record.data else {
                continue;
            };
            // RFC 2782: a target of "." says that there is no such service here.
            if record.target.is_root() {
                continue;
            }
            // It is whole already: no search list is asked for it.
            let name = record.target.to_utf8();
            let answer = self.addresses(&name, record.port, known).await;
            // One that cannot be resolved now leaves the others alone.
            let addresses = match answer {
                Ok((addresses, its_ttl)) => {
                    ttl = ttl.min(its_ttl);
                    addresses
                }
                Err(_) => known_addresses(known, &name, record.port),
            };
            services.push(Service {
                priority: record.priority,
                weight: record.weight,
                host: name,
                port: record.port,
                addresses,
            });
        }
        let targets = of_services(&services, likeness.backup);
        if targets.is_empty() {
            return Err(LookupError::NoTargets);
        }
        Ok(Found { targets, ttl })
    }

    /// The addresses of `host`; those that are `known` stand in for a family of which nothing was heard.
    async fn addresses(
        &self,
        host: &str,
        port: u16,
        known: &[Target],
    ) -> Result<(Vec<IpAddr>, Duration), LookupError> {
        let name = to_name(host)?;
        let of_file = [RecordType::A, RecordType::AAAA]
            .map(|kind| (self.hosts).lookup_static_host(&Query::query(name.clone(), kind)));
        let of_file: Vec<IpAddr> = of_file.iter().flatten().flat_map(addresses).collect();
        if !of_file.is_empty() {
            let all = merge(&[], Family::Found(of_file), Family::Nothing);
            return Ok((all, FILES_TIME_MAX));
        }
        let resolver = &self.resolver;
        resolver.clear_cache();
        let v4 = resolver.ipv4_lookup(name.clone());
        let (v4, v6) = both_families(v4, resolver.ipv6_lookup(name)).await;
        let ttl = [&v4, &v6].into_iter().flatten().map(ttl).min();
        let known = known_addresses(known, host, port);
        let merged = match (&v4, &v6) {
            (Err(one), Err(other)) => {
                let error = if one.is_no_records_found() {
                    other
                } else {
                    one
                };
                return Err(reason(error.clone(), "A or AAAA"));
            }
            // The search list led to two different names: the first is the one that was meant.
            (Ok(one), Ok(other)) if one.query().name() != other.query().name() => {
                merge(&known, family(&v4), Family::Nothing)
            }
            _ => merge(&known, family(&v4), family(&v6)),
        };
        if merged.is_empty() {
            return Err(LookupError::NoRecords("A or AAAA"));
        }
        Ok((merged, ttl.unwrap_or_default()))
    }
}

/// Waits for both; one that is late gets [`SERVER_TIME_MAX`] more once the other has brought addresses.
async fn both_families(
    v4: impl Future<Output = Result<Lookup, NetError>>,
    v6: impl Future<Output = Result<Lookup, NetError>>,
) -> (Result<Lookup, NetError>, Result<Lookup, NetError>) {
    let (mut v4, mut v6) = (pin!(v4), pin!(v6));
    let rest = |late| match late {
        Some(answer) => answer,
        None => Err(NetError::Timeout),
    };
    tokio::select! {
        first = v4.as_mut() => match first {
            Ok(_) => (first, rest(clock::timeout(SERVER_TIME_MAX, v6).await)),
            Err(_) => (first, v6.await),
        },
        first = v6.as_mut() => match first {
            Ok(_) => (rest(clock::timeout(SERVER_TIME_MAX, v4).await), first),
            Err(_) => (v4.await, first),
        },
    }
}

fn builder_of(config: ResolverConfig) -> ResolverBuilder<TokioRuntimeProvider> {
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
}

fn to_name(text: &str) -> Result<Name, LookupError> {
    // Not `IntoName`, which takes nothing that IDNA has not: names of containers have underscores.
    Name::from_str_relaxed(text).map_err(|_| LookupError::BadName(text.to_owned()))
}

fn family(answer: &Result<Lookup, NetError>) -> Family {
    match answer {
        Ok(lookup) => Family::Found(addresses(lookup).collect()),
        Err(error) if error.is_no_records_found() => Family::Nothing,
        Err(_) => Family::Failed,
    }
}

fn addresses(lookup: &Lookup) -> impl Iterator<Item = IpAddr> {
    let records = lookup.answers().iter();
    records.filter_map(|record| record.data.ip_addr())
}

fn known_addresses(known: &[Target], host: &str, port: u16) -> Vec<IpAddr> {
    let name = host_name(host, port);
    let of_host = known.iter().filter(|target| target.host == name);
    let addresses = of_host.flat_map(|target| [Some(target.address), target.other]);
    addresses.flatten().map(|address| address.ip()).collect()
}

fn ttl(lookup: &Lookup) -> Duration {
    (lookup.valid_until()).saturating_duration_since(clock::now())
}

fn reason(error: NetError, records: &'static str) -> LookupError {
    if error.is_nx_domain() {
        LookupError::NoSuchName
    } else if error.is_no_records_found() {
        LookupError::NoRecords(records)
    } else {
        LookupError::Failed(error)
    }
}

/// How long a name server may take; one that is silent costs no more before the next is asked.
const SERVER_TIME_MAX: Duration = Duration::from_secs(1);

/// More than the resolver's own tries at three name servers and a search list take.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(10);

/// How old the hosts file and the list of name servers may be.
const FILES_TIME_MAX: Duration = Duration::from_secs(60);
