//! System calls that sandboxes refuse: the launcher replies to each, and reports them to the
//! server.
//!
//! A filter refuses a call by passing it to its listener, which the program's process sends to the
//! launcher before it becomes the program ([`RefusalMonitor::registrar`]). The launcher replies
//! while it waits for orders.
//!
//! # Invariants
//! - Orders come first: between two checks for one, each sandbox gets one reply at most.
//! - A flood of refused calls costs little: replies of a sandbox are limited in each slice of time,
//!   and its callers wait for the next. Reports are bounded; suppressed ones are counted.
//! - Sending a report never blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Resource;
use serde::{Deserialize, Serialize};

use crate::isolation::{
    self, SandboxFilters,
    seccomp_listener::{self, SeccompNotification},
};
use crate::{fd_packets, resource_limits};

/// Maximum number of sandboxes with reported calls, in all and of an application: programs
/// that are started beyond that are refused the same calls without reports. The listeners of ended
/// programs are closed.
const LISTENERS_MAX: usize = 512;
const LISTENERS_OF_APP_MAX: usize = 128;

/// Interval between two reports that there is no more room.
const FULL_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of replies to a sandbox in each slice of time; a reply takes some tens of us.
const ANSWERS_MAX: u32 = 100;
const SLICE: Duration = Duration::from_millis(100);

/// Interval between two reports of the same call, and maximum number of different calls of a
/// sandbox in it.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPORTS_MAX: usize = 32;

/// Longest report: numbers, the name of a program (15 bytes) and of an application, or a sentence.
const MAX_REPORT_BYTES: usize = 1024;

/// A system call that an application was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCall {
    /// The application.
    pub app: String,
    /// The calling process.
    pub pid: u32,
    /// The name of its program, as the kernel has it.
    pub program: String,
    /// The call.
    kind: Kind,
    /// How often, since the last report of the same.
    pub count: u32,
}

/// The common properties of calls that are reported as the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Kind {
    /// Its number; `None` of another processor's interface.
    call: Option<u32>,
    target: Target,
    signal: Option<u32>,
}

/// The guarded processes that a call affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Target {
    None,
    Server,
    Launcher,
    Everyone,
}

impl std::fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Kind {
            call,
            target,
            signal,
        } = self.kind;
        match call.map(|call| (call, seccomp_listener::call_name(call))) {
            Some((_, Some(name))) => f.write_str(name)?,
            Some((number, None)) => write!(f, "call {number}")?,
            None => f.write_str("a call of another processor's interface")?,
        }
        match signal {
            Some(0) => f.write_str(" without a signal")?,
            Some(signal) => write!(f, " with signal {signal}")?,
            None => {}
        }
        f.write_str(match target {
            Target::None => "",
            Target::Server => " to the server",
            Target::Launcher => " to the server's launcher",
            Target::Everyone => " to all processes",
        })?;
        let (pid, program) = (self.pid, &self.program);
        write!(f, " by process {pid} ({program})")?;
        f.write_str(match target {
            Target::None => ": applications may not look into other processes or change the system",
            _ => ": application processes cannot control the server",
        })?;
        match self.count {
            0 | 1 => Ok(()),
            // From other processes as well, and of other kinds where there are many.
            count => write!(f, " ({count} calls, this one and others)"),
        }
    }
}

/// A message from the launcher on the socket of [`super::Launcher::take_report_socket`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LauncherReport {
    /// A refused call.
    RefusedCall(RefusedCall),
    /// A sentence for the log.
    Note(String),
}

impl LauncherReport {
    /// Decodes a report; `None` if it is invalid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[derive(Debug)]
pub(super) struct RefusalMonitor {
    reports: OwnedFd,
    /// Where listeners arrive, and where processes that are being started send them, with the name
    /// of their application.
    arrivals: OwnedFd,
    registration_socket: OwnedFd,
    guarded: Guarded,
    filters: SandboxFilters,
    sandboxes: Vec<Watched>,
    room: Room,
    /// When the server was last told that there is no room.
    noted_full: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Room {
    of_all: usize,
    of_app: usize,
}

/// At most half of the descriptors that this process may have.
fn find_room() -> Room {
    let limit = resource_limits::read_limit(Resource::Nofile);
    let limit = limit.ok().and_then(|limit| limit.current);
    let half = limit.and_then(|limit| usize::try_from(limit / 2).ok());
    let of_all = half.map_or(LISTENERS_MAX, |half| half.min(LISTENERS_MAX));
    Room {
        of_all,
        of_app: of_all.min(LISTENERS_OF_APP_MAX),
    }
}

/// Processes that no call of an application may affect.
#[derive(Debug, Clone, Copy)]
struct Guarded {
    server: u32,
    /// The server's group, which may be its parent's.
    group: u32,
    launcher: u32,
}

#[derive(Debug)]
struct Watched {
    listener: OwnedFd,
    app: String,
    /// Start of the present slice, and replies since then.
    slice: Instant,
    answered: u32,
    /// Start of the present report interval, and the calls reported in it, with repetitions.
    interval: Instant,
    reported: Vec<RefusedCall>,
    /// Those for which there was no room.
    left_out: Option<RefusedCall>,
}

impl RefusalMonitor {
    /// Creates the listeners of a launcher for this server; reports are sent to `reports`.
    pub(super) fn new(reports: OwnedFd, server: rustix::process::Pid) -> io::Result<Self> {
        let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get().unsigned_abs();
        let guarded = Guarded {
            server: number(server),
            group: isolation::process_group(server).unwrap_or_else(|| number(server)),
            launcher: number(rustix::process::getpid()),
        };
        let Guarded {
            server,
            group,
            launcher,
        } = guarded;
        let (arrivals, registration_socket) = fd_packets::packet_pair()?;
        Ok(Self {
            reports,
            arrivals,
            registration_socket,
            guarded,
            filters: SandboxFilters::guarding(&[server, group, launcher]),
            sandboxes: Vec::new(),
            room: find_room(),
            noted_full: None,
        })
    }

    /// The socket to which a process sends its listener, with the name of its application.
    pub(super) fn registrar(&self) -> io::Result<OwnedFd> {
        self.registration_socket.try_clone()
    }

    /// Accepts a listener that has arrived.
    fn take_in(&mut self) {
        let mut app = [0; MAX_REPORT_BYTES];
        // A truncated message contains no listener, and its calls fail.
        if let Ok((length, Some(listener))) =
            fd_packets::receive_packet(self.arrivals.as_fd(), &mut app)
            && self.sandboxes.len() < self.room.of_all
        {
            let app = String::from_utf8_lossy(&app[..length]);
            self.watch(&app, listener);
            self.note_full(&app);
        }
    }

    pub(super) fn filters(&self) -> &SandboxFilters {
        &self.filters
    }

    /// Whether another sandbox of the application can be watched.
    pub(super) fn has_room(&self, app: &str) -> bool {
        let of_app = self.sandboxes.iter().filter(|sandbox| sandbox.app == app);
        self.sandboxes.len() < self.room.of_all && of_app.count() < self.room.of_app
    }

    /// Tells the server that there is no more room for an application, at limited intervals.
    fn note_full(&mut self, app: &str) {
        let is_told = |told: Instant| told.elapsed() < FULL_INTERVAL;
        if self.has_room(app) || self.noted_full.is_some_and(is_told) {
            return;
        }
        self.noted_full = Some(Instant::now());
        let (all, of_app) = (self.room.of_all, self.room.of_app);
        self.send_note(format!(
            "calls that are refused to processes that apps.{app} starts from now on are not named \
             here: sandboxes of {of_app} starts of an application are watched, and of {all} in all, \
             until their last process ends"
        ));
    }

    /// Sends a line for the server's log.
    pub(super) fn send_note(&self, text: String) {
        send(&self.reports, &LauncherReport::Note(text));
    }

    /// Watches a sandbox, until the last of its processes has ended.
    fn watch(&mut self, app: &str, listener: OwnedFd) {
        let now = Instant::now();
        self.sandboxes.push(Watched {
            listener,
            app: app.to_owned(),
            slice: now,
            answered: 0,
            interval: now,
            reported: Vec::new(),
            left_out: None,
        });
    }

    /// Replies to refused calls until there is an order.
    pub(super) fn answer_until_order(&mut self, orders: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let ready = self.wait(orders)?;
            let Some(([order, arrival], sandboxes)) = ready.split_first_chunk() else {
                return Ok(());
            };
            let mut ended = Vec::new();
            for ((at, sandbox), ready) in self.sandboxes.iter_mut().enumerate().zip(sandboxes) {
                if ready.contains(PollFlags::IN) {
                    sandbox.answer(self.guarded, &self.reports);
                } else if !ready.is_empty() {
                    ended.push(at);
                }
            }
            for at in ended.into_iter().rev() {
                self.sandboxes.swap_remove(at).report_rest(&self.reports);
            }
            if arrival.contains(PollFlags::IN) {
                self.take_in();
            }
            if !order.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits for an order, a call, the end of a sandbox, or a due report; returns the ready events,
    /// those of orders and arrivals first.
    fn wait(&mut self, orders: BorrowedFd<'_>) -> io::Result<Vec<PollFlags>> {
        let now = Instant::now();
        for sandbox in &mut self.sandboxes {
            sandbox.begin_anew(now, &self.reports);
        }
        let due = self.sandboxes.iter().filter_map(Watched::due).min();
        let left = due.map(|due| due.saturating_duration_since(now));
        let left = left.map(Timespec::try_from).transpose();
        let left = left.map_err(io::Error::other)?;
        let mut polled = vec![
            PollFd::from_borrowed_fd(orders, PollFlags::IN),
            PollFd::new(&self.arrivals, PollFlags::IN),
        ];
        polled.extend(self.sandboxes.iter().map(|sandbox| {
            let wanted = match sandbox.answered < ANSWERS_MAX {
                true => PollFlags::IN,
                // Its end is still reported.
                false => PollFlags::empty(),
            };
            PollFd::new(&sandbox.listener, wanted)
        }));
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(polled.iter().map(PollFd::revents).collect()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Watched {
    /// When it must be handled without an event.
    fn due(&self) -> Option<Instant> {
        let is_held = self.answered >= ANSWERS_MAX;
        let slice = is_held.then(|| self.slice + SLICE);
        let has_more = self.left_out.is_some() || self.reported.iter().any(|call| call.count > 0);
        let interval = has_more.then(|| self.interval + REPORT_INTERVAL);
        slice.into_iter().chain(interval).min()
    }

    fn begin_anew(&mut self, now: Instant, reports: &OwnedFd) {
        if now >= self.slice + SLICE {
            (self.slice, self.answered) = (now, 0);
        }
        if now >= self.interval + REPORT_INTERVAL {
            self.interval = now;
            self.report_rest(reports);
        }
    }

    /// Reports calls that were repeated since their report.
    fn report_rest(&mut self, reports: &OwnedFd) {
        let reported = self.reported.drain(..).chain(self.left_out.take());
        let again = reported.filter(|call| call.count > 0);
        again.for_each(|call| send(reports, &LauncherReport::RefusedCall(call)));
    }

    fn answer(&mut self, guarded: Guarded, reports: &OwnedFd) {
        let Some(call) = seccomp_listener::receive(self.listener.as_fd()) else {
            return;
        };
        self.answered += 1;
        let kind = Kind::of(&call, guarded);
        let mut known = self.reported.iter_mut();
        if let Some(known) = known.find(|known| known.kind == kind) {
            known.count = known.count.saturating_add(1);
        } else if let Some(left_out) = &mut self.left_out {
            left_out.count = left_out.count.saturating_add(1);
        } else {
            let mut refused = self.name(&call, kind);
            if self.reported.len() == REPORTS_MAX {
                self.left_out = Some(refused);
            } else {
                send(reports, &LauncherReport::RefusedCall(refused.clone()));
                refused.count = 0;
                self.reported.push(refused);
            }
        }
        seccomp_listener::refuse(self.listener.as_fd(), &call);
    }

    /// Identifies the caller, while the call waits: later the thread id may be reused.
    fn name(&self, call: &SeccompNotification, kind: Kind) -> RefusedCall {
        #[expect(clippy::disallowed_methods, reason = "/proc is memory, no disk")]
        let status = std::fs::read(format!("/proc/{}/status", call.thread));
        let is_its_own = seccomp_listener::is_waiting(self.listener.as_fd(), call);
        let status = status.ok().filter(|_| is_its_own).unwrap_or_default();
        // A name may be any bytes.
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
        };
        RefusedCall {
            app: self.app.clone(),
            pid: field("Tgid")
                .and_then(|pid| pid.parse().ok())
                .unwrap_or(call.thread),
            program: field("Name").unwrap_or("exited").chars().take(64).collect(),
            kind,
            count: 1,
        }
    }
}

impl Kind {
    fn of(call: &SeccompNotification, guarded: Guarded) -> Self {
        let SeccompNotification { arguments, .. } = *call;
        let process = call
            .call
            .and_then(|call| seccomp_listener::target_process(call, arguments));
        let signal = call
            .call
            .and_then(|call| seccomp_listener::sent_signal(call, arguments));
        Self {
            call: call.call,
            target: match process {
                None => Target::None,
                Some(pid) if pid == guarded.launcher => Target::Launcher,
                Some(pid) if pid == guarded.server || pid == guarded.group => Target::Server,
                Some(seccomp_listener::ALL_PROCESSES) => Target::Everyone,
                // Limits of another process.
                Some(_) => Target::None,
            },
            signal,
        }
    }
}

/// A report that finds no room is dropped: the server has enough of them.
fn send(reports: &OwnedFd, report: &LauncherReport) {
    if let Ok(bytes) = serde_json::to_vec(report) {
        let _ = fd_packets::send_packet(reports.as_fd(), &bytes, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARDED: Guarded = Guarded {
        server: 70,
        group: 60,
        launcher: 71,
    };

    fn refused(call: libc::c_long, target: Target, signal: Option<u32>) -> RefusedCall {
        RefusedCall {
            app: "shop".to_owned(),
            pid: 1234,
            program: "python3".to_owned(),
            kind: Kind {
                call: u32::try_from(call).ok(),
                target,
                signal,
            },
            count: 1,
        }
    }

    #[test]
    fn reports_are_read_as_they_were_written() {
        for call in [
            refused(libc::SYS_ptrace, Target::None, None),
            refused(libc::SYS_kill, Target::Server, Some(0)),
            refused(-1, Target::None, None),
        ] {
            let report = LauncherReport::RefusedCall(call);
            let bytes = serde_json::to_vec(&report).unwrap();
            assert!(bytes.len() < MAX_REPORT_BYTES);
            assert_eq!(LauncherReport::decode(&bytes), Some(report));
            assert_eq!(LauncherReport::decode(&bytes[..15]), None);
        }
        let note = LauncherReport::Note("a sentence".to_owned());
        let bytes = serde_json::to_vec(&note).unwrap();
        assert_eq!(LauncherReport::decode(&bytes), Some(note));
        assert_eq!(LauncherReport::decode(b""), None);
        assert_eq!(LauncherReport::decode(b"x"), None);
    }

    #[test]
    fn reports_are_sentences() {
        let kill = refused(libc::SYS_kill, Target::Everyone, Some(9));
        assert_eq!(
            kill.to_string(),
            "kill with signal 9 to all processes by process 1234 (python3): application processes \
             cannot control the server"
        );
        let mut ptrace = refused(libc::SYS_ptrace, Target::None, None);
        ptrace.count = 7;
        assert_eq!(
            ptrace.to_string(),
            "ptrace by process 1234 (python3): applications may not look into other processes or \
             change the system (7 calls, this one and others)"
        );
    }

    #[test]
    fn an_application_leaves_room_for_others_and_a_full_launcher_says_so_once() {
        let (reports, theirs) = fd_packets::packet_pair().unwrap();
        let mut refusals = RefusalMonitor::new(theirs, rustix::process::getpid()).unwrap();
        refusals.room = Room {
            of_all: 3,
            of_app: 2,
        };
        let registration_socket = refusals.registrar().unwrap();
        let mut arrive = |app: &str| {
            let (ours, _) = fd_packets::packet_pair().unwrap();
            fd_packets::send_packet(
                registration_socket.as_fd(),
                app.as_bytes(),
                Some(ours.as_fd()),
            )
            .unwrap();
            refusals.take_in();
            (refusals.has_room("shop"), refusals.has_room("blog"))
        };
        assert_eq!(arrive("shop"), (true, true));
        assert_eq!(arrive("shop"), (false, true));
        assert_eq!(arrive("blog"), (false, false));
        // One that was already on its way.
        assert_eq!(arrive("blog"), (false, false));
        assert_eq!(refusals.sandboxes.len(), 3);
        let mut buffer = [0; 1024];
        let (length, _) = fd_packets::receive_packet(reports.as_fd(), &mut buffer).unwrap();
        let Some(LauncherReport::Note(text)) = LauncherReport::decode(&buffer[..length]) else {
            panic!("a note");
        };
        assert!(
            text.contains("apps.shop") && text.contains("2 starts"),
            "{text}"
        );
        let again = fd_packets::receive_packet(reports.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
    }

    /// A thread within a sandbox that runs `act`, and the launcher's side of it.
    fn watched(
        act: impl FnOnce() + Send + 'static,
    ) -> Option<(RefusalMonitor, OwnedFd, std::thread::JoinHandle<()>)> {
        if !isolation::missing_isolation().is_empty() {
            return None;
        }
        let (ours, theirs) = fd_packets::packet_pair().unwrap();
        let (arrivals, registration_socket) = fd_packets::packet_pair().unwrap();
        let mut refusals = RefusalMonitor {
            reports: theirs,
            arrivals,
            registration_socket,
            guarded: GUARDED,
            filters: SandboxFilters::guarding(&[70, 60, 71]),
            sandboxes: Vec::new(),
            room: find_room(),
            noted_full: None,
        };
        let (send, listeners) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let sandbox = isolation::Sandbox::available();
            let access = isolation::AccessRules::default().open();
            let filters = SandboxFilters::guarding(&[70, 60, 71]);
            let listener = sandbox.enter(&access, &filters, true).unwrap();
            send.send(listener.unwrap()).unwrap();
            act();
        });
        refusals.watch("shop", listeners.recv().unwrap());
        Some((refusals, ours, thread))
    }

    /// Replies until the thread has ended; returns the reports.
    fn serve(
        mut refusals: RefusalMonitor,
        reports: &OwnedFd,
        thread: std::thread::JoinHandle<()>,
    ) -> Vec<RefusedCall> {
        let (orders, order) = fd_packets::packet_pair().unwrap();
        let ended = std::thread::spawn(move || {
            let ended = thread.join();
            fd_packets::send_packet(order.as_fd(), b"x", None).unwrap();
            ended
        });
        refusals.answer_until_order(orders.as_fd()).unwrap();
        ended.join().unwrap().unwrap();
        // The end of a sandbox causes the remaining reports.
        refusals.answer_until_order(orders.as_fd()).unwrap();
        let mut told = Vec::new();
        let mut buffer = [0; MAX_REPORT_BYTES];
        while let Ok((length, _)) = fd_packets::receive_packet(reports.as_fd(), &mut buffer) {
            match LauncherReport::decode(&buffer[..length]) {
                Some(LauncherReport::RefusedCall(call)) => told.push(call),
                other => panic!("{other:?}"),
            }
        }
        told
    }

    #[expect(unsafe_code, reason = "calls that are refused")]
    fn call(number: libc::c_long, arguments: [libc::c_long; 2]) -> i32 {
        // SAFETY: numbers; each of these calls is refused before it is executed.
        let done = unsafe { libc::syscall(number, arguments[0], arguments[1], 0) };
        assert_eq!(done, -1);
        io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn each_refused_call_fails_and_is_named() {
        let Some((refusals, reports, thread)) = watched(|| {
            assert_eq!(call(libc::SYS_keyctl, [0, 0]), libc::EPERM);
            assert_eq!(call(libc::SYS_kill, [70, 15]), libc::EPERM);
            assert_eq!(call(libc::SYS_tgkill, [71, 71]), libc::EPERM);
            assert_eq!(call(libc::SYS_kill, [-1, 0]), libc::EPERM);
            if cfg!(target_arch = "x86_64") {
                assert_eq!(call(0x4000_0000, [0, 0]), libc::ENOSYS);
            }
        }) else {
            return;
        };
        let told = serve(refusals, &reports, thread);
        let texts: Vec<_> = told.iter().map(ToString::to_string).collect();
        for (text, start) in texts.iter().zip([
            "keyctl by process",
            "kill with signal 15 to the server by process",
            "tgkill without a signal to the server's launcher by process",
            "kill without a signal to all processes by process",
            "a call of another processor's interface by process",
        ]) {
            assert!(text.starts_with(start), "{texts:?}");
        }
        assert_eq!(told[0].pid, std::process::id());
        assert!(
            told.iter()
                .all(|call| (&*call.app, call.count) == ("shop", 1))
        );
        assert_eq!(told.len(), 4 + usize::from(cfg!(target_arch = "x86_64")));
    }

    #[test]
    fn a_flood_is_answered_and_reported_in_few_words() {
        const CALLS: u32 = 150;
        let Some((refusals, reports, thread)) = watched(|| {
            for _ in 0..CALLS {
                assert_eq!(call(libc::SYS_keyctl, [0, 0]), libc::EPERM);
            }
            for signal in 0..60 {
                assert_eq!(call(libc::SYS_kill, [70, signal]), libc::EPERM);
            }
        }) else {
            return;
        };
        let began = Instant::now();
        let told = serve(refusals, &reports, thread);
        assert!(began.elapsed() >= SLICE, "it was slowed down");
        let total: u32 = told.iter().map(|call| call.count).sum();
        assert_eq!(total, CALLS + 60);
        assert!(told.len() <= REPORTS_MAX + 2, "{}", told.len());
    }
}
