//! Following DNS names, with a DNS server on loopback and changing answers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::{Protocol, ServerAddr, UpstreamServer};
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use penstock_config as config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

use super::DnsSource;
use crate::maintenance::tests::{
    claim, release, run_on_loop, server_states, start_resolved_by as start, upstream_config,
    wait_until,
};
use crate::{ServerChange, Upstream};

/// A name server on loopback; unknown names do not exist.
#[derive(Debug, Clone)]
struct TestNameServer {
    port: u16,
    zone: Arc<Mutex<TestZone>>,
}

#[derive(Debug, Default)]
struct TestZone {
    records: HashMap<(String, RecordType), Vec<RData>>,
    /// Answers everything with SERVFAIL.
    fails_always: bool,
    /// Ignores queries of this type.
    silent_to: Option<RecordType>,
    /// Sets the truncation flag over UDP.
    truncates: bool,
    questions: usize,
}

impl TestNameServer {
    async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let dns = Self {
            port: socket.local_addr().unwrap().port(),
            zone: Arc::default(),
        };
        let zone = Arc::clone(&dns.zone);
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((count, peer)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_vec(&buffer[..count]).unwrap();
                let mut reply = zone.lock().unwrap().answer(&question);
                if zone.lock().unwrap().silent_to == Some(question.queries[0].query_type()) {
                    continue;
                }
                if zone.lock().unwrap().truncates {
                    reply.answers.clear();
                    reply.metadata.truncation = true;
                }
                socket
                    .send_to(&reply.to_vec().unwrap(), peer)
                    .await
                    .unwrap();
            }
        });
        // The same over TCP, if the port is free there.
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", dns.port)).await {
            let zone = Arc::clone(&dns.zone);
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    while let Ok(length) = stream.read_u16().await {
                        let mut question = vec![0; usize::from(length)];
                        stream.read_exact(&mut question).await.unwrap();
                        let question = Message::from_vec(&question).unwrap();
                        let reply = zone.lock().unwrap().answer(&question).to_vec().unwrap();
                        let length = u16::try_from(reply.len()).unwrap();
                        stream.write_u16(length).await.unwrap();
                        stream.write_all(&reply).await.unwrap();
                    }
                }
            });
        }
        dns
    }

    fn source(&self) -> DnsSource {
        let mut connection = ConnectionConfig::udp();
        connection.port = self.port;
        let mut tcp = ConnectionConfig::tcp();
        tcp.port = self.port;
        let connections = vec![connection, tcp];
        let server = NameServerConfig::new(IpAddr::V4(Ipv4Addr::LOCALHOST), true, connections);
        DnsSource::Custom(ResolverConfig::from_parts(None, Vec::new(), vec![server]))
    }

    fn set_addresses(&self, name: &str, addresses: &[&str]) {
        let addresses: Vec<IpAddr> = addresses.iter().map(|it| it.parse().unwrap()).collect();
        let mut zone = self.zone.lock().unwrap();
        for (kind, is_kind) in [
            (RecordType::A, IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
            (RecordType::AAAA, IpAddr::is_ipv6),
        ] {
            let records = addresses
                .iter()
                .filter(|it| is_kind(it))
                .map(|&it| it.into());
            zone.records
                .insert((format!("{name}."), kind), records.collect());
        }
    }

    fn set_services(&self, name: &str, services: &[(u16, u16, u16, &str)]) {
        let record = |&(priority, weight, port, host): &(u16, u16, u16, &str)| {
            let target = Name::from_ascii(format!("{host}.")).unwrap();
            RData::SRV(SRV::new(priority, weight, port, target))
        };
        let records = services.iter().map(record).collect();
        let key = (format!("{name}."), RecordType::SRV);
        self.zone.lock().unwrap().records.insert(key, records);
    }

    fn set_broken(&self, is_broken: bool) {
        self.zone.lock().unwrap().fails_always = is_broken;
    }

    fn question_count(&self) -> usize {
        self.zone.lock().unwrap().questions
    }
}

impl TestZone {
    fn answer(&mut self, question: &Message) -> Message {
        self.questions += 1;
        let query = question.queries[0].clone();
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        let key = (query.name().to_ascii().to_lowercase(), query.query_type());
        let found = self.records.get(&key);
        reply.metadata.response_code = match found {
            _ if self.fails_always => ResponseCode::ServFail,
            Some(_) => ResponseCode::NoError,
            None => ResponseCode::NXDomain,
        };
        for data in found.into_iter().flatten().filter(|_| !self.fails_always) {
            reply.add_answer(Record::from_rdata(query.name().clone(), 1, data.clone()));
        }
        reply.add_query(query);
        reply
    }
}

fn names(upstream: &Upstream) -> Vec<String> {
    let mut names: Vec<_> = server_states(upstream)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    names.sort();
    names
}

#[test]
fn servers_follow_the_addresses_of_their_name() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        dns.set_addresses("app.test", &["192.0.2.1", "2001:db8::1"]);
        let upstream = start(
            upstream_config(Protocol::Http, &["app.test:80"]),
            dns.source(),
        );
        let both = ["app.test:80 (192.0.2.1)", "app.test:80 (2001:db8::1)"];
        wait_until("both addresses", || names(&upstream) == both).await;
        let slot = claim(&upstream);
        let was_first = slot.server.name.contains("192.0.2.1");
        dns.set_addresses("app.test", &["192.0.2.2"]);
        wait_until("another", || {
            names(&upstream).contains(&"app.test:80 (192.0.2.2)".to_owned())
        })
        .await;
        // The server with an active request is removed with it.
        let left = if was_first { both[0] } else { both[1] };
        assert!(server_states(&upstream).contains(&(left.to_owned(), "leaving")));
        assert_eq!(server_states(&upstream).len(), 2);
        release(&upstream, &slot);
        assert_eq!(names(&upstream), ["app.test:80 (192.0.2.2)"]);
    });
}

#[test]
fn a_service_has_the_ports_weights_and_ranks_of_its_records() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        let service = "_http._tcp.app.test";
        dns.set_services(
            service,
            &[
                (1, 5, 8001, "a.test"),
                (1, 0, 8002, "b.test"),
                (2, 9, 8003, "c.test"),
            ],
        );
        dns.set_addresses("a.test", &["192.0.2.1"]);
        dns.set_addresses("b.test", &["192.0.2.2"]);
        dns.set_addresses("c.test", &["192.0.2.3"]);
        let upstream = start(
            upstream_config(Protocol::Http, &[&format!("srv:{service}")]),
            dns.source(),
        );
        let seen = || -> Vec<(String, u32, bool)> {
            let servers = upstream.snapshot().servers.into_iter();
            servers.map(|it| (it.name, it.weight, it.backup)).collect()
        };
        let row = |name: &str, weight, backup| (name.to_owned(), weight, backup);
        let want = [
            row("a.test:8001 (192.0.2.1)", 5, false),
            row("b.test:8002 (192.0.2.2)", 1, false),
            row("c.test:8003 (192.0.2.3)", 9, true),
        ];
        wait_until("all targets", || seen().len() == 3).await;
        let mut sorted = seen();
        sorted.sort();
        assert_eq!(sorted, want);
        // Existing servers take over new weights and priorities.
        let keys = || -> Vec<_> {
            let pool = upstream.shared.server_pool.lock();
            let mut keys: Vec<_> = pool.servers.iter().map(|it| it.id.0).collect();
            keys.sort_unstable();
            keys
        };
        let before = keys();
        dns.set_services(
            service,
            &[
                (2, 7, 8001, "a.test"),
                (2, 0, 8002, "b.test"),
                (1, 9, 8003, "c.test"),
            ],
        );
        let want = [
            row("a.test:8001 (192.0.2.1)", 7, true),
            row("b.test:8002 (192.0.2.2)", 1, true),
            row("c.test:8003 (192.0.2.3)", 9, false),
        ];
        wait_until("the new ranks", || {
            let mut sorted = seen();
            sorted.sort();
            sorted == want
        })
        .await;
        assert_eq!(keys(), before);
        // A target keeps its known addresses if its name cannot be resolved.
        dns.zone
            .lock()
            .unwrap()
            .records
            .remove(&("b.test.".to_owned(), RecordType::A));
        dns.set_addresses("a.test", &["192.0.2.11"]);
        wait_until("the new address", || {
            names(&upstream)[0] == "a.test:8001 (192.0.2.11)"
        })
        .await;
        assert_eq!(names(&upstream)[1], "b.test:8002 (192.0.2.2)");
    });
}

#[test]
fn failed_lookups_change_nothing() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        dns.set_addresses("app.test", &["192.0.2.1"]);
        let upstream = start(
            upstream_config(Protocol::Http, &["app.test:80"]),
            dns.source(),
        );
        let one = ["app.test:80 (192.0.2.1)"];
        wait_until("its address", || names(&upstream) == one).await;
        for (name, is_broken) in [("the server fails", true), ("the name is unknown", false)] {
            dns.zone.lock().unwrap().records.clear();
            dns.set_broken(is_broken);
            let questions = dns.question_count();
            wait_until("more questions", || dns.question_count() > questions + 1).await;
            assert_eq!(names(&upstream), one, "{name}");
        }
        dns.set_addresses("app.test", &["192.0.2.2"]);
        wait_until("the next answer", || {
            names(&upstream) == ["app.test:80 (192.0.2.2)"]
        })
        .await;
    });
}

#[test]
fn a_name_that_is_unknown_at_the_start_is_asked_for_again() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        let servers = ["127.0.0.1:81", "app.test:80"];
        let upstream = start(upstream_config(Protocol::Http, &servers), dns.source());
        wait_until("questions", || dns.question_count() >= 2).await;
        assert_eq!(names(&upstream), ["127.0.0.1:81"]);
        dns.set_addresses("app.test", &["192.0.2.1"]);
        let both = ["127.0.0.1:81", "app.test:80 (192.0.2.1)"];
        wait_until("its server", || names(&upstream) == both).await;
    });
}

#[test]
fn an_address_that_the_operator_removed_stays_away_until_the_dns_gives_it_anew() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        dns.set_addresses("app.test", &["192.0.2.1", "192.0.2.2"]);
        let upstream = start(
            upstream_config(Protocol::Http, &["app.test:80"]),
            dns.source(),
        );
        wait_until("both", || names(&upstream).len() == 2).await;
        let (one, two) = ("app.test:80 (192.0.2.1)", "app.test:80 (192.0.2.2)");
        upstream
            .apply_change(ServerChange::Remove(one.to_owned()))
            .unwrap();
        // Two queries per look-up: the third means that the first two are handled.
        let questions = dns.question_count();
        wait_until("one more answer", || dns.question_count() >= questions + 3).await;
        assert_eq!(names(&upstream), [two]);
        dns.set_addresses("app.test", &["192.0.2.2"]);
        let questions = dns.question_count();
        wait_until("an answer without it", || {
            dns.question_count() >= questions + 3
        })
        .await;
        dns.set_addresses("app.test", &["192.0.2.1", "192.0.2.2"]);
        wait_until("both again", || names(&upstream) == [one, two]).await;
    });
}

#[test]
fn changes_of_a_name_apply_to_servers_added_later() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        dns.set_addresses("app.test", &["192.0.2.1"]);
        let upstream = start(upstream_config(Protocol::Http, &[]), dns.source());
        let name = "app.test:80".to_owned();
        let added =
            upstream.apply_change(ServerChange::Add(crate::maintenance::tests::server(&name)));
        assert_eq!(added.as_deref(), Ok("app.test:80 was added"));
        wait_until("its address", || names(&upstream).len() == 1).await;
        upstream
            .apply_change(ServerChange::SetWeight(name.clone(), 4))
            .unwrap();
        upstream
            .apply_change(ServerChange::SetMaxActive(name.clone(), Some(2)))
            .unwrap();
        upstream
            .apply_change(ServerChange::Drain(name.clone()))
            .unwrap();
        dns.set_addresses("app.test", &["192.0.2.1", "192.0.2.2"]);
        wait_until("both", || names(&upstream).len() == 2).await;
        for server in upstream.snapshot().servers {
            let seen = (server.weight, server.max_active, server.state);
            assert_eq!(seen, (4, Some(2), "draining"), "{}", server.name);
        }
        let address: ServerAddr = name.parse().unwrap();
        upstream
            .apply_change(ServerChange::Remove(name.clone()))
            .unwrap();
        assert!(names(&upstream).is_empty());
        assert!(
            upstream
                .shared
                .server_pool
                .lock()
                .dns_names
                .find(&address)
                .is_none()
        );
        // Added again while the old follower may still wait, it exists once.
        upstream.add_server(crate::maintenance::tests::server(&name), 0);
        wait_until("both", || names(&upstream).len() == 2).await;
        let questions = dns.question_count();
        wait_until("more answers", || dns.question_count() >= questions + 3).await;
        assert_eq!(names(&upstream).len(), 2);
    });
}

#[test]
fn a_silent_or_truncating_name_server_delays_only_briefly() {
    run_on_loop(async {
        for (name, silent_to, truncates) in [
            ("silent to AAAA", Some(RecordType::AAAA), false),
            ("truncates", None, true),
        ] {
            let dns = TestNameServer::start().await;
            dns.set_addresses("my_app", &["192.0.2.1"]);
            {
                let mut zone = dns.zone.lock().unwrap();
                (zone.silent_to, zone.truncates) = (silent_to, truncates);
            }
            let began = std::time::Instant::now();
            let mut resolver = super::DnsResolver::new(dns.source());
            let address = UpstreamServer::new("my_app.:80".parse().unwrap());
            let found = resolver.lookup(&address, &[]).await.unwrap();
            assert_eq!(found.targets.len(), 1, "{name}");
            assert!(began.elapsed() < Duration::from_secs(8), "{name}");
        }
    });
}

#[test]
fn a_silent_name_server_times_out_in_seconds() {
    run_on_loop(async {
        let dns = TestNameServer::start().await;
        dns.zone.lock().unwrap().silent_to = Some(RecordType::SRV);
        let began = std::time::Instant::now();
        let mut resolver = super::DnsResolver::new(dns.source());
        let service = UpstreamServer::new("srv:_http._tcp.app.test".parse().unwrap());
        resolver.lookup(&service, &[]).await.unwrap_err();
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
    });
}

#[test]
fn answers_expire_after_the_interval_at_most() {
    run_on_loop(async {
        // The hosts file has no TTL.
        let mut resolver = super::DnsResolver::new(DnsSource::System);
        let name = UpstreamServer::new("localhost:80".parse().unwrap());
        let found = resolver.lookup(&name, &[]).await.unwrap();
        assert!(
            found
                .targets
                .iter()
                .any(|it| it.address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST))
        );
        let interval = Duration::from_secs(30);
        assert_eq!(super::next_query_delay(found.ttl, interval), interval);
    });
}

#[test]
fn without_name_servers_the_reason_is_logged() {
    run_on_loop(async {
        let nobody = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
        let mut resolver = super::DnsResolver::new(DnsSource::Custom(nobody));
        let name = UpstreamServer::new("app.test:80".parse().unwrap());
        let error = resolver.lookup(&name, &[]).await.unwrap_err();
        assert!(error.to_string().starts_with("name servers: "), "{error}");
    });
}

#[test]
fn failures_are_logged_at_once_and_then_each_minute() {
    let (mut trouble, begun) = (super::LookupFailures::default(), std::time::Instant::now());
    let name: ServerAddr = "app.test:80".parse().unwrap();
    let mut logged = Vec::new();
    for second in 0..150 {
        let now = begun + Duration::from_secs(second);
        trouble.record(now, "pool", &name, &super::LookupError::NoSuchName);
        if trouble.logged_at == Some(now) {
            logged.push(second);
        }
    }
    assert_eq!((logged, trouble.count), (vec![0, 60, 120], 150));
    trouble.clear("pool", &name);
    assert_eq!((trouble.count, trouble.logged_at), (0, None));
}
