//! Clients that vanish without a word, and a shard that breaks.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Program, Stdio};

use rustix::net::sockopt;

use super::*;
use crate::StreamKeepAlive;

#[test]
fn the_kernel_looks_after_clients_that_vanish() {
    on_a_loop(async {
        let stall_timeout = Duration::from_secs(40);
        let mut alone = ShardHarness::with(Settings {
            send_timeout: stall_timeout,
            ..Settings::default()
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut clients = Vec::new();
        let beat = |bytes: &'static [u8]| {
            Some(StreamKeepAlive {
                bytes: Bytes::from_static(bytes),
                interval: Duration::from_secs(15),
                is_unconditional: false,
            })
        };
        for (keep_alive, is_asked) in [(None, true), (beat(b""), true), (beat(b":\n\n"), false)] {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let (ours, _) = listener.accept().unwrap();
            ours.set_nonblocking(true).unwrap();
            let asked = HeldStream {
                keep_alive,
                ..stream("a")
            };
            // The same socket once more, as options are read from it.
            let socket = &ours.try_clone().unwrap();
            alone.add_stream_on(ours.into(), asked);
            alone.turns().await;
            assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 40_000);
            assert_eq!(sockopt::socket_keepalive(socket).unwrap(), is_asked);
            if is_asked {
                assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), stall_timeout);
            }
        }
    });
}

/// Set in the process that is to break.
const BREAKS: &str = "PENSTOCK_TEST_SHARD_BREAKS";

#[derive(Debug)]
struct PanickingCounter;

impl HeldConnectionCounter for PanickingCounter {
    fn release_held_connection(&self) {
        panic!("a test's own");
    }
}

/// Lets a stream end whose front end panics over it; returns if nothing comes of it.
fn break_a_shard() {
    let loops = penstock_runtime::EventLoops::start(1).unwrap();
    let hub = crate::Hub::start(Settings::default(), loops.handles()).unwrap();
    let Ok(penstock_exchange::Body::Hold(hold)) = hub.stream_body(stream("a")) else {
        panic!("a stream is held");
    };
    let (ours, theirs) = net::worker_socket_pair().unwrap();
    loops.handles()[0].spawn(async move {
        let guard = HeldConnectionGuard::new(Arc::new(PanickingCounter));
        hold.hold(ours.into(), 0, HeldFraming::UntilClose, guard);
    });
    drop(theirs);
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test's own process, which is waited for"
)]
fn a_shard_that_panics_ends_the_process() {
    if std::env::var_os(BREAKS).is_some() {
        break_a_shard();
        return;
    }
    let own = std::env::current_exe().unwrap();
    let name = std::thread::current().name().unwrap().to_owned();
    let ended = Program::new(own)
        .args([&name, "--exact", "--nocapture"])
        .env(BREAKS, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let abort = rustix::process::Signal::ABORT.as_raw();
    assert_eq!(ended.signal(), Some(abort), "{ended}");
}
