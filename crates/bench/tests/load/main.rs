//! The load engine against real sockets: its counts, its timing, and its handling of misbehaving
//! servers.
//!
//! `server` is a scriptable server on its own threads; each test passes it a script and checks the
//! figures. The tests need nothing outside this directory, and every wait is bounded.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and their servers block, each on a thread of its own"
)]

mod closed;
mod failures;
mod open;
mod server;
mod tls;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use penstock_bench::load::{
    Address, EncodedRequest, Load, LoadPlan, RequestOrder, WindowEnd, execute,
};
use penstock_bench::report::LoadFigures;

/// A load of `GET /` over that many connections, as fast as responses arrive.
fn load(address: Address, connections: u32) -> Load {
    Load {
        name: String::new(),
        requests: vec![shape(address, "GET /")],
        order: RequestOrder::Random,
        connections,
        rate: None,
        keep_alive: true,
        timeout: Duration::from_secs(10),
    }
}

/// A request like `GET /path` without a body.
fn shape(address: Address, line: &str) -> EncodedRequest {
    EncodedRequest {
        address,
        tls: None,
        bytes: format!("{line} HTTP/1.1\r\nHost: test\r\n\r\n").into(),
        weight: 1,
        is_head: line.starts_with("HEAD"),
    }
}

fn plan(load: Load, until: WindowEnd) -> LoadPlan {
    LoadPlan {
        loads: vec![load],
        window_end: until,
        warm_up: Duration::ZERO,
        threads: 1,
        core: None,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

fn run(plan: &LoadPlan) -> LoadFigures {
    let mut all = execute(plan, &mut |_| {}).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Executes one load until that many requests ended.
fn run_requests(load: Load, requests: u64) -> LoadFigures {
    run(&plan(load, WindowEnd::Requests(requests)))
}
