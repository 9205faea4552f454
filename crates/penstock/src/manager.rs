//! The service manager that started us, if one did: what it is told, and the sockets that it passes.
//!
//! The protocols are systemd's (`sd_notify(3)`, `sd_listen_fds(3)`), which other managers speak too. Read at
//! the very start by `cli::serve`; told by `server` and `watchdog`. What must stay true: its variables are
//! ours alone, no worker sees them; nothing here waits for it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_sys::fd_packets::{self, ListenAddress};
use penstock_sys::{daemon, sd_notify};

use crate::inherited::{Given, Inherited};

/// The variable that names the manager's socket.
const NOTIFY: &str = "NOTIFY_SOCKET";

/// The variable that says how often it wants to hear that we are alive, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";

/// The first descriptor that is passed.
const FIRST: i32 = 3;

/// The most that are taken.
const SOCKETS_MAX: i32 = 1024;

/// Its words to us: variables of the environment, from now on gone from it.
#[derive(Debug, Default)]
pub(crate) struct Words {
    notify: Option<String>,
    watchdog: Option<Duration>,
    sockets: Option<(i32, String)>,
}

impl Words {
    /// Takes them out of the environment.
    ///
    /// # Errors
    /// When other threads run already.
    pub(crate) fn take() -> std::io::Result<Self> {
        let names = [
            NOTIFY,
            WATCHDOG,
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
        Ok(Self::read(text, std::process::id()))
    }

    /// What the variables, in the order above, say to the process `pid`.
    fn read<'t>(text: impl Fn(usize) -> Option<&'t str>, pid: u32) -> Self {
        let number = |at: usize| text(at).and_then(|text| text.parse::<u64>().ok());
        // Meant for another process, from which they came down to us.
        let is_ours = |at: usize| number(at).is_none_or(|meant| meant == u64::from(pid));
        let micros = number(1).filter(|&micros| micros > 0 && is_ours(2));
        let count = number(3).filter(|_| text(4).is_some() && is_ours(4));
        let count = count.and_then(|count| i32::try_from(count).ok());
        Self {
            notify: text(0).filter(|name| !name.is_empty()).map(str::to_owned),
            watchdog: micros.map(Duration::from_micros),
            sockets: count.map(|count| (count, text(5).unwrap_or_default().to_owned())),
        }
    }

    /// The sockets that were passed.
    ///
    /// # Errors
    /// Which of them is no listening socket.
    pub(crate) fn sockets(&self) -> Result<Inherited, String> {
        let Some((count, names)) = &self.sockets else {
            return Ok(Inherited::default());
        };
        let mut names = names.split(':');
        let mut given = Vec::new();
        for number in FIRST..FIRST.saturating_add((*count).min(SOCKETS_MAX)) {
            let name = names.next().unwrap_or_default();
            let say = |error: std::io::Error| {
                format!("descriptor {number} ({name:?}) of LISTEN_FDS: {error}")
            };
            let socket = fd_packets::take_inherited_fd(number).map_err(say)?;
            given.push(passed(socket, name).map_err(say)?);
        }
        Ok(Inherited::new(given))
    }

    /// The manager, to be told.
    pub(crate) fn manager(self) -> Manager {
        let open = |name: &str| {
            let opened = sd_notify::ServiceManager::new(name);
            opened.inspect_err(|error| log::warn!("{NOTIFY}: {error}"))
        };
        let socket = self.notify.as_deref().and_then(|name| open(name).ok());
        Manager(Arc::new(Inner {
            socket,
            name: self.notify,
            watchdog: self.watchdog,
        }))
    }
}

fn passed(socket: OwnedFd, name: &str) -> std::io::Result<Given> {
    let bound = fd_packets::listen_address_of(&socket)?;
    let place = match &bound {
        ListenAddress::Tcp { address, .. } => address.to_string(),
        ListenAddress::Unix(path) => format!("unix:{}", path.display()),
    };
    Ok(Given {
        known: None,
        bound,
        name: match name {
            "" | "unknown" => place,
            name => format!("{name} ({place})"),
        },
        sockets: vec![socket],
        is_lent: true,
    })
}

/// The service manager, or nobody. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Manager(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Option<sd_notify::ServiceManager>,
    name: Option<String>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// Everything is ready.
    pub(crate) fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// The configuration is being read again; [`Manager::ready`] says that it is done.
    pub(crate) fn reloading(&self) {
        let now = sd_notify::monotonic_microseconds();
        self.say(&format!(
            "RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=reloading"
        ));
    }

    /// The end has begun.
    pub(crate) fn stopping(&self, status: &str) {
        self.say(&format!("STOPPING=1\nSTATUS={}", line(status)));
    }

    /// Another process is the server now.
    pub(crate) fn main_process(&self, pid: u32) {
        self.say(&format!("MAINPID={pid}"));
    }

    /// We are alive.
    pub(crate) fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// How often it wants to hear that, if at all.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.0.socket.as_ref().and(self.0.watchdog)
    }

    /// What the server that follows this one has to know of it, as variables.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        let name = self.0.name.as_ref();
        let name = name.map(|name| (NOTIFY.into(), name.into()));
        let often = self.0.watchdog;
        let often = often.map(|often| (WATCHDOG.into(), often.as_micros().to_string().into()));
        name.into_iter().chain(often).collect()
    }

    fn say(&self, text: &str) {
        if let Some(socket) = &self.0.socket
            && let Err(error) = socket.notify(text)
        {
            log::warn!("the service manager does not hear {text:?}: {error}");
        }
    }
}

/// A value ends with its line.
fn line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: [Option<&'static str>; 6]) -> Words {
        Words::read(|at| values[at], 7)
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
        assert_eq!(words.notify.as_deref(), Some("/s"));
        assert_eq!(words.watchdog, Some(Duration::from_secs(3)));
        assert_eq!(words.sockets, Some((2, "a:b".to_owned())));
        let words = read([
            Some(""),
            Some("3000000"),
            Some("8"),
            Some("2"),
            Some("8"),
            None,
        ]);
        assert_eq!(
            (words.notify, words.watchdog, words.sockets),
            (None, None, None)
        );
        // The process that follows gets the interval alone: it is told as the main one.
        let words = read([None, Some("500"), None, Some("2"), None, None]);
        assert_eq!(words.watchdog, Some(Duration::from_micros(500)));
        assert_eq!(words.sockets, None, "they always say for whom sockets are");
    }

    #[test]
    fn nobody_is_told_without_complaint() {
        let manager = Words::default().manager();
        manager.ready("serving\nREADY=0");
        assert_eq!(manager.watchdog(), None);
        assert!(manager.variables().is_empty());
        assert_eq!(line("serving\nREADY=0"), "serving");
    }
}
