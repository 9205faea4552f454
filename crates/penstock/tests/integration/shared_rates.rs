//! A limit that two servers share over Redis, and what it is while Redis is away.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Redis, Server, Site, eventually};

/// Requests a second, and at once.
const RATE: u32 = 100;
const BURST: u32 = 20;

fn serve(redis: &Redis) -> Server {
    let toml = format!(
        "[server]\nthreads = 2\nredis = \"unix:{}\"\n[[sites]]\n[[sites.routes]]\npath = \"/free\"\n\
         respond = {{ body = \"free\" }}\n[[sites.routes]]\nrespond = {{ body = \"in\" }}\n\
         rate_limit = {{ rate = \"{RATE}/s\", burst = {BURST}, key = \"header:X-Key\" }}\n",
        redis.socket.display()
    );
    Site::new().config(&toml).serve(&[])
}

fn is_connected(server: &Server) -> bool {
    server.admin_json()["shared_rates"]["connected"] == true
}

/// Floods each server for some time with requests of one key: how many pass in all, in which time,
/// and the longest time to a response.
fn flood(servers: &[&Server], key: &str, time: Duration) -> (u32, Duration, Duration) {
    let begin = Instant::now();
    let one = |server: &Server| {
        let mut client = server.connect();
        let (mut passed, mut longest) = (0, Duration::ZERO);
        while begin.elapsed() < time {
            let sent = Instant::now();
            client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n\r\n"));
            match client.response().status {
                200 => passed += 1,
                status => assert_eq!(status, 429),
            }
            longest = longest.max(sent.elapsed());
        }
        (passed, longest)
    };
    let results: Vec<(u32, Duration)> = std::thread::scope(|scope| {
        let floods: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(|| one(server)))
            .collect();
        floods.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let passed = results.iter().map(|(passed, _)| passed).sum();
    let longest = results.iter().map(|(_, longest)| *longest).max();
    (passed, begin.elapsed(), longest.unwrap())
}

/// What a limit lets through in a time.
fn allowance(time: Duration) -> f64 {
    f64::from(BURST) + f64::from(RATE) * time.as_secs_f64()
}

fn assert_shared(servers: &[&Server], key: &str) {
    let (passed, time, longest) = flood(servers, key, Duration::from_secs(4));
    let expected = allowance(time);
    let deviation = (f64::from(passed) - expected).abs() / expected;
    assert!(deviation <= 0.05, "{passed} of {expected} in {time:?}");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

#[test]
fn two_servers_share_a_limit_and_each_limits_alone_without_redis() {
    let site = Site::new();
    let redis = Redis::start(&site);
    let servers = [serve(&redis), serve(&redis)];
    let all: Vec<&Server> = servers.iter().collect();
    eventually(PATIENCE, "both are connected", || {
        all.iter().all(|server| is_connected(server))
    });
    assert_shared(&all, "a");
    drop(redis);
    // Each one limits alone; none lets all through, and none waits for Redis.
    let (passed, time, longest) = flood(&all, "b", Duration::from_secs(2));
    let most = 2.0 * allowance(time);
    assert!(
        passed > 2 * BURST && f64::from(passed) <= 1.1 * most,
        "{passed} of {most}"
    );
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    for server in &all {
        assert!(!is_connected(server));
        assert!(server.admin_json()["shared_rates"]["decided_alone"].as_u64() > Some(0));
        let log = server.log();
        let told = log
            .matches("each server limits alone until it is back")
            .count();
        assert_eq!(told, 1, "{log}");
    }
    let redis = Redis::start(&site);
    eventually(PATIENCE, "both are connected again", || {
        all.iter().all(|server| is_connected(server))
    });
    assert_shared(&all, "c");
    drop(redis);
}
