//! Certificates that change, and servers that follow one another, under load.

use std::time::{Duration, Instant};

use super::{HttpsServer, file_site, write_certificate};
use crate::support::{ClientLoad, LoadClient, PATIENCE, eventually, is_alive, texts};
use crate::upgrade::{SuccessorProcess, pid_now, upgrade};

/// Clients that keep their connection. They ask five times a second.
const KEPT: usize = 64;

/// Reloads and upgrades; `PENSTOCK_TLS_CHANGES=100,20` has more than a run of all tests.
fn changes() -> (usize, usize) {
    let wanted = std::env::var("PENSTOCK_TLS_CHANGES").unwrap_or_else(|_| "4,2".to_owned());
    let (reloads, upgrades) = wanted.split_once(',').expect("RELOADS,UPGRADES");
    (reloads.parse().unwrap(), upgrades.parse().unwrap())
}

#[test]
fn new_certificates_and_new_servers_fail_no_request() {
    let (reloads, upgrades) = changes();
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &format!("keep_alive_drain = \"2s\"\n{toml}"));
    let (server, port) = (&https.server, https.port());
    let client = |keeps, pause| LoadClient {
        path: "/a.txt",
        keeps,
        pause: Duration::from_millis(pause),
    };
    let mut clients = vec![client(true, 200); KEPT];
    clients.extend([client(false, 0), client(false, 5)]);
    let tls = https.client.clone();
    let connect = move || tls.try_connect(port, "a.test").map_err(|it| it.to_string());
    let load = ClientLoad::start(connect, "a.test", &clients);
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let (began, mut before, mut reloaded) = (Instant::now(), server.pid(), 0);
    for number in 1..=upgrades {
        eventually(PATIENCE, "all are connected", || {
            load.open_connections() == KEPT
        });
        let connections = load.kept_connections();
        while reloaded < reloads * number / upgrades {
            let certificate = https.authority.issue(&["a.test"]);
            write_certificate(server.site(), "a", &certificate);
            let (stdout, stderr) = texts(&server.site().run(&["reload", "--admin", &admin]));
            assert!(stdout.contains("reloaded"), "{stdout}{stderr}");
            let shown = https.client.shown_certificate(port, "a.test");
            assert_eq!(shown, certificate.der());
            load.more(KEPT);
            reloaded += 1;
        }
        // A reload closes no connection.
        assert_eq!(load.kept_connections(), connections);
        let shown = https.client.shown_certificate(port, "a.test");
        let (code, stdout, stderr) = upgrade(server, &[]);
        assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
        let now = pid_now(server);
        assert_ne!(now, before);
        eventually(PATIENCE, "the one before ends", || {
            match before == server.pid() {
                true => server.exited().is_some(),
                false => !is_alive(before),
            }
        });
        assert_eq!(https.client.shown_certificate(port, "a.test"), shown);
        load.more(KEPT);
        before = now;
    }
    let successor = SuccessorProcess::of(server);
    let (answered, connections) = (load.answered(), load.kept_connections());
    load.end();
    eprintln!(
        "{reloads} reloads, {upgrades} upgrades, {answered} requests in {:.1?}; {connections} \
         kept connections",
        began.elapsed()
    );
    successor.end();
}
