//! Applications that send signals to the server: it ignores them, and logs the sender.
//!
//! From themselves, from programs that they start, and from processes that have left them; not from
//! those that are gone before the server reads the signal. Where applications are isolated, the
//! kernel delivers no such signal at all (`isolation`).
//!
//! # Invariants
//!
//! - Signals of all other processes are handled.

use rustix::process::Signal;

use super::{ASGI, FORKED, PLAIN, ProcessModel, RACK, WatchedServer};
use crate::support::{PATIENCE, eventually};

const SIGNALS: [&str; 5] = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"];

#[test]
fn a_signal_of_a_worker_to_the_server_is_ignored_and_named() {
    for model in [FORKED, PLAIN, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2\nisolation = false");
        let old = watched.settled(2);
        let server = watched.pid().to_string();
        // Every model can do it itself; its children behave the same in all.
        let signals = if name == "plain" || name == "asgi" {
            &SIGNALS[..1]
        } else {
            &SIGNALS
        };
        for signal in signals {
            assert_eq!(watched.get(&format!("/parent?{signal}")).text(), server);
        }
        for signal in signals {
            watched
                .wait_log(&format!("{signal} from app["))
                .wait_log(&format!("{signal} from process "))
                .wait_log("ignored: application processes cannot control the server");
        }
        eventually(PATIENCE, "all have been sent", || {
            watched.lines("told").len() == signals.len()
        });
        watched.open("heard");
        assert_eq!(watched.get("/").status, 200, "{name}");
        assert_eq!(watched.settled(2), old, "{name}: nothing was done");
        assert_eq!(watched.admin_json()["config_reloads"], 0, "{name}");
        // Signals of others still work; files written to its directory count as code.
        watched.signal(Signal::HUP);
        watched.wait_log("reload: application app restarted");
    }
}

#[test]
fn a_signal_of_code_that_is_loaded_is_ignored_too() {
    for model in [FORKED, RACK] {
        let site = model.site("processes = 1\nisolation = false");
        site.write("boot", "kill_parent");
        let watched = WatchedServer::new(&site);
        watched.wait_ready("app");
        assert_eq!(watched.get("/").status, 200, "{model:?}");
        watched
            .wait_log("SIGTERM from app[")
            .wait_log("SIGHUP from app[");
    }
}
