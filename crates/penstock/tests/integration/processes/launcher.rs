//! The launcher, and the front end that has given up starting programs, in a real server.

use rustix::process::Signal;

use super::{FORKED, PLAIN, RACK, WatchedServer, send};
use crate::support::{PATIENCE, eventually, is_server_hidden, kernel_parts};

/// A field of the status of a process, or of one of its threads.
fn status(path: &str, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{path}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

/// The launcher among the children of the server.
fn launcher(watched: &WatchedServer) -> i32 {
    let list = format!("/proc/{0}/task/{0}/children", watched.pid());
    let children = std::fs::read_to_string(list).unwrap();
    let mut children = children.split_whitespace();
    let is_it = |pid: &&str| status(pid, "Name").as_deref() == Some("penstock-launch");
    children.find(is_it).unwrap().parse().unwrap()
}

#[test]
fn no_thread_of_the_front_end_may_start_programs_and_workers_may() {
    if is_server_hidden() {
        return;
    }
    for model in [FORKED, PLAIN, RACK] {
        let watched = model.serve("processes = 1");
        let server = watched.pid();
        let threads = std::fs::read_dir(format!("/proc/{server}/task")).unwrap();
        let threads: Vec<_> = threads
            .map(|thread| thread.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(threads.len() > 2, "{threads:?}");
        for thread in threads {
            let filter = status(&format!("{server}/task/{thread}"), "Seccomp");
            // 2 is a filter (proc_pid_status(5)); a thread may end meanwhile.
            assert!(filter.is_none_or(|filter| filter == "2"), "{model:?}");
        }
        let launcher = launcher(&watched);
        let open = std::fs::read_dir(format!("/proc/{launcher}/fd")).unwrap();
        // Standard streams, two sockets to the server and both ends of one for listeners, and a
        // listener of refused calls.
        let has_listener = kernel_parts().has_notifications;
        assert_eq!(open.count(), 7 + usize::from(has_listener));
        let worker = watched.ready()[0];
        assert_eq!(
            status(&worker.to_string(), "PPid").unwrap(),
            server.to_string()
        );
        assert_eq!(watched.get("/children").status, 200, "{model:?}");
    }
}

#[test]
fn without_its_launcher_a_server_serves_on_and_says_what_to_do() {
    if is_server_hidden() {
        return;
    }
    let watched = PLAIN.serve("processes = 1");
    send(launcher(&watched), Signal::KILL);
    let (status, _, errors) = watched.restart();
    assert_eq!(status, 1, "{errors}");
    assert!(
        errors.contains("launcher") && errors.contains("restart the server"),
        "{errors}"
    );
    assert_eq!(watched.get("/").status, 200);
    watched.signal(Signal::TERM);
    assert_eq!(
        watched.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        watched.log()
    );
    eventually(PATIENCE, "nothing is left", || {
        watched.leftovers().is_empty()
    });
}
