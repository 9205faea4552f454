//! Open loops: the rate is held whatever the server does, and a stall shows in full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_bench::load::{Load, WindowEnd};
use penstock_bench::report::LoadFigures;

use crate::server::{HELLO, Server, refusing};
use crate::{load, plan, run};

fn open(mut load: Load, rate: f64) -> Load {
    load.rate = Some(rate);
    load
}

fn run_for(load: Load, milliseconds: u64) -> LoadFigures {
    run(&plan(
        load,
        WindowEnd::Elapsed(Duration::from_millis(milliseconds)),
    ))
}

/// Responds at once, except for the first 200 ms of each 2 s.
fn stalling() -> Server {
    let start = Arc::new(Instant::now());
    Server::start(move |connection| {
        while connection.request().is_some() {
            let within = start.elapsed().as_millis() % 2_000;
            if let Some(left) = 200_u64.checked_sub(u64::try_from(within).unwrap()) {
                crate::server::take(Duration::from_millis(left));
            }
            connection.send(HELLO);
        }
    })
}

#[test]
fn holds_its_rate() {
    for (name, rate, connections, threads) in [
        ("low", 50.0, 4, 1),
        ("high", 2_000.0, 32, 1),
        ("two loops", 500.0, 8, 2),
    ] {
        let server = Server::answering(HELLO);
        let window = WindowEnd::Elapsed(Duration::from_secs(1));
        let mut plan = plan(
            open(load(server.address.clone(), connections), rate),
            window,
        );
        plan.warm_up = Duration::from_millis(200);
        plan.threads = threads;
        let figures = run(&plan);
        let schedule = figures.schedule.unwrap();
        #[allow(clippy::cast_precision_loss, reason = "few arrivals")]
        let per_second = schedule.due as f64 / figures.seconds;
        assert!(
            (per_second / rate - 1.0).abs() < 0.05,
            "{name}: {schedule:?} {}",
            figures.seconds
        );
        assert_eq!(figures.rate, Some(rate), "{name}");
        // Some may be in progress at the end.
        let seen = figures.requests + schedule.skipped + figures.unfinished;
        assert_eq!(schedule.due, seen, "{name}: {schedule:?}");
        assert!(figures.unfinished <= u64::from(connections), "{name}");
        assert_eq!(figures.service.unwrap().count, figures.requests, "{name}");
        assert_eq!(figures.errors.total(), 0, "{name}");
    }
}

#[test]
fn a_stall_shows_in_full_with_enough_connections() {
    let server = stalling();
    let figures = run_for(open(load(server.address.clone(), 128), 200.0), 4_000);
    assert_eq!(figures.schedule.unwrap().skipped, 0);
    assert!(
        (150_000..400_000).contains(&figures.total.p99),
        "{:?}",
        figures.total
    );
    assert!(figures.total.p50 < 20_000, "{:?}", figures.total);
}

#[test]
fn a_stall_shows_in_full_though_few_connections_are_left_to_see_it() {
    let server = stalling();
    let figures = run_for(open(load(server.address.clone(), 2), 200.0), 4_000);
    let schedule = figures.schedule.unwrap();
    let service = figures.service.unwrap();
    assert!((60..200).contains(&schedule.skipped), "{schedule:?}");
    assert!(
        (150_000..400_000).contains(&figures.total.p99),
        "{:?}",
        figures.total
    );
    assert!(
        service.p99 < 100_000,
        "what was sent hides the stall: {service:?}"
    );
    let all = figures.requests + schedule.skipped + figures.unfinished;
    assert_eq!((figures.total.count, schedule.due), (all, all));
    // At most one per connection was in progress at the end.
    let sent = server.requests() - figures.requests;
    assert!(sent <= 2, "what was skipped is not sent later: {sent}");
}

#[test]
fn arrivals_that_wait_at_the_end_have_waited_until_the_end() {
    let server = Server::start(|connection| while connection.request().is_some() {});
    let figures = run_for(open(load(server.address.clone(), 2), 100.0), 500);
    let schedule = figures.schedule.unwrap();
    assert_eq!((figures.requests, schedule.due - schedule.skipped), (0, 2));
    assert_eq!(figures.unfinished, 2);
    assert_eq!(figures.total.count, schedule.skipped + 2);
    assert!(
        (400_000..900_000).contains(&figures.total.max),
        "{:?}",
        figures.total
    );
}

#[test]
fn a_number_of_requests_ends_an_open_loop_too() {
    let server = Server::answering(HELLO);
    let load = open(load(server.address.clone(), 4), 500.0);
    let figures = run(&plan(load, WindowEnd::Requests(100)));
    assert_eq!((figures.requests, server.requests()), (100, 100));
    assert!(
        (0.15..1.5).contains(&figures.seconds),
        "{}",
        figures.seconds
    );
}

#[test]
fn arrivals_at_a_server_that_refuses_are_errors_or_skipped() {
    let figures = run_for(open(load(refusing(), 2), 200.0), 500);
    let schedule = figures.schedule.unwrap();
    assert!(
        figures.errors.connect > 0 && schedule.skipped > 0,
        "{figures:?}"
    );
    assert!(schedule.due >= figures.errors.connect + schedule.skipped);
}

#[test]
fn a_connection_for_each_arrival_is_part_of_its_time() {
    let server = Server::answering(HELLO);
    let mut load = open(load(server.address.clone(), 4), 100.0);
    load.keep_alive = false;
    let figures = run_for(load, 500);
    assert!(figures.is_clean(), "{figures:?}");
    let under_way = figures.connect.count - figures.requests;
    assert!(under_way <= 4, "{figures:?}");
    assert!(figures.total.mean >= figures.connect.mean);
}
