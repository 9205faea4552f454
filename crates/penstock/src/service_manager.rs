//! The service manager that started this process, if any: its notifications, and the sockets that
//! it passes.
//!
//! The protocols are systemd's (`sd_notify(3)`, `sd_listen_fds(3)`), which other managers implement
//! too. `cli::serve` reads the environment at the very start; `server` and `watchdog` send
//! notifications.
//!
//! # Invariants
//!
//! - No worker sees the manager's variables.
//! - Nothing waits for the manager.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_sys::fd_packets::{self, ListenAddress};
use penstock_sys::{daemon, sd_notify};

use crate::inherited_listeners::{InheritedListener, InheritedListeners};

const NOTIFY_SOCKET_VAR: &str = "NOTIFY_SOCKET";

/// The variable with the watchdog interval, in microseconds.
const WATCHDOG_USEC_VAR: &str = "WATCHDOG_USEC";

/// The first passed descriptor.
const FIRST_LISTEN_FD: i32 = 3;

const MAX_LISTEN_FDS: i32 = 1024;

/// The manager's variables, which are removed from the environment.
#[derive(Debug, Default)]
pub(crate) struct ManagerEnvironment {
    notify_socket: Option<String>,
    watchdog_interval: Option<Duration>,
    listen_fds: Option<(i32, String)>,
}

impl ManagerEnvironment {
    /// Takes the variables from the environment.
    ///
    /// # Errors
    /// Other threads run already.
    pub(crate) fn take_from_environment() -> std::io::Result<Self> {
        let names = [
            NOTIFY_SOCKET_VAR,
            WATCHDOG_USEC_VAR,
            "WATCHDOG_PID",
            "LISTEN_FDS",
            "LISTEN_PID",
            "LISTEN_FDNAMES",
        ];
        let values = daemon::take_env_vars(&names)?;
        let text = |at: usize| {
            values[at]
                .as_ref()
                .and_then(|value: &OsString| value.to_str())
        };
        Ok(Self::parse(text, std::process::id()))
    }

    /// Parses the variables, in the order above, for the process `pid`.
    fn parse<'t>(text: impl Fn(usize) -> Option<&'t str>, pid: u32) -> Self {
        let number = |at: usize| text(at).and_then(|text| text.parse::<u64>().ok());
        // Variables for another process may be inherited from it.
        let is_ours = |at: usize| number(at).is_none_or(|meant| meant == u64::from(pid));
        let micros = number(1).filter(|&micros| micros > 0 && is_ours(2));
        let count = number(3).filter(|_| text(4).is_some() && is_ours(4));
        let count = count.and_then(|count| i32::try_from(count).ok());
        Self {
            notify_socket: text(0).filter(|name| !name.is_empty()).map(str::to_owned),
            watchdog_interval: micros.map(Duration::from_micros),
            listen_fds: count.map(|count| (count, text(5).unwrap_or_default().to_owned())),
        }
    }

    /// The passed sockets.
    pub(crate) fn take_inherited_listeners(&self) -> Result<InheritedListeners, String> {
        let Some((count, names)) = &self.listen_fds else {
            return Ok(InheritedListeners::default());
        };
        let mut names = names.split(':');
        let mut listeners = Vec::new();
        for number in FIRST_LISTEN_FD..FIRST_LISTEN_FD.saturating_add((*count).min(MAX_LISTEN_FDS))
        {
            let name = names.next().unwrap_or_default();
            let say = |error: std::io::Error| {
                format!("descriptor {number} ({name:?}) of LISTEN_FDS: {error}")
            };
            let socket = fd_packets::take_inherited_fd(number).map_err(say)?;
            listeners.push(inherited_listener(socket, name).map_err(say)?);
        }
        Ok(InheritedListeners::new(listeners))
    }

    pub(crate) fn into_notifier(self) -> ServiceNotifier {
        let open = |name: &str| {
            let opened = sd_notify::ServiceManager::new(name);
            opened.inspect_err(|error| log::warn!("systemd: {NOTIFY_SOCKET_VAR}: {error}"))
        };
        let socket = self
            .notify_socket
            .as_deref()
            .and_then(|name| open(name).ok());
        ServiceNotifier(Arc::new(ManagerInner {
            notify_socket: socket,
            socket_name: self.notify_socket,
            watchdog_interval: self.watchdog_interval,
        }))
    }
}

fn inherited_listener(socket: OwnedFd, name: &str) -> std::io::Result<InheritedListener> {
    let bound = fd_packets::listen_address_of(&socket)?;
    let address = match &bound {
        ListenAddress::Tcp { address, .. } => address.to_string(),
        ListenAddress::Unix(path) => format!("unix:{}", path.display()),
    };
    Ok(InheritedListener {
        configured: None,
        bound_address: bound,
        name: match name {
            "" | "unknown" => address,
            name => format!("{name} ({address})"),
        },
        sockets: vec![socket],
        is_borrowed: true,
    })
}

/// Notifies the service manager, if there is one. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ServiceNotifier(Arc<ManagerInner>);

#[derive(Debug)]
struct ManagerInner {
    notify_socket: Option<sd_notify::ServiceManager>,
    socket_name: Option<String>,
    watchdog_interval: Option<Duration>,
}

impl ServiceNotifier {
    pub(crate) fn notify_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", first_line(status)));
    }

    /// Reports a reload; [`ServiceNotifier::notify_ready`] ends it.
    pub(crate) fn notify_reloading(&self) {
        let now = sd_notify::monotonic_microseconds();
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=reloading"
        ));
    }

    pub(crate) fn notify_stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={}", first_line(status)));
    }

    /// Reports that another process is the main process now.
    pub(crate) fn notify_main_pid(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}"));
    }

    /// Reports that the server is alive.
    pub(crate) fn notify_watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    /// The interval of watchdog messages, if the manager wants them.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.0.notify_socket.as_ref().and(self.0.watchdog_interval)
    }

    /// The variables that a successor needs.
    pub(crate) fn successor_env_vars(&self) -> Vec<(OsString, OsString)> {
        let name = self.0.socket_name.as_ref();
        let name = name.map(|name| (NOTIFY_SOCKET_VAR.into(), name.into()));
        let often = self.0.watchdog_interval;
        let often = often.map(|often| {
            (
                WATCHDOG_USEC_VAR.into(),
                often.as_micros().to_string().into(),
            )
        });
        name.into_iter().chain(often).collect()
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.0.notify_socket
            && let Err(error) = socket.notify(text)
        {
            log::warn!("systemd: cannot notify the service manager: {error} (message={text:?})");
        }
    }
}

/// A line break would end the value.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: [Option<&'static str>; 6]) -> ManagerEnvironment {
        ManagerEnvironment::parse(|at| values[at], 7)
    }

    #[test]
    fn what_is_meant_for_another_process_is_not_ours() {
        let words = read([
            Some("/s"),
            Some("3000000"),
            Some("7"),
            Some("2"),
            Some("7"),
            Some("a:b"),
        ]);
        assert_eq!(words.notify_socket.as_deref(), Some("/s"));
        assert_eq!(words.watchdog_interval, Some(Duration::from_secs(3)));
        assert_eq!(words.listen_fds, Some((2, "a:b".to_owned())));
        let words = read([
            Some(""),
            Some("3000000"),
            Some("8"),
            Some("2"),
            Some("8"),
            None,
        ]);
        assert_eq!(
            (
                words.notify_socket,
                words.watchdog_interval,
                words.listen_fds
            ),
            (None, None, None)
        );
        // The successor gets the interval alone: the old server reports it as the main process.
        let words = read([None, Some("500"), None, Some("2"), None, None]);
        assert_eq!(words.watchdog_interval, Some(Duration::from_micros(500)));
        assert_eq!(
            words.listen_fds, None,
            "LISTEN_PID is always set with LISTEN_FDS"
        );
    }

    #[test]
    fn nobody_is_told_without_complaint() {
        let manager = ManagerEnvironment::default().into_notifier();
        manager.notify_ready("serving\nREADY=0");
        assert_eq!(manager.watchdog_interval(), None);
        assert!(manager.successor_env_vars().is_empty());
        assert_eq!(first_line("serving\nREADY=0"), "serving");
    }
}
