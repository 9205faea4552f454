//! A made-up server for this crate's tests, and requests to it.
//!
//! One application serves, one does not boot and has a name that every format must escape. What the
//! API asked of the server is noted in `asked`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_exchange::metrics::{AppMetrics, EdgeMetrics};
use penstock_exchange::request::{Arrival, RequestPath};
use penstock_exchange::{ListenerInfo, Request, RequestBody};
use penstock_http::{HeadLimits, Progress, parse_head};
use penstock_sys::net::PeerAddress;

use crate::{
    AppCounters, AppStatus, BoxFuture, Limit, PoolStatus, QueueStatus, ServerState, Snapshot,
    Source, Times, Traffic, Use, WorkerStatus,
};

/// The name of the application that does not boot.
pub(crate) const ODD_NAME: &str = "od\"d\\\nname";

#[derive(Debug, Default)]
pub(crate) struct FakeSource {
    pub(crate) edge: Arc<EdgeMetrics>,
    pub(crate) app: Arc<AppMetrics>,
    pub(crate) asked: Mutex<Vec<String>>,
    pub(crate) snapshots: AtomicUsize,
    pub(crate) is_draining: AtomicBool,
    pub(crate) is_broken: AtomicBool,
}

impl FakeSource {
    fn ask(&self, what: &str) {
        self.asked.lock().unwrap().push(what.to_owned());
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn app(&self, name: &str, report: Option<String>, workers: Vec<WorkerStatus>) -> AppStatus {
        AppStatus {
            name: name.into(),
            kind: "wsgi".into(),
            state: if report.is_some() { "failing" } else { "ready" }.into(),
            report,
            interpreter: "CPython 3.12.3".into(),
            generation: 2,
            threads: 1,
            queue: QueueStatus {
                waiting: 3,
                max: 1000,
                slots: 4,
                in_progress: 4,
                oldest_wait: Duration::from_millis(250),
            },
            counters: AppCounters::new(&self.app),
            queue_time: Times::new(&self.app.queue_time),
            app_time: Times::new(&self.app.app_time),
            workers,
        }
    }
}

impl Source for FakeSource {
    fn snapshot(&self) -> Snapshot {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        let worker = WorkerStatus {
            pid: Some(77),
            generation: 2,
            state: "ready".into(),
            since: Duration::from_millis(1500),
            restarts: 0,
            in_progress: 1,
            resident_bytes: Some(1 << 20),
        };
        let draining = self.is_draining.load(Ordering::Relaxed);
        Snapshot {
            version: "0.1.0",
            pid: 42,
            uptime: Duration::from_millis(90_500),
            state: if draining {
                ServerState::Draining
            } else {
                ServerState::Running
            },
            listeners: vec!["http://127.0.0.1:8080".into()],
            config: Some("/srv/penstock.toml".into()),
            threads: 2,
            connections: Use { used: 5, max: 100 },
            resident_bytes: Some(2 << 20),
            traffic: Traffic::new(&self.edge),
            generation: 1,
            reloads: 0,
            reload_error: None,
            log_lines_dropped: 0,
            apps: vec![
                self.app("guestbook", None, vec![worker]),
                self.app(ODD_NAME, Some("Traceback\n  </script>".into()), vec![]),
            ],
            pools: vec![PoolStatus {
                name: "default".into(),
                queued: 0,
                active: 1,
                threads: 32,
                max_queue: 65536,
            }],
            limits: vec![
                Limit::count("connections", 100, Some(5)),
                Limit::time("header_timeout", Duration::from_secs(10)),
            ],
        }
    }

    fn edge(&self) -> Arc<EdgeMetrics> {
        Arc::clone(&self.edge)
    }

    fn apps(&self) -> Vec<(String, Arc<AppMetrics>)> {
        ["guestbook", ODD_NAME]
            .map(|name| (name.to_owned(), Arc::clone(&self.app)))
            .into()
    }

    fn reload(&self) -> BoxFuture<'static, Result<String, String>> {
        self.ask("reload");
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        Box::pin(async move {
            if is_broken {
                Err("line 3: unknown key".into())
            } else {
                Ok("nothing changed".into())
            }
        })
    }

    fn restart(&self, app: &str) -> BoxFuture<'static, Option<Result<(), String>>> {
        self.ask(&format!("restart {app}"));
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        let is_known = app == "guestbook";
        Box::pin(async move {
            is_known.then(|| {
                if is_broken {
                    Err("ImportError: \"x\"".into())
                } else {
                    Ok(())
                }
            })
        })
    }

    fn stop(&self) {
        self.ask("stop");
    }

    fn ready(&self) -> Result<(), String> {
        if self.is_broken.load(Ordering::Relaxed) {
            Err("no application is up".into())
        } else {
            Ok(())
        }
    }
}

/// Where a test's request comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    Tcp,
    Unix,
}

/// A request from its head's text, lines apart by `\n`, without the blank line.
pub(crate) fn request(head: &str, via: Via) -> Request {
    let raw = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
    let Progress::Complete((head, _)) = parse_head(raw.as_bytes(), &HeadLimits::default()).unwrap()
    else {
        panic!("the head is not whole: {raw:?}");
    };
    let address = (via == Via::Tcp).then(|| "127.0.0.1:8090".parse().unwrap());
    let arrival = Arrival {
        peer: PeerAddress::Unix,
        listener: Arc::new(ListenerInfo {
            scheme: "http",
            address,
            name: "admin".into(),
        }),
        client: Arc::default(),
        at: Instant::now(),
    };
    let path = RequestPath::of(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}
