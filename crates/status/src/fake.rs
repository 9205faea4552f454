//! A made-up server for this crate's tests, and requests to it.
//!
//! One application serves; the other does not boot and has a name that every format must escape, as
//! has one of the two upstreams. The calls of the API are recorded in `calls`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_apps::{
    AppSnapshot, BoundsSnapshot, JobCounts, JobSnapshot, LastRun, ProcessesSnapshot,
    QueueSnapshot as AppQueueSnapshot, QueueUsage, WorkerSnapshot,
};
use penstock_cache::{
    CacheCounters, CachedRoute, PurgeTarget, StoreCounts, StoreSnapshot, StoreState,
};
use penstock_cluster::{ClusterSnapshot, SharedRatesSnapshot};
use penstock_compress::CompressionSnapshot;
use penstock_exchange::metrics::{
    AppMetrics, EdgeMetrics, Exemplar, Histogram, HistogramValues, LimitUsage, OutcomeCount,
    RouteCountsSnapshot, RuleCountsSnapshot,
};
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::spans::SpanCounts;
use penstock_exchange::{Fault, IncomingBody, ListenerInfo, Mount, Request, RequestBody};
use penstock_http::{HeadLimits, ParseProgress, parse_head};
use penstock_hub::{ChannelFilter, ChannelPresence, HubCounters, HubSnapshot};
use penstock_proxy::{
    QueueSnapshot, ServerCounters, ServerSnapshot, UpstreamCounters, UpstreamSnapshot,
    UpstreamTlsCounters,
};
use penstock_rules::{BackEndName, MaintenanceRule, MaintenanceSnapshot, PauseSnapshot};
use penstock_runtime::blocking::{DurationStats, PoolSnapshot};
use penstock_sys::net::PeerAddress;

use crate::{
    AdminOperations, BoxFuture, CertificateSnapshot, CertificatesSnapshot, ChangeError,
    FrontEndStatus, History, HistorySnapshot, HubStatus, LimitStatus, MachineStatus,
    MaintenanceChange, PublishError, PurgeRequest, ServerChangeRequest, ServerState, Snapshot,
    TopEntryStatus, TopStatus, Traffic,
};

/// The name of the application that does not boot.
pub(crate) const NAME_TO_ESCAPE: &str = "od\"d\\\nname";

/// The maximum size of a body to publish.
pub(crate) const MAX_PUBLISH_BYTES: usize = 4000;

#[derive(Debug, Default)]
pub(crate) struct FakeServer {
    pub(crate) edge: Arc<EdgeMetrics>,
    pub(crate) app_status: Arc<AppMetrics>,
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) snapshot_count: AtomicUsize,
    pub(crate) is_draining: AtomicBool,
    pub(crate) is_broken: AtomicBool,
}

impl FakeServer {
    fn record_call(&self, what: &str) {
        self.calls.lock().unwrap().push(what.to_owned());
    }

    pub(crate) fn recorded_calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn app(&self, name: &str, report: Option<String>, workers: Vec<WorkerSnapshot>) -> AppSnapshot {
        AppSnapshot {
            name: name.into(),
            kind: "wsgi",
            state: if report.is_some() { "failing" } else { "ready" }.into(),
            boot_report: report,
            interpreter: "CPython 3.12.3".into(),
            generation: 2,
            processes: ProcessesSnapshot {
                min: 1,
                ready: 2,
                target: 3,
                max: 4,
            },
            last_scaling: Some("3 requests waited 140 ms with all 2 slots busy".into()),
            last_failure: Some(
                "Wed, 25 Nov 2026 08:00:00 GMT: process 4711 exited with 1 unasked".into(),
            ),
            is_restarting: false,
            restart_error: None,
            start_method: "forking".into(),
            threads: 1,
            min_threads: 1,
            max_threads: 2,
            bounds: BoundsSnapshot {
                tasks: Some(17),
                max_tasks: Some(512),
                memory_bytes: Some(3 << 20),
                max_memory_bytes: Some(1 << 30),
                max_cpu: Some(1.5),
            },
            queue: AppQueueSnapshot {
                usage: QueueUsage {
                    waiting: 3,
                    slots: 4,
                    in_progress: 4,
                    oldest_wait: Duration::from_millis(250),
                },
                max: 1000,
            },
            counters: Arc::clone(&self.app_status),
            queue_time: self.app_status.queue_time.values(),
            header_time: self.app_status.app_time.values(),
            templates: workers.clone(),
            workers,
        }
    }

    fn upstream_status(&self, name: &str, servers: Vec<ServerSnapshot>) -> UpstreamSnapshot {
        UpstreamSnapshot {
            name: name.into(),
            protocol: "http",
            up: !servers.is_empty(),
            queue: QueueSnapshot {
                length: 12,
                max: 500,
                oldest_wait: Duration::from_millis(750),
            },
            tls: Some(UpstreamTlsCounters {
                handshakes: 3,
                resumptions: 2,
                failures: 1,
            }),
            counters: UpstreamCounters {
                requests: 1,
                queue_full: 2,
                queue_timeouts: 3,
                queue_abandoned: 4,
                unavailable: 5,
                retries: 6,
                retries_over_budget: 7,
            },
            queue_time: self.app_status.queue_time.values(),
            connect_time: self.app_status.app_time.values(),
            header_time: self.app_status.app_time.values(),
            servers,
        }
    }
}

/// A server with different numbers.
pub(crate) fn server_snapshot(name: &str, state: &'static str) -> ServerSnapshot {
    ServerSnapshot {
        name: name.into(),
        state,
        weight: 2,
        backup: false,
        active: 3,
        max_active: Some(8),
        connections_open: 5,
        connections_idle: 4,
        counters: ServerCounters {
            requests: 100,
            failures: 7,
            timeouts: 6,
            connects: 9,
            connection_reuses: 91,
        },
        last_error: None,
    }
}

/// A cache with different numbers.
fn cache(name: &str) -> StoreSnapshot {
    StoreSnapshot {
        name: name.into(),
        path: Some("/mnt/disk1/cache".into()),
        state: StoreState::Working,
        objects: 20,
        bytes: 2 << 20,
        max_bytes: 100 << 30,
        memory_objects: 11,
        memory_bytes: 1 << 20,
        max_memory_bytes: 64 << 20,
        counters: StoreCounts {
            hits: 90,
            misses: 30,
            stores: 25,
            evictions: 5,
            purged_objects: 3,
            errors: 2,
        },
        hit_ratio: Some(0.75),
        read_time: DurationStats::new(6, 120_000),
        write_time: DurationStats::new(25, 1_000_000),
    }
}

/// A hub with different numbers.
fn hub() -> HubStatus {
    let of = |used, max| LimitUsage { used, max };
    let hub = HubSnapshot {
        connections: of(61, 1000),
        streams: 50,
        long_polls: 11,
        channels: of(7, 2000),
        counters: HubCounters {
            opened: 300,
            closed: 250,
            closed_as_slow: 12,
            published: 40,
            delivered: 900,
            dropped: 13,
            heartbeats: 77,
        },
        stream_bytes: 10_000,
        bytes_per_stream: Some(200),
        backlog_bytes: of(4096, 1 << 28),
        history_bytes: of(5000, 1 << 27),
        ..HubSnapshot::default()
    };
    HubStatus {
        hub,
        cluster: Some(ClusterSnapshot {
            address: "redis://127.0.0.1:6379".into(),
            connected: true,
            standalone: false,
            queued: 14,
            lost: 15,
            channels: 6,
            servers: 3,
            totals: [("streams".to_owned(), 150)].into(),
        }),
    }
}

/// Two certificates: one that is valid, and one that is over and cannot be replaced.
fn certificates() -> CertificatesSnapshot {
    let one = |host: &str, not_after| CertificateSnapshot {
        hosts: vec![host.to_owned(), format!("www.{host}")],
        names: vec![host.to_owned()],
        issuer: "CN=Some Authority".to_owned(),
        source: "acme",
        not_before: 1_795_000_000,
        not_after,
        ..CertificateSnapshot::default()
    };
    let over = CertificateSnapshot {
        source: "file",
        path: Some("/etc/tls/b.pem".to_owned()),
        last_error: Some("the file is empty".to_owned()),
        ..one("b.test", 1_795_100_000)
    };
    CertificatesSnapshot::new(vec![one("a.test", 1_803_000_000), over], 1_796_000_000)
}

fn outcome(name: &str, requests: u64) -> OutcomeCount {
    OutcomeCount {
        outcome: name.to_owned(),
        requests,
    }
}

/// A route with different numbers.
fn cached_route(name: &str) -> CachedRoute {
    let counters = CacheCounters::default();
    for (counter, count) in [
        (&counters.hits, 40),
        (&counters.stale, 3),
        (&counters.revalidated, 2),
        (&counters.collapsed, 15),
        (&counters.misses, 20),
        (&counters.bypassed, 7),
        (&counters.fetch_failures, 4),
        (&counters.stored, 19),
        (&counters.served_bytes, 1 << 21),
    ] {
        counter.add(count);
    }
    CachedRoute {
        name: name.into(),
        caches: vec!["disk1".into(), NAME_TO_ESCAPE.into()],
        counters: Arc::new(counters),
    }
}

/// The same with a disk that fails, before any look-up.
fn out_of_service(cache: StoreSnapshot) -> StoreSnapshot {
    let reason = "write: Input/output error".into();
    StoreSnapshot {
        path: None,
        state: StoreState::OutOfService { reason },
        hit_ratio: None,
        ..cache
    }
}

impl AdminOperations for FakeServer {
    fn snapshot(&self) -> Snapshot {
        self.snapshot_count.fetch_add(1, Ordering::Relaxed);
        let worker = WorkerSnapshot {
            pid: Some(77),
            generation: 2,
            state: "ready",
            time_in_state: Duration::from_millis(1500),
            restarts: 0,
            in_progress: 1,
            address: None,
            resident_bytes: Some(1 << 20),
            proportional_bytes: Some(1 << 19),
            age: Some(Duration::from_millis(2500)),
            requests: Some(1234),
            replace_reason: Some("1234 requests".into()),
        };
        let draining = self.is_draining.load(Ordering::Relaxed);
        let now = Snapshot {
            version: "0.1.0",
            pid: 42,
            uptime: Duration::from_millis(90_500),
            state: if draining {
                ServerState::Draining
            } else {
                ServerState::Running
            },
            listeners: vec!["http://127.0.0.1:8080".into()],
            control_socket: Some("unix:/run/penstock/127.0.0.1_8080.sock".into()),
            config: Some("/srv/penstock.toml".into()),
            folder: "/srv".into(),
            event_loops: 2,
            connections: LimitUsage { used: 5, max: 100 },
            connections_limited_by: "limits.connections".into(),
            resident_bytes: Some(2 << 20),
            traffic: Traffic::new(EdgeMetrics::total(std::slice::from_ref(&*self.edge))),
            config_generation: 1,
            config_reloads: 0,
            reload_error: None,
            front_end: Some(FrontEndStatus {
                address: "10.0.0.1:7000".into(),
                upstream: "shop".into(),
                is_joined: false,
                cause: Some("its key is another".into()),
            }),
            log_lines_dropped: 0,
            warnings: vec!["runs as root".into()],
            event_loop_stalls: 0,
            machine: MachineStatus {
                load_average: Some(1.25),
                estimated_socket_bytes: 20_500,
                tcp_buffer_bytes: Some(8192),
            },
            hub: hub(),
            certificates: certificates(),
            jobs: vec![JobSnapshot {
                name: "nightly".into(),
                command: "python manage.py clearsessions".into(),
                schedule: "at 03:30".into(),
                next_at: Some(1_780_000_000),
                running_since: Some(1_779_990_000),
                pid: Some(77),
                last: Some(LastRun {
                    started_at: 1_779_900_000,
                    took: Duration::from_millis(1500),
                    outcome: "exit status 1".into(),
                    succeeded: false,
                    last_lines: "no database".into(),
                }),
                runs: JobCounts {
                    succeeded: 4,
                    failed: 1,
                    skipped: 2,
                },
            }],
            apps: vec![
                self.app("guestbook", None, vec![worker]),
                self.app(
                    NAME_TO_ESCAPE,
                    Some("Traceback\n  </script>".into()),
                    vec![],
                ),
            ],
            upstreams: vec![
                self.upstream_status(
                    "backends",
                    vec![
                        server_snapshot("127.0.0.1:3000", "leaving"),
                        server_snapshot("127.0.0.1:3000", "up"),
                        ServerSnapshot {
                            max_active: None,
                            last_error: Some("cannot connect".into()),
                            ..server_snapshot("unix:/run/b.sock", "ejected")
                        },
                    ],
                ),
                self.upstream_status(NAME_TO_ESCAPE, vec![]),
            ],
            caches: vec![cache("disk1"), out_of_service(cache(NAME_TO_ESCAPE))],
            cached_routes: vec![cached_route("example.com /*"), cached_route(NAME_TO_ESCAPE)],
            top: TopStatus {
                requests: 200,
                routes: vec![TopEntryStatus {
                    name: "example.com /*".into(),
                    requests: 150,
                }],
                clients: vec![TopEntryStatus {
                    name: "192.0.2.1".into(),
                    requests: 100,
                }],
            },
            pauses: vec![PauseSnapshot {
                kind: "app",
                name: NAME_TO_ESCAPE.into(),
                paused_seconds: 2.5,
                remaining_seconds: 27.5,
                waiting: 3,
                max_waiting: 1000,
                refused: 0,
            }],
            maintenance: MaintenanceSnapshot {
                rules: vec![MaintenanceRule::new(
                    Some(NAME_TO_ESCAPE.into()),
                    vec!["10.0.0.0/8".into()],
                    Duration::from_secs(600),
                )],
                refused: 9,
            },
            trace_spans: Some(SpanCounts {
                queued: 1,
                exported: 20,
                dropped: 3,
            }),
            routes: vec![
                RouteCountsSnapshot {
                    site: "example.com".into(),
                    route: "/*".into(),
                    responses: [0, 7, 0, 1, 2],
                    duration: traced_histogram(),
                },
                RouteCountsSnapshot {
                    site: NAME_TO_ESCAPE.into(),
                    route: NAME_TO_ESCAPE.into(),
                    ..RouteCountsSnapshot::default()
                },
            ],
            shared_rates: Some(SharedRatesSnapshot {
                connected: true,
                decided_alone: 17,
            }),
            rules: vec![
                RuleCountsSnapshot {
                    route: "example.com /*".into(),
                    rule: "rate_limit".into(),
                    counts: vec![outcome("refused", 12), outcome("delayed", 3)],
                    in_use: Some(41),
                },
                RuleCountsSnapshot {
                    route: NAME_TO_ESCAPE.into(),
                    rule: "split".into(),
                    counts: vec![outcome("app shop", 95), outcome(NAME_TO_ESCAPE, 5)],
                    in_use: None,
                },
            ],
            compression: CompressionSnapshot {
                gzip: 3,
                input_bytes: 30_000,
                output_bytes: 6000,
                max_memory_bytes: 128 << 20,
                ..CompressionSnapshot::default()
            },
            pools: vec![PoolSnapshot {
                name: "default".into(),
                queued: 0,
                max_queued: 65536,
                active: 1,
                threads: 1,
                max_threads: 32,
                refused: 4,
                queue_time: DurationStats::new(10, 50_000),
                max_queue_time: Duration::from_millis(30),
                run_time: DurationStats::new(8, 200_000),
                oldest_running: Duration::from_millis(1250),
            }],
            limits: vec![
                LimitStatus::count("limits.connections", 100, Some(5)),
                LimitStatus::time("limits.header_timeout", Duration::from_secs(10)),
                LimitStatus::bytes("limits.temp_bytes", 4096)
                    .with_used(64)
                    .with_reached(2),
            ],
            ..Snapshot::default()
        };
        now.with_findings(&History::default())
    }

    fn history(&self) -> HistorySnapshot {
        let history = History::default();
        let now = self.snapshot();
        for seconds in [0, 10] {
            history.record(&now, Duration::from_secs(seconds));
        }
        history.snapshot()
    }

    fn reload(&self) -> BoxFuture<'static, Result<String, String>> {
        self.record_call("reload");
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        Box::pin(async move {
            if is_broken {
                Err("line 3: unknown key".into())
            } else {
                Ok("nothing changed".into())
            }
        })
    }

    fn restart_app(&self, app: &str) -> BoxFuture<'static, Option<Result<Option<String>, String>>> {
        self.record_call(&format!("restart {app}"));
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        let is_known = app == "guestbook";
        Box::pin(async move {
            is_known.then(|| {
                if is_broken {
                    Err("ImportError: \"x\"".into())
                } else {
                    Ok(None)
                }
            })
        })
    }

    fn change_servers(
        &self,
        upstream: &str,
        change: ServerChangeRequest,
    ) -> BoxFuture<'static, Result<String, ChangeError>> {
        self.record_call(&format!("{upstream}: {change:?}"));
        let done = match change {
            _ if upstream != "backends" => {
                let text = format!("there is no upstream named {upstream}");
                Err(ChangeError::not_found(text))
            }
            ServerChangeRequest::Add(new) if new.server.is_empty() => Err(
                ChangeError::bad_request("\"\" is no server: expected an address".into()),
            ),
            ServerChangeRequest::Drain { server } if server != "127.0.0.1:3000" => {
                let text = format!("upstream {upstream} has no server {server}");
                Err(ChangeError::not_found(text))
            }
            _ if self.is_broken.load(Ordering::Relaxed) => {
                Err(ChangeError::conflict("the upstream is closed".into()))
            }
            _ => Ok("done".into()),
        };
        Box::pin(std::future::ready(done))
    }

    fn pause(&self, name: BackEndName, max_wait: Duration) -> Result<String, ChangeError> {
        self.record_call(&format!("pause {name:?} {max_wait:?}"));
        match name {
            BackEndName::App(name) if name == "guestbook" => Ok("paused".into()),
            name => Err(ChangeError::not_found(format!("no {}", name.name()))),
        }
    }

    fn resume(&self, name: BackEndName) -> Result<String, ChangeError> {
        self.record_call(&format!("resume {name:?}"));
        Err(ChangeError::conflict("it is not paused".into()))
    }

    fn set_maintenance(&self, change: MaintenanceChange) -> Result<String, ChangeError> {
        self.record_call(&format!("{change:?}"));
        Ok("done".into())
    }

    fn purge(&self, wanted: PurgeRequest) -> BoxFuture<'static, Result<u64, ChangeError>> {
        self.record_call(&format!("purge {wanted:?}"));
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        Box::pin(async move {
            match wanted {
                PurgeRequest {
                    cache: Some(name), ..
                } if name != "disk1" => {
                    let text = format!("there is no cache named {name}");
                    Err(ChangeError::not_found(text))
                }
                _ if is_broken => Err(ChangeError::unavailable("purges wait".into())),
                wanted if wanted.target == PurgeTarget::All => Ok(20),
                _ => Ok(1),
            }
        })
    }

    fn verify_publish_token(&self, token: &str) -> Result<String, PublishError> {
        match token {
            "a.right.token" => Ok("chat".into()),
            "an.old.token" => Err(PublishError::InvalidToken("the token has expired".into())),
            _ => Err(PublishError::Unauthorized("no such key".into())),
        }
    }

    fn publish(&self, body: &[u8], namespace: Option<&str>) -> Result<(), PublishError> {
        let text = String::from_utf8_lossy(body).into_owned();
        match namespace {
            Some(namespace) => self.record_call(&format!("publish {text} in {namespace}")),
            None => self.record_call(&format!("publish {text}")),
        }
        match text.as_str() {
            "{}" => Err(PublishError::Malformed("items is missing".into())),
            "fast" => Err(PublishError::RateLimited("items[3]: too fast".into())),
            "long" => Err(PublishError::TooLarge("item 0: too long".into())),
            _ if self.is_broken.load(Ordering::Relaxed) => {
                Err(PublishError::Unavailable("the server stops".into()))
            }
            _ => Ok(()),
        }
    }

    fn list_channels(
        &self,
        filter: ChannelFilter,
        max: usize,
    ) -> BoxFuture<'static, Vec<ChannelPresence>> {
        self.record_call(&format!("channels {filter:?} {max}"));
        let namespace = filter.namespace.unwrap_or_else(|| "hub".to_owned());
        let channel = filter.channel.unwrap_or_else(|| "news".to_owned());
        Box::pin(std::future::ready(vec![ChannelPresence {
            namespace,
            channel,
            subscribers: 3,
        }]))
    }

    fn max_publish_bytes(&self) -> usize {
        MAX_PUBLISH_BYTES
    }

    fn upgrade(&self, binary: Option<String>) -> BoxFuture<'static, Result<String, String>> {
        self.record_call(&format!("upgrade {}", binary.unwrap_or_default()));
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        Box::pin(async move {
            match is_broken {
                true => Err("the new server ended".into()),
                false => Ok("done by 12".into()),
            }
        })
    }

    fn reopen_logs(&self) -> BoxFuture<'static, Result<String, String>> {
        self.record_call("reopen");
        Box::pin(std::future::ready(Ok("opened".into())))
    }

    fn control_socket(&self) -> Option<String> {
        Some("unix:/run/penstock/127.0.0.1_8080.sock".into())
    }

    fn stop(&self) {
        self.record_call("stop");
    }

    fn stop_report(&self) -> BoxFuture<'static, Vec<String>> {
        Box::pin(std::future::ready(vec![
            "mail: 1 process was killed".to_owned(),
        ]))
    }

    fn check_ready(&self) -> Result<(), String> {
        if self.is_broken.load(Ordering::Relaxed) {
            Err("no application is up".into())
        } else {
            Ok(())
        }
    }
}

/// The transport of a test's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestTransport {
    Tcp,
    Unix,
}

/// A body that arrives in pieces of limited size and may hide its length.
#[derive(Debug)]
pub(crate) struct PiecewiseBody {
    pub(crate) remaining: Vec<u8>,
    pub(crate) piece_size: usize,
    pub(crate) length: Option<u64>,
    /// Counts the bytes that were read.
    pub(crate) bytes_taken: Arc<AtomicUsize>,
}

impl IncomingBody for PiecewiseBody {
    fn poll_fill(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let size = self.piece_size.min(self.remaining.len());
        into.extend(self.remaining.drain(..size));
        self.bytes_taken.fetch_add(size, Ordering::Relaxed);
        Poll::Ready(Ok(size > 0))
    }

    fn length(&self) -> Option<u64> {
        self.length
    }
}

/// A request from the text of its head, with `\n` between lines and without the blank line.
pub(crate) fn request(head: &str, via: TestTransport) -> Request {
    let raw = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
    let ParseProgress::Complete((head, _)) =
        parse_head(raw.as_bytes(), &HeadLimits::default()).unwrap()
    else {
        panic!("the head is not whole: {raw:?}");
    };
    let address = (via == TestTransport::Tcp).then(|| "127.0.0.1:8090".parse().unwrap());
    let arrival = RequestEnvironment {
        peer: PeerAddress::Unix,
        listener: Arc::new(ListenerInfo {
            scheme: "http",
            address,
            name: "admin".into(),
            proxy_protocol: false,
            has_tls: false,
        }),
        client_state: Arc::default(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
        arrived_at: Instant::now(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}

/// Ten durations, one of them with its trace.
fn traced_histogram() -> HistogramValues {
    let histogram = Histogram::default();
    for ms in [1, 1, 1, 1, 1, 1, 1, 1, 1, 70] {
        histogram.record(Duration::from_millis(ms));
    }
    let mut values = histogram.values();
    values.exemplars.push(Exemplar {
        bucket: 9,
        trace_id: [0xab; 16],
        duration_us: 70_000,
        observed_at: Duration::from_millis(1_700_000_000_250),
    });
    values
}
